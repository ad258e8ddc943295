"""Where and how a worker exports: the standard ``OTEL_*`` variables, read once at start. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.util.re import parse_env_headers

from otel_rl.errors import ConfigError
from otel_rl.records import Signal
from otel_rl.shown import redacted
from otel_rl.worker.gpu import GpuOptions, GpuSettings, read_gpu_settings

__all__ = [
    "Protocol",
    "Settings",
    "SignalSettings",
    "exporters_beside_otlp",
    "exporters_of",
    "read_settings",
]

DEFAULT_INTERVAL_S: Final = 1.0
"""A chart that is a second old feels live; the SDK's default of a minute does not."""

DEFAULT_SPAN_INTERVAL_S: Final = 1.0
"""As measurements, so that a process that is killed loses no more spans than those. The SDK's five
seconds would save 0.1 % of a core."""

DEFAULT_SPAN_CAPACITY: Final = 1 << 14
"""About 30 MB if they all wait; an export comes before, at a quarter of it."""

DEFAULT_TIMEOUT_S: Final = 10.0
"""OTEL_EXPORTER_OTLP_TIMEOUT's default in the specification."""

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class Protocol(StrEnum):
    """The OTLP transports that workers speak."""

    HTTP = "http/protobuf"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class SignalSettings:
    """How one signal is sent.

    Attributes:
        signal: Which.
        url: Where to: the full URL for HTTP, scheme and authority for gRPC.
        protocol: Transport.
        headers: Lower-case names. Never logged: they carry credentials.
        timeout_s: For one attempt.
        gzip: Whether bodies are compressed.
        certificate: CA file, or None for the system's.
        client_certificate: For mutual TLS, or None.
        client_key: For mutual TLS, or None.
        insecure: For gRPC: no TLS.
        enabled: False if ``OTEL_{METRICS,TRACES,LOGS}_EXPORTER`` names exporters without OTLP.
        is_named: Whether an argument or a variable says the endpoint; False for the default.
        files: The variables that name the three files above, each with its file.
    """

    signal: Signal
    url: str
    protocol: Protocol
    headers: tuple[tuple[str, str], ...]
    timeout_s: float
    gzip: bool
    certificate: str | None
    client_certificate: str | None
    client_key: str | None
    insecure: bool
    enabled: bool
    is_named: bool = field(default=True, compare=False)
    files: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        return f"SignalSettings({self.protocol.value} {redacted(self.url)})"

    @property
    def peer(self) -> tuple[object, ...]:
        """All by which a connection differs from one to another place."""
        parts = urlsplit(self.url)
        return (
            parts.scheme,
            parts.netloc,
            self.gzip,
            self.certificate,
            self.client_certificate,
            self.client_key,
        )

    @property
    def is_loopback(self) -> bool:
        """Whether the endpoint is this machine: no proxy, and compression gains nothing."""
        return urlsplit(self.url).hostname in _LOOPBACK


@dataclass(frozen=True, slots=True)
class Settings:
    """All that export depends on.

    Attributes:
        metrics: See ``SignalSettings``.
        traces: See ``SignalSettings``.
        logs: See ``SignalSettings``. Where events go.
        interval_s: Between two metric exports.
        span_interval_s: Between two exports of spans.
        span_capacity: How many spans may wait for the next.
        disabled: ``OTEL_SDK_DISABLED`` is true: nothing is recorded or sent.
        gpu: Whether and how the process's GPUs are sampled.
        trace_steps: Share of all steps whose spans are kept; None if OpenTelemetry's own
            ``OTEL_TRACES_SAMPLER`` decides.
    """

    metrics: SignalSettings
    traces: SignalSettings
    logs: SignalSettings
    interval_s: float
    span_interval_s: float
    span_capacity: int
    disabled: bool
    gpu: GpuSettings
    trace_steps: float | None


