"""Settings of workers: one table of all variables, read once at start.

The table is the classes in ``GROUPS``: a field is a setting, with its variable, kind, default and,
below it, its meaning for users. The lists in the documentation, ``otel-rl doctor``, suggestions for
misspelt names and the environment that ``otel-rl run`` sets come from the table.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypedDict, TypeVar
from urllib.parse import urlsplit

from otel_rl.errors import ConfigError
from otel_rl.inbox import DATA_DIRECTORY, InboxPlace
from otel_rl.redaction import redacted
from otel_rl.signals import Signal
from otel_rl.worker.variables import (
    PATH,
    SWITCH,
    TEXT,
    TRUE,
    Kind,
    Setting,
    number,
    optional,
    setting,
    settings_in,
    word,
    words,
)

CONFIG: Final = "OTEL_RL_CONFIG"
CONFIG_FILES: Final = ("OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE")
"""A file that configures another SDK, which then reads no other variable; and its earlier name."""
DATA: Final = "OTEL_RL_DATA"
DEFAULT_EXPERIMENT: Final = "OTEL_RL_DEFAULT_EXPERIMENT"
DEFAULT_TRIAL: Final = "OTEL_RL_DEFAULT_TRIAL"
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
LAUNCH: Final = "OTEL_RL_LAUNCH"
PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
SWEEP: Final = "OTEL_RL_SWEEP"
TYPED: Final = "OTEL_RL_TYPED"


_URL_HINT: Final = "Use a URL such as http://localhost:4318."

_T = TypeVar("_T")


class ProvenanceDetail(StrEnum):
    """How much a worker reports of its command, code and machine."""

    FULL = "full"
    COMMAND = "command"
    OFF = "off"


class Protocol(StrEnum):
    """OTLP transports that workers support."""

    HTTP = "http/protobuf"
    GRPC = "grpc"


def _name(argument: str, otherwise: str = "", attribute: str = "") -> str:
    variable = f"OTEL_RL_{argument.upper()}"
    return setting(variable, TEXT, otherwise=otherwise, argument=argument, attribute=attribute)


def _otlp(name: str, kind: Kind[_T], default: str = "", **more: Any) -> _T:
    return setting(f"OTEL_EXPORTER_OTLP_{name}", kind, default, **more)


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    if not text:
        return ()
    from opentelemetry.util.re import parse_env_headers  # most workers have none

    return tuple(sorted(parse_env_headers(text, liberal=True).items()))


def _config(text: str) -> Mapping[str, object]:
    try:
        config = json.loads(text or "{}")
    except RecursionError:
        config = None
    if not isinstance(config, dict):
        raise ValueError
    return config


_POSITIVE: Final = number("a positive number", most=1e300)
_SECONDS: Final = number("a positive number of seconds")
_MILLISECONDS: Final = number("a positive number of milliseconds", per=1000)
_GPU_SECONDS: Final = number("10 milliseconds or more", 0.01, 1e6)
_GPU_MILLISECONDS: Final = number(_GPU_SECONDS.must, 0.01, 1e6, per=1000)
# A sample takes milliseconds, and shorter ones of the CPU are noise.
_HOST_MILLISECONDS: Final = number("1000 milliseconds or more", 1, 1e6, per=1000)
_AGE: Final = number("seconds from 1 on, or off", 1, 1e6)
_SHARE: Final = number(
    "a number from 0 to 1",
    least=0,
    most=1,
    hint="0.1 keeps the spans of one step in ten. Leave it out for all.",
)
_ONE_OR_MORE: Final = number("a positive number of spans", 1)
_SPANS: Final = Kind(_ONE_OR_MORE.must, lambda text: int(_ONE_OR_MORE.cast(text)))
_STACK: Final = Kind(_AGE.must, lambda text: 0.0 if text.lower() == "off" else _AGE.cast(text))
_JSON: Final = Kind("a JSON object", _config, 'Set it to {"lr": 3e-6}, for example.')
_PROTOCOLS: Final = word(
    {one.value: one for one in Protocol}, "Every OTLP receiver takes http/protobuf."
)
_DETAILS: Final = word(
    {one.value: one for one in ProvenanceDetail},
    "command leaves out the difference to the commit and the packages.",
)


# The table


@dataclass(frozen=True, slots=True)
class Names:
    """Names and place of a worker, which ``identity`` reads."""

    experiment: str = _name("experiment", "required", "rl.experiment.name")
    """The experiment, which with the trial names the run."""
    trial: str = _name(
        "trial", "the [launch](runs.md#a-program-that-names-no-trial)", "rl.trial.name"
    )
    """One run of the experiment."""
    role: str = _name("role", "[`trainer`](runs.md#roles)", "rl.worker.role")
    """What the worker does: `trainer`, `generator`, or any other word."""
    project: str = _name("project", "the bridge's")
    """Project in the tracker."""
    name: str = _name("name", "the bridge's")
    """Name of the run in the tracker."""
    index: str = _name("index", "the [launcher's](#identity)", "rl.worker.index")
    """Number of the worker within its role, from 0."""
    count: str = _name("count", "the [launcher's](#identity)", "rl.worker.count")
    """Number of workers of the role."""
    tag: str = _name("tag", attribute="rl.worker.tag")
    """A word that tells workers of a role apart."""
    resource: str = setting("OTEL_RESOURCE_ATTRIBUTES", TEXT, argument="resource_attributes")
    """Attributes of the worker's resource: `team.name=alignment`, with commas between."""
    service: str = setting("OTEL_SERVICE_NAME", TEXT, otherwise="`otel_rl.ROLE`")
    """`service.name` of the worker."""
    launch: str = setting(LAUNCH, TEXT, otherwise="found out from the launcher")
    """Id of the [launch](runs.md#a-program-that-names-no-trial)."""
    sweep: str = setting(SWEEP, TEXT, run=None)
    """Names of the [trials of sweeps](runs.md#sweeps) around the process."""
    typed: str = setting(TYPED, TEXT, is_internal=True)
    """Which names were typed for `otel-rl run`."""
    default_experiment: str = setting(DEFAULT_EXPERIMENT, TEXT, is_internal=True)
    """Experiment of a process that names none, from `otel-rl run` or the parent."""
    default_trial: str = setting(DEFAULT_TRIAL, TEXT, is_internal=True, run=None)
    """Trial of a process that names none, from the parent."""


