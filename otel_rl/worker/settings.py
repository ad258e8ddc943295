"""Export settings of a worker from the standard ``OTEL_*`` variables, read once at start. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from otel_rl.errors import ConfigError
from otel_rl.redaction import redacted
from otel_rl.signals import Signal
from otel_rl.worker.gpu import (
    GpuOptions,
    GpuSettings,
    MfuOptions,
    MfuSettings,
    read_gpu_settings,
    read_mfu_settings,
)
from otel_rl.worker.host import HostSettings, read_host_settings

__all__ = [
    "CONFIG",
    "Protocol",
    "ProvenanceDetail",
    "Settings",
    "SignalSettings",
    "exporters_beside_otlp",
    "exporters_of",
    "read_config",
    "read_settings",
]

DEFAULT_INTERVAL_S: Final = 1.0
"""A chart one second old feels live; the SDK's default of a minute does not."""

DEFAULT_SPAN_INTERVAL_S: Final = 1.0
"""Same as for metrics, so that a killed process loses no more spans than measurements. The SDK's
five seconds would save 0.1 % of a core.
"""

DEFAULT_SPAN_CAPACITY: Final = 1 << 14
"""About 30 MB when full; an export starts at a quarter of it."""

DEFAULT_TIMEOUT_S: Final = 10.0
"""OTEL_EXPORTER_OTLP_TIMEOUT's default in the specification."""

DEFAULT_EXIT_TIMEOUT_S: Final = 5.0
"""Maximum time that the end of a process waits for the endpoint."""

DEFAULT_STACK_AFTER_S: Final = 8.0
"""With an export, a window of rows and the delivery it is in the run within 15 s."""

_EXIT_TIMEOUT: Final = "OTEL_RL_EXIT_TIMEOUT"
_STACK_AFTER: Final = "OTEL_RL_STACK_AFTER"

CONFIG: Final = "OTEL_RL_CONFIG"
"""Hyper-parameters of the run, as a JSON object."""

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class ProvenanceDetail(StrEnum):
    """Extent of what a worker reports of its command, code and machine.

    Attributes:
        FULL: Everything.
        COMMAND: Not the difference to the commit, and not the packages.
        OFF: Nothing.
    """

    FULL = "full"
    COMMAND = "command"
    OFF = "off"


class Protocol(StrEnum):
    """OTLP transports that workers support."""

    HTTP = "http/protobuf"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class SignalSettings:
    """Export settings of one signal.

    Attributes:
        signal: The signal.
        url: Target: the full URL for HTTP, scheme and authority for gRPC.
        protocol: Transport.
        headers: Lower-case names. Never logged: they carry credentials.
        timeout_s: For one attempt.
        gzip: True compresses bodies.
        certificate: CA file, or None for the system's.
        client_certificate: For mutual TLS, or None.
        client_key: For mutual TLS, or None.
        insecure: For gRPC: no TLS.
        enabled: False if ``OTEL_{METRICS,TRACES,LOGS}_EXPORTER`` names exporters without OTLP.
        is_named: True if an argument or a variable sets the endpoint; False for the default.
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
        """All settings that distinguish one connection from another."""
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
        """True if the endpoint is this machine: no proxy, and compression gains nothing."""
        return urlsplit(self.url).hostname in _LOOPBACK


@dataclass(frozen=True, slots=True)
class Settings:
    """Export settings of a worker.

    Attributes:
        metrics: See ``SignalSettings``.
        traces: See ``SignalSettings``.
        logs: See ``SignalSettings``. Target of events.
        interval_s: Between two metric exports.
        span_interval_s: Between two span exports.
        span_capacity: Maximum number of spans waiting for the next export.
        disabled: ``OTEL_SDK_DISABLED`` is true: nothing is recorded or sent.
        gpu: GPU sampling of the process.
        trace_steps: Share of all steps whose spans are kept; None if OpenTelemetry's own
            ``OTEL_TRACES_SAMPLER`` decides.
        provenance: Facts of command, code and machine that are sent.
        mfu: What is known for the MFU of steps.
        console: True sends what the process writes to its console.
        stack_after_s: Age from which the stack of a phase that takes too long is sent; 0 for never.
        host: Reports of the host.
        exit_timeout_s: Maximum time that the end of the process waits for the endpoint.
        times_devices: True measures steps and phases on the device, if one is in use.
        config: Hyper-parameters of the run that the environment gives.
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
    provenance: ProvenanceDetail = ProvenanceDetail.FULL
    mfu: MfuSettings = field(default_factory=MfuSettings)
    console: bool = True
    stack_after_s: float = DEFAULT_STACK_AFTER_S
    host: HostSettings = field(default_factory=HostSettings)
    exit_timeout_s: float = DEFAULT_EXIT_TIMEOUT_S
    times_devices: bool = True
    config: Mapping[str, object] = field(default_factory=dict, compare=False)