def read_settings(
    environ: Mapping[str, str],
    *,
    endpoint: str | None = None,
    export_interval_s: float | None = None,
    gpu: bool | GpuOptions | None = None,
) -> Settings:
    """Read the environment; arguments win.

    Args:
        environ: The process's environment.
        endpoint: Base URL, as in ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        export_interval_s: Seconds between two exports.
        gpu: Whether GPUs are sampled, or how.

    Raises:
        ConfigError: Naming what is wrong, its value and the way out.
    """
    if endpoint is not None and not isinstance(endpoint, str):
        raise ConfigError(
            f"endpoint: must be a URL (got {redacted(repr(endpoint))}).", hint=_URL_HINT
        )
    return Settings(
        metrics=_signal(Signal.METRICS, environ, endpoint),
        traces=_signal(Signal.TRACES, environ, endpoint),
        logs=_signal(Signal.LOGS, environ, endpoint),
        interval_s=_interval_s(environ, export_interval_s),
        span_interval_s=_milliseconds(environ, "OTEL_BSP_SCHEDULE_DELAY", DEFAULT_SPAN_INTERVAL_S),
        span_capacity=_span_capacity(environ),
        disabled=environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true",
        gpu=read_gpu_settings(environ, given=gpu),
        trace_steps=_trace_steps(environ),
    )


def exporters_of(environ: Mapping[str, str], signal: Signal) -> tuple[str, ...]:
    """The exporters that ``OTEL_{METRICS,TRACES,LOGS}_EXPORTER`` names; empty for the default."""
    names = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").lower().split(",")
    return tuple(name.strip() for name in names if name.strip())


def _is_for_otlp(exporters: tuple[str, ...]) -> bool:
    """Whether OTLP is among them, also as Python's SDK names one protocol of it."""
    return not exporters or any(name.startswith("otlp") for name in exporters)


_NOT_SENT: Final = {
    Signal.METRICS: "measurements are not sent over OTLP, and are not in the run",
    Signal.TRACES: "spans are not sent over OTLP, and explain no step of the run",
    Signal.LOGS: "events are not sent over OTLP: config, tags, samples and endings of workers are "
    "not in the run",
}


def exporters_beside_otlp(environ: Mapping[str, str], *, with_none: bool = False) -> Iterator[str]:
    """A line for each signal whose variable asks for exporters, and OTLP is not among them.

    Args:
        environ: The process's environment.
        with_none: Whether ``none``, which is plainly meant, gets a line too.
    """
    for signal in Signal:
        exporters = exporters_of(environ, signal)
        if _is_for_otlp(exporters) or (exporters == ("none",) and not with_none):
            continue
        variable = f"OTEL_{signal.upper()}_EXPORTER"
        wanted = ",".join(exporters)
        if exporters == ("none",):
            yield f"{variable}=none: {_NOT_SENT[signal]}. Set it to otlp, or unset it"
        else:
            yield (
                f"{variable}={wanted}: {_NOT_SENT[signal]}. Set it to {wanted},otlp; otel_rl "
                "itself has no other exporter than otlp"
            )


_URL_HINT = "Use a URL such as http://localhost:4318."