@dataclass(frozen=True, slots=True)
class SignalSettings:
    """Export settings of one signal.

    ``url`` is the full URL for HTTP, scheme and authority for gRPC; header names are in lower case.
    ``is_named`` tells whether an argument or a variable sets the endpoint. ``inbox`` is the place
    that gets requests instead of the endpoint; it is chosen when the session starts.
    """

    signal: Signal
    url: str = _otlp(
        "ENDPOINT",
        TEXT,
        otherwise="`http://localhost:4318`, with gRPC `http://localhost:4317`, if something "
        "answers there, else [files](#without-an-endpoint)",
        argument="endpoint",
        is_replaced=True,
    )
    """Base URL of the bridge or collector. That of one signal is a full URL, with `/v1/metrics`."""
    protocol: Protocol = _otlp(  # noqa: RUF009  # makes a field
        "PROTOCOL", _PROTOCOLS, "http/protobuf", is_replaced=True
    )
    """Transport: `http/protobuf` or `grpc`."""
    headers: tuple[tuple[str, str], ...] = _otlp("HEADERS", Kind("headers", _headers))
    """Headers of every request: `authorization=Bearer%20TOKEN`, with commas between."""
    # In seconds, as in the Python SDK; the specification defines milliseconds.
    timeout_s: float = _otlp("TIMEOUT", _SECONDS, "10")
    """Seconds that a request waits for its connection (at most 3 for each address), for the
    beginning of its answer, and for the rest of it."""
    gzip: bool | None = _otlp(
        "COMPRESSION",
        optional(word({"gzip": True, "none": False})),
        otherwise="`gzip`, on the same machine `none`",
    )
    """Compression of requests: `gzip` or `none`."""
    certificate: str | None = _otlp("CERTIFICATE", PATH, otherwise="the system's authorities")
    """File with the authority of the endpoint's certificate. A file that cannot be read is an error
    at the start; later, data waits."""
    client_certificate: str | None = _otlp("CLIENT_CERTIFICATE", PATH)
    """File with the worker's own certificate, for mutual TLS."""
    client_key: str | None = _otlp("CLIENT_KEY", PATH)
    """File with the key of the worker's certificate."""
    insecure: bool = _otlp("INSECURE", TRUE, "false")
    """`true`: gRPC to an endpoint without a scheme uses no TLS."""
    enabled: bool = True
    is_named: bool = field(default=True, compare=False)
    inbox: InboxPlace | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"SignalSettings({self.protocol.value} {redacted(self.url)})"  # headers are secret

    @property
    def peer(self) -> tuple[object, ...]:
        """Return all settings that distinguish one connection from another."""
        url = urlsplit(self.url)
        files = (self.certificate, self.client_certificate, self.client_key)
        return (url.scheme, url.netloc, self.gzip, *files)

    @property
    def is_loopback(self) -> bool:
        """Return whether the endpoint is this machine: no proxy, and compression gains nothing."""
        return _is_loopback(self.url)