def read_settings(
    environ: Mapping[str, str],
    *,
    endpoint: str | None = None,
    export_interval_s: float | None = None,
    gpu: bool | GpuOptions | None = None,
    mfu: MfuOptions | None = None,
) -> Settings:
    """Read the environment; arguments take precedence.

    Args:
        environ: The process's environment.
        endpoint: Base URL, as in ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        export_interval_s: Seconds between two exports.
        gpu: GPU sampling, as in ``init``.
        mfu: As in ``init``.

    Raises:
        ConfigError: Names the wrong setting, its value and the remedy.
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
        provenance=_provenance(environ),
        mfu=read_mfu_settings(environ, given=mfu),
        console=_switch(environ, "OTEL_RL_CONSOLE", default=True),
        stack_after_s=_stack_after_s(environ),
        host=read_host_settings(environ),
        exit_timeout_s=_timeout_s(
            environ.get(_EXIT_TIMEOUT, "").strip(), _EXIT_TIMEOUT, DEFAULT_EXIT_TIMEOUT_S
        ),
        times_devices=_switch(environ, "OTEL_RL_DEVICE_CLOCK", default=True),
        config=read_config(environ),
    )


def read_config(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the hyper-parameters that the environment gives the run.

    Raises:
        ConfigError: ``OTEL_RL_CONFIG`` is not a JSON object.
    """
    text = environ.get(CONFIG, "").strip()
    if not text:
        return {}
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ConfigError(
            f"{CONFIG}: must be a JSON object (got {text[:80]!r}).",
            hint="""Set it to {"lr": 3e-6}, for example.""",
        )
    return config


def exporters_of(environ: Mapping[str, str], signal: Signal) -> tuple[str, ...]:
    """Return the exporters in ``OTEL_{METRICS,TRACES,LOGS}_EXPORTER``; empty for the default."""
    names = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").lower().split(",")
    return tuple(name.strip() for name in names if name.strip())


def _is_for_otlp(exporters: tuple[str, ...]) -> bool:
    """Report whether OTLP is among them; Python's SDK also has names for one protocol of it."""
    return not exporters or any(name.startswith("otlp") for name in exporters)


_NOT_SENT: Final = {
    Signal.METRICS: "measurements are not sent over OTLP, and are not in the run",
    Signal.TRACES: "spans are not sent over OTLP, and explain no step of the run",
    Signal.LOGS: "events are not sent over OTLP: config, tags, samples and endings of workers are "
    "not in the run",
}


def exporters_beside_otlp(environ: Mapping[str, str], *, with_none: bool = False) -> Iterator[str]:
    """Yield a line for each signal whose variable names exporters without OTLP.

    Args:
        environ: The process's environment.
        with_none: True also yields a line for an explicit ``none``.
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
    word = signal.upper()  # as in the names of variables

    def find(name: str) -> tuple[str, str]:
        """Return (value, variable) of the signal's own variable, else of the common one."""
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
        headers=_headers(find("HEADERS")[0]),
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
    """Check a gRPC endpoint; without a scheme ``OTEL_EXPORTER_OTLP_INSECURE`` selects it."""
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


def _timeout_s(text: str, variable: str, default_s: float = DEFAULT_TIMEOUT_S) -> float:
    """Parse seconds, as the Python SDK does (the specification defines milliseconds)."""
    try:
        timeout_s = float(text) if text else default_s
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


def _provenance(environ: Mapping[str, str]) -> ProvenanceDetail:
    text = environ.get("OTEL_RL_PROVENANCE", "").strip().lower()
    try:
        return ProvenanceDetail(text) if text else ProvenanceDetail.FULL
    except ValueError:
        raise ConfigError(
            f"OTEL_RL_PROVENANCE: must be full, command or off (got {text!r}).",
            hint="command leaves out the difference to the commit and the packages.",
        ) from None


def _switch(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environ.get(name, "").strip().lower()
    if text not in ("", "on", "off"):
        raise ConfigError(f"{name}: must be on or off (got {text!r}).", hint="Correct or unset it.")
    return text == "on" if text else default


def _stack_after_s(environ: Mapping[str, str]) -> float:
    text = environ.get(_STACK_AFTER, "").strip().lower()
    if text == "off":
        return 0.0
    try:
        after_s = float(text or DEFAULT_STACK_AFTER_S)
    except ValueError:
        after_s = -1.0
    if not 1 <= after_s < 1e6:
        raise ConfigError(
            f"{_STACK_AFTER}: must be seconds from 1 on, or off (got {text!r}).",
            hint="Correct or unset it.",
        )
    return after_s


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
    """Convert a variable in milliseconds to seconds."""
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


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    if not text:
        return ()
    from opentelemetry.util.re import parse_env_headers  # most workers have none

    return tuple(sorted(parse_env_headers(text, liberal=True).items()))