def _signal(signal: Signal, environ: Mapping[str, str], endpoint: str | None) -> SignalSettings:
    word = signal.upper()  # as it stands in names of variables

    def find(name: str) -> tuple[str, str]:
        """(value, variable) of the signal's own variable, else the common one."""
        for variable in (f"OTEL_EXPORTER_OTLP_{word}_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
            if environ.get(variable, "").strip():
                return environ[variable].strip(), variable
        return "", f"OTEL_EXPORTER_OTLP_{name}"

    protocol = _protocol(*find("PROTOCOL"))
    insecure = find("INSECURE")[0].lower() == "true"
    url = _url(signal, protocol, environ, endpoint, insecure=insecure)
    compression, compression_variable = find("COMPRESSION")
    if compression.lower() not in ("", "gzip", "none"):
        raise ConfigError(
            f"{compression_variable}: must be gzip or none (got {compression!r}).",
            hint="Correct or unset it.",
        )
    loopback = urlsplit(url).hostname in _LOOPBACK
    named = [find(name) for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")]
    certificate, client_certificate, client_key = (path or None for path, _ in named)
    return SignalSettings(
        signal=signal,
        url=url,
        protocol=protocol,
        headers=tuple(sorted(parse_env_headers(find("HEADERS")[0], liberal=True).items())),
        timeout_s=_timeout_s(*find("TIMEOUT")),
        gzip=compression.lower() == "gzip" if compression else not loopback,
        certificate=certificate,
        client_certificate=client_certificate,
        client_key=client_key,
        insecure=urlsplit(url).scheme == "http",
        enabled=_is_for_otlp(exporters_of(environ, signal)),
        is_named=endpoint is not None or bool(find("ENDPOINT")[0]),
        files=tuple((variable, path) for path, variable in named if path),
    )


def _protocol(text: str, variable: str) -> Protocol:
    try:
        return Protocol(text.lower() or Protocol.HTTP)
    except ValueError as exc:
        raise ConfigError(
            f"{variable}: must be http/protobuf or grpc (got {text!r}).",
            hint="Every OTLP receiver takes http/protobuf.",
        ) from exc


def _url(
    signal: Signal,
    protocol: Protocol,
    environ: Mapping[str, str],
    endpoint: str | None,
    *,
    insecure: bool,
) -> str:
    own_variable = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
    own = environ.get(own_variable, "").strip()
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    if endpoint is not None:
        where, url, is_base = "endpoint", endpoint, True
    elif own:
        where, url, is_base = own_variable, own, False
    elif base:
        where, url, is_base = "OTEL_EXPORTER_OTLP_ENDPOINT", base, True
    else:
        port = 4317 if protocol is Protocol.GRPC else 4318
        where, url, is_base = "endpoint", f"http://localhost:{port}", True
    if protocol is Protocol.GRPC:
        return _grpc_url(where, url, insecure=insecure)
    _check_url(where, url)
    return f"{url.rstrip('/')}/v1/{signal}" if is_base else url


def _grpc_url(where: str, url: str, *, insecure: bool) -> str:
    """GRPC endpoints may lack a scheme; ``OTEL_EXPORTER_OTLP_INSECURE`` then decides."""
    if "://" not in url:
        url = f"{'http' if insecure else 'https'}://{url}"
    _check_url(where, url)
    return url


def _check_url(where: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f"{where}: must be an http or https URL (got {redacted(url)!r}).", hint=_URL_HINT
        )


def _timeout_s(text: str, variable: str) -> float:
    """Seconds, as the Python SDK reads the variable (the specification says milliseconds)."""
    try:
        timeout_s = float(text) if text else DEFAULT_TIMEOUT_S
    except ValueError:
        timeout_s = 0
    if not 0 < timeout_s < float("inf"):
        raise ConfigError(
            f"{variable}: must be a positive number of seconds (got {text!r}).",
            hint="Correct or unset it.",
        )
    return timeout_s


def _trace_steps(environ: Mapping[str, str]) -> float | None:
    text = environ.get("OTEL_RL_TRACE_STEPS", "").strip()
    if not text:
        return None if environ.get("OTEL_TRACES_SAMPLER", "").strip() else 1.0
    try:
        share = float(text)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise ConfigError(
            f"OTEL_RL_TRACE_STEPS: must be a number from 0 to 1 (got {text!r}).",
            hint="0.1 keeps the spans of one step in ten. Leave it out for all.",
        )
    return share


def _interval_s(environ: Mapping[str, str], given: object) -> float:
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < 1e9:
            raise ConfigError(
                f"export_interval_s: must be a positive number of seconds (got {given!r}).",
                hint="Leave it out for 1 second.",
            )
        return float(given)
    return _milliseconds(environ, "OTEL_METRIC_EXPORT_INTERVAL", DEFAULT_INTERVAL_S)


def _milliseconds(environ: Mapping[str, str], variable: str, default_s: float) -> float:
    """Seconds, from a variable that says milliseconds."""
    text = environ.get(variable, "").strip()
    if not text:
        return default_s
    try:
        interval_s = float(text) / 1000
    except ValueError:
        interval_s = 0
    if not 0 < interval_s < 1e9:
        raise ConfigError(
            f"{variable}: must be a positive number of milliseconds (got {text!r}).",
            hint="Correct or unset it.",
        )
    return interval_s


def _span_capacity(environ: Mapping[str, str]) -> int:
    text = environ.get("OTEL_BSP_MAX_QUEUE_SIZE", "").strip()
    if not text:
        return DEFAULT_SPAN_CAPACITY
    try:
        capacity = int(text)
    except ValueError:
        capacity = 0
    if capacity < 1:
        raise ConfigError(
            f"OTEL_BSP_MAX_QUEUE_SIZE: must be a positive number of spans (got {text!r}).",
            hint="Correct or unset it.",
        )
    return capacity