class GpuOptions(TypedDict, total=False):
    """Options that ``init(gpu=...)`` accepts instead of ``True``; see ``GpuSettings``."""

    roles: Sequence[str]
    interval_s: float


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """GPU sampling of a worker."""

    enabled: bool = setting("OTEL_RL_GPU", SWITCH, "off", argument="gpu")
    """`on` samples the process's [GPUs](gpus.md)."""
    roles: tuple[str, ...] = setting("OTEL_RL_GPU_ROLES", Kind("words", words), otherwise="all")
    """Roles whose workers sample: `trainer,generator`."""
    # The bridge's window: every window has a sample of every device.
    interval_s: float = setting("OTEL_RL_GPU_INTERVAL", _GPU_MILLISECONDS, "5000")
    """Milliseconds between two samples of a device; the argument is in seconds."""

    def are_for(self, role: str) -> bool:
        return self.enabled and (not self.roles or role in self.roles)


class MfuOptions(TypedDict, total=False):
    """Options of ``init(mfu=...)``; see ``MfuSettings``."""

    model_flops_per_token: float
    peak_flops_per_s: float
    devices: int


@dataclass(frozen=True, slots=True)
class MfuSettings:
    """Inputs of the MFU (model FLOPs utilisation) that are known beforehand."""

    model_flops_per_token: float | None = setting(
        "OTEL_RL_MODEL_FLOPS_PER_TOKEN", optional(_POSITIVE), otherwise="no [MFU](gpus.md#mfu)"
    )
    """FLOPs of training on a token: about 6 for each parameter of a dense model."""
    peak_flops_per_s: float | None = setting(
        "OTEL_RL_PEAK_FLOPS_PER_S", optional(_POSITIVE), otherwise="none; an MFU needs it"
    )
    """Peak of one device, from its data sheet: 989.4e12 for dense BF16 of an H100 or H200 SXM."""
    devices: float = setting("OTEL_RL_MFU_DEVICES", _POSITIVE, "1")
    """Devices that train the tokens which this process counts, such as a tensor-parallel group."""

    @property
    def is_known(self) -> bool:
        return self.model_flops_per_token is not None and self.peak_flops_per_s is not None

    def utilization(self, tokens: float, duration_s: float) -> float | None:
        """Return the model FLOPs utilisation of a step that trained on ``tokens``; None if unknown.

        It is tokens * FLOPs per token / (duration * devices * peak).
        """
        flops_per_token, peak = self.model_flops_per_token, self.peak_flops_per_s
        if flops_per_token is None or peak is None or duration_s <= 0:
            return None
        return tokens * flops_per_token / (duration_s * peak * self.devices)


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Settings of reports about the host."""

    enabled: bool = setting("OTEL_RL_HOST", SWITCH, "on")
    """`on` sends [reports of the host](gpus.md#host)."""
    # As often as W&B's own sampler.
    interval_s: float = setting("OTEL_RL_HOST_INTERVAL", _HOST_MILLISECONDS, "15000")
    """Milliseconds between two reports of the host, which are taken at exports."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a worker."""

    metrics: SignalSettings
    traces: SignalSettings
    logs: SignalSettings
    gpu: GpuSettings = field(default_factory=GpuSettings)
    mfu: MfuSettings = field(default_factory=MfuSettings)
    host: HostSettings = field(default_factory=HostSettings)
    # A chart one second old feels live; the SDK's default of a minute does not.
    interval_s: float = setting(
        "OTEL_METRIC_EXPORT_INTERVAL",
        _MILLISECONDS,
        "1000",
        argument="export_interval_s",
        run="1000",
    )
    """Milliseconds between two exports of metrics, events and spans; the argument is in seconds."""
    span_capacity: int = setting("OTEL_BSP_MAX_QUEUE_SIZE", _SPANS, "16384")
    """Number of spans that may wait for an export, about 50 MB."""
    disabled: bool = setting("OTEL_SDK_DISABLED", TRUE, "false")
    """`true` records and sends nothing."""
    trace_steps: float | None = setting(
        "OTEL_RL_TRACE_STEPS", _SHARE, "1", otherwise="`1`, or as `OTEL_TRACES_SAMPLER` says"
    )
    """Share of the steps whose [spans are kept](tracing.md#keeping-whole-steps)."""
    provenance: ProvenanceDetail = setting(  # noqa: RUF009  # makes a field
        "OTEL_RL_PROVENANCE", _DETAILS, "full"
    )
    """`full` sends command, commit, the difference to it, packages and machine; `command` neither
    difference nor packages; `off` nothing, nor the messages of exceptions."""
    console: bool = setting("OTEL_RL_CONSOLE", SWITCH, "on")
    """`on` sends the lines of the [console](#console)."""
    # With an export, a window of rows and the delivery, a stack is in the run within 15 s.
    stack_after_s: float = setting("OTEL_RL_STACK_AFTER", _STACK, "8")
    """Seconds (from 1) after which a [hanging phase](phases.md#hangs) sends its stack, or `off`."""
    exit_timeout_s: float = setting("OTEL_RL_EXIT_TIMEOUT", _SECONDS, "5")
    """Seconds that the end of a process waits for each answer of the endpoint; in all six times as
    long."""
    embed: bool = setting("OTEL_RL_EMBED", SWITCH, "on")
    """`on` uses [files and a bridge](#without-an-endpoint) where there is no endpoint."""
    times_devices: bool = setting("OTEL_RL_DEVICE_CLOCK", SWITCH, "on")
    """`on` times [steps and phases on torch's GPU](adr/0028-device-clock.md)."""
    measures_gc: bool = setting("OTEL_RL_GC", SWITCH, "on")
    """`on` measures `rl.worker.gc.time` in processes with steps or phases."""
    config: Mapping[str, object] = setting(CONFIG, _JSON, compares=False)
    """Config of the run, as a JSON object; what a process of the run gives comes before it."""

    @property
    def are_named(self) -> bool:
        """Return whether a person has named an endpoint for every signal."""
        return self.metrics.is_named and self.traces.is_named and self.logs.is_named

    @property
    def inbox(self) -> InboxPlace | None:
        """Return the inbox that signals without an endpoint use, if any does."""
        return self.metrics.inbox or self.logs.inbox or self.traces.inbox


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Variables that OpenTelemetry, the adapters or the commands read."""

    metrics_exporter: str = setting("OTEL_METRICS_EXPORTER", TEXT, "otlp")
    """Measurements are sent if `otlp` is among the words."""
    traces_exporter: str = setting("OTEL_TRACES_EXPORTER", TEXT, "otlp")
    """Spans are sent if `otlp` is among the words."""
    logs_exporter: str = setting("OTEL_LOGS_EXPORTER", TEXT, "otlp")
    """Events are sent if `otlp` is among the words: config, samples, console and endings."""
    sampler: str = setting("OTEL_TRACES_SAMPLER", TEXT)
    """OpenTelemetry's sampler of spans; applies if `OTEL_RL_TRACE_STEPS` is not set."""
    exemplars: str = setting(
        "OTEL_METRICS_EXEMPLAR_FILTER", TEXT, run="always_on", is_replaced=True
    )
    """With `always_on` your [own provider](#your-own-provider) keeps every measurement."""
    # A program that uses only the API of OpenTelemetry gets its providers from these two.
    meters: str = setting("OTEL_PYTHON_METER_PROVIDER", TEXT, run="otel_rl", is_replaced=True)
    """With `otel_rl` OpenTelemetry's API of metrics starts the worker."""
    tracers: str = setting("OTEL_PYTHON_TRACER_PROVIDER", TEXT, run="otel_rl", is_replaced=True)
    """With `otel_rl` OpenTelemetry's API of traces starts the worker."""
    # Else the first distribution that is found would configure the program, and the package of
    # `otel-rl run` brings one.
    distro: str = setting("OTEL_PYTHON_DISTRO", TEXT, run="otel_rl")
    """With `otel_rl` `opentelemetry-instrument` starts the worker (`OTEL_PYTHON_CONFIGURATOR`)."""
    data: str = setting(DATA, TEXT, DATA_DIRECTORY)
    """Directory of the [files](#without-an-endpoint) of a program without an endpoint."""
    adapters: str = setting("OTEL_RL_ADAPTERS", TEXT, otherwise="`auto` under `otel-rl run`")
    """`auto` enables the [adapters](how-to/frameworks.md) of frameworks, `off` disables them."""
    attach: str = setting("OTEL_RL_ATTACH", TEXT)
    """`share` joins the [run that the program makes](wandb.md) in W&B; `hint` offers it."""
    log_level: str = setting("OTEL_RL_LOG_LEVEL", TEXT, "WARNING")
    """What commands of `otel-rl` log: `DEBUG`, `INFO`, `WARNING`."""
    log_format: str = setting("OTEL_RL_LOG_FORMAT", TEXT, "text")
    """How commands of `otel-rl` log: `text`, or `json` with one line for each record."""


GROUPS: Final = (
    Names,
    SignalSettings,
    Settings,
    GpuSettings,
    MfuSettings,
    HostSettings,
    Surroundings,
)
TABLE: Final[tuple[Setting[Any], ...]] = tuple(
    entry for group in GROUPS for entry in settings_in(group).values()
)
"""Every variable of workers and commands; those of the bridge are in ``BridgeSettings``."""


# Reading


def read_settings(
    environ: Mapping[str, str],
    *,
    endpoint: str | None = None,
    export_interval_s: float | None = None,
    gpu: bool | GpuOptions | None = None,
    mfu: MfuOptions | None = None,
) -> Settings:
    """Read the environment; arguments of ``init`` take precedence.

    Raises:
        ConfigError: A setting is wrong, or a file cannot be read. The error names it, and the
            remedy.
    """
    if endpoint is not None and not isinstance(endpoint, str):
        raise ConfigError(
            f"endpoint: must be a URL (got {redacted(repr(endpoint))}).", hint=_URL_HINT
        )
    given: dict[str, object] = {}
    if export_interval_s is not None:
        given["interval_s"] = _SECONDS.given("export_interval_s", export_interval_s)
    samples_spans = environ.get("OTEL_TRACES_SAMPLER", "").strip()
    if samples_spans and not environ.get("OTEL_RL_TRACE_STEPS", "").strip():
        given["trace_steps"] = None  # OpenTelemetry's sampler decides
    return Settings(
        metrics=_signal(Signal.METRICS, environ, endpoint),
        traces=_signal(Signal.TRACES, environ, endpoint),
        logs=_signal(Signal.LOGS, environ, endpoint),
        gpu=_gpu(environ, gpu),
        mfu=_mfu(environ, mfu),
        host=HostSettings(**_read(HostSettings, environ)),
        **_read(Settings, environ, given),
    )


def read_config(environ: Mapping[str, str]) -> Mapping[str, object]:
    """Return the hyper-parameters that the environment gives the run.

    Raises:
        ConfigError: ``OTEL_RL_CONFIG`` is not a JSON object.
    """
    config: Mapping[str, object] = settings_in(Settings)["config"].read(environ)
    return config


def is_disabled(environ: Mapping[str, str]) -> bool:
    disabled: bool = settings_in(Settings)["disabled"].read(environ)
    return disabled


def _read(
    group: type, environ: Mapping[str, str], given: Mapping[str, object] = MappingProxyType({})
) -> dict[str, Any]:
    return {
        name: given[name] if name in given else entry.read(environ)
        for name, entry in settings_in(group).items()
    }


def _signal(signal: Signal, environ: Mapping[str, str], endpoint: str | None) -> SignalSettings:
    entries = settings_in(SignalSettings)
    found = {name: entry.read(environ, signal) for name, entry in entries.items()}
    found["is_named"] = endpoint is not None or bool(found["url"])
    found["url"] = url = _url(signal, environ, endpoint, found)
    found["insecure"] = urlsplit(url).scheme == "http"
    if found["gzip"] is None:
        found["gzip"] = not _is_loopback(url)
    enabled = _is_for_otlp(exporters_of(environ, signal))
    if enabled and not is_disabled(environ):
        for name in ("certificate", "client_certificate", "client_key"):
            _check_file(*entries[name].find(environ, signal))
    return SignalSettings(signal, **found, enabled=enabled)


def _check_file(path: str, variable: str) -> None:
    try:
        if path:
            Path(path).open("rb").close()
    except OSError as exc:
        raise ConfigError(
            f"{variable}: {exc.strerror or type(exc).__name__} (got {path!r}).",
            hint="Correct the path or unset it.",
        ) from exc


def _url(
    signal: Signal, environ: Mapping[str, str], endpoint: str | None, found: Mapping[str, object]
) -> str:
    """Return a signal's URL; without a scheme, gRPC is as secure as ``insecure`` says."""
    is_grpc = found["protocol"] is Protocol.GRPC
    url, where = settings_in(SignalSettings)["url"].find(environ, signal)
    is_base = endpoint is not None or where == ENDPOINT
    if endpoint is not None:
        url, where = endpoint, "endpoint"
    url = url or f"http://localhost:{4317 if is_grpc else 4318}"
    if is_grpc and "://" not in url:
        url = f"{'http' if found['insecure'] else 'https'}://{url}"
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigError(
            f"{where}: must be an http or https URL (got {redacted(url)!r}).",
            hint=_URL_HINT,
        )
    return f"{url.rstrip('/')}/v1/{signal}" if is_base and not is_grpc else url


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def exporters_of(environ: Mapping[str, str], signal: Signal) -> tuple[str, ...]:
    """Return the exporters in ``OTEL_{METRICS,TRACES,LOGS}_EXPORTER``; empty for the default."""
    return words(environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").lower())


def _is_for_otlp(exporters: tuple[str, ...]) -> bool:
    """Return whether OTLP is among the exporters, also under a name with its protocol."""
    return not exporters or any(name.startswith("otlp") for name in exporters)


_NOT_SENT: Final = {
    Signal.METRICS: "measurements are not sent over OTLP, and are not in the run",
    Signal.TRACES: "spans are not sent over OTLP, and explain no step of the run",
    Signal.LOGS: "events are not sent over OTLP: config, tags, samples and endings of workers are "
    "not in the run",
}


def exporters_beside_otlp(environ: Mapping[str, str], *, with_none: bool = False) -> Iterator[str]:
    """Yield a line for each signal whose variable names exporters without OTLP.

    An explicit ``none`` gets a line only ``with_none``.
    """
    for signal in Signal:
        exporters = exporters_of(environ, signal)
        if _is_for_otlp(exporters) or (exporters == ("none",) and not with_none):
            continue
        variable, wanted = f"OTEL_{signal.upper()}_EXPORTER", ",".join(exporters)
        if exporters == ("none",):
            remedy = "Set it to otlp, or unset it"
        else:
            remedy = f"Set it to {wanted},otlp; otel_rl itself has no other exporter than otlp"
        yield f"{variable}={wanted}: {_NOT_SENT[signal]}. {remedy}"


def _gpu(environ: Mapping[str, str], given: object) -> GpuSettings:
    found: dict[str, object] = {}
    if isinstance(given, bool):
        found["enabled"] = given
    elif given is not None:
        kinds = {"roles": _roles, "interval_s": _GPU_SECONDS.given}
        found = {"enabled": True} | _options("gpu", given, kinds, "True, False or a mapping")
    return GpuSettings(**_read(GpuSettings, environ, found))


def _mfu(environ: Mapping[str, str], given: object) -> MfuSettings:
    kinds = dict.fromkeys(MfuOptions.__annotations__, _POSITIVE.given)
    options = {} if given is None else _options("mfu", given, kinds, "a mapping")
    found = MfuSettings(**_read(MfuSettings, environ, options))
    if options and found.model_flops_per_token is None:
        raise ConfigError(
            "mfu.model_flops_per_token: is missing.",
            hint="For a dense model take 6 times its number of parameters.",
        )
    if options and found.peak_flops_per_s is None:
        raise ConfigError(
            "mfu.peak_flops_per_s: is missing, and no MFU can be computed without it.",
            hint="Pass it in mfu, or set OTEL_RL_PEAK_FLOPS_PER_S, to the peak of one device from "
            "its data sheet: 989.4e12 for dense BF16 of an H100 or H200 SXM.",
        )
    return found


def _options(
    where: str, given: object, kinds: Mapping[str, Callable[[str, object], object]], must: str
) -> dict[str, object]:
    hint = f"Options are {', '.join(kinds)}."
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: must be {must} (got {given!r}).", hint=hint)
    if unknown := {*map(str, given)} - {*kinds}:
        raise ConfigError(f"{where}: unknown option {min(unknown)!r}.", hint=hint)
    return {
        name: kinds[name](f"{where}.{name}", value)
        for name, value in given.items()
        if value is not None
    }


def _roles(where: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{where}: must be a list (got {value!r}).", hint="Use [...].")
    for one in value:
        if not isinstance(one, str) or "," in one:
            raise ConfigError(
                f"{where}: cannot hold {one!r}.", hint='Name one role in each text: ["trainer"].'
            )
    return tuple(value)
