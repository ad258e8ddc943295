"""Standard OTel variables that make a command, and all its children, report to a bridge."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final
from urllib.parse import quote

from otel_rl.bridge.config import BridgeSettings
from otel_rl.cli.run_names import NAMES, RunNames, variable_of
from otel_rl.records import Signal
from otel_rl.semconv import names as semconv
from otel_rl.worker.identity.names import (
    DEFAULT_EXPERIMENT,
    DEFAULT_TRIAL,
    LAUNCH,
    TYPED,
    parse_resource_attributes,
)
from otel_rl.worker.identity.sweep_trial import SWEEP
from otel_rl.worker.settings import Protocol, exporters_beside_otlp, exporters_of

__all__ = ["VARIABLES", "misspelt", "notes_on", "reporting_environment", "wants_grpc"]

_PREFIX: Final = "OTEL_RL_"
_SETTINGS: Final = "BRIDGE"  # before the two underscores of a setting, which are checked elsewhere

VARIABLES: Final = frozenset(
    [
        "ADAPTERS",
        "ATTACH",
        "CONFIG",
        "CONSOLE",
        "COUNT",
        "DEVICE_CLOCK",
        "EXIT_TIMEOUT",
        "EXPERIMENT",
        "GC",
        "GPU",
        "GPU_DEVICES",
        "GPU_INTERVAL",
        "GPU_ROLES",
        "HOST",
        "HOST_INTERVAL",
        "INDEX",
        "LAUNCH",
        "LOG_LEVEL",
        "MFU_DEVICES",
        "MODEL_FLOPS_PER_TOKEN",
        "NAME",
        "PEAK_FLOPS_PER_S",
        "PROJECT",
        "PROVENANCE",
        "ROLE",
        "STACK_AFTER",
        "SWEEP",
        "TAG",
        "TRACE_STEPS",
        "TRIAL",
    ]
)
"""Every variable of otel_rl that a person sets, without its prefix."""

_ALIKE: Final = 0.75  # TRAIL and TRIAL: 0.8

_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
_METRICS_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"

# Of an SDK that is configured by a file, which ignores the other variables.
_CONFIG_FILES: Final = ("OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE")

# Always replaced: they would divert measurements from the bridge, or drop some.
_REPLACED: Final = (
    _ENDPOINT,
    _PROTOCOL,
    "OTEL_PYTHON_METER_PROVIDER",
    "OTEL_PYTHON_TRACER_PROVIDER",
    "OTEL_METRICS_EXEMPLAR_FILTER",
)

# The others are of a sweep, and of a worker, that have started the command.
_REMOVED: Final = (_METRICS_ENDPOINT, SWEEP, DEFAULT_TRIAL)


def wants_grpc(base: Mapping[str, str]) -> bool:
    """Return whether an environment asks for OTLP over gRPC."""
    return base.get(_PROTOCOL, "").strip().lower() == Protocol.GRPC


def reporting_environment(
    base: Mapping[str, str],
    *,
    http: str,
    names: RunNames,
    grpc: str | None = None,
    prefers_grpc: bool = False,
) -> dict[str, str]:
    """Add the variables that make OpenTelemetry report for a run to a bridge.

    Traces and logs with an endpoint of their own keep it, such as a Jaeger for spans.

    Args:
        base: The environment to start from; its own resource attributes are kept.
        http: ``HOST:PORT`` of the bridge's OTLP/HTTP.
        names: Of the run. Other SDKs read their values only, whoever gave them.
        grpc: ``HOST:PORT`` of the bridge's OTLP/gRPC; None where it does not listen.
        prefers_grpc: Use gRPC for every signal. Otherwise as in ``base``, for all or for one
            signal.
    """
    of_run = {*map(variable_of, NAMES), TYPED}
    environment = {
        name: value for name, value in base.items() if name not in _REMOVED and name not in of_run
    }
    resource = {
        **parse_resource_attributes(base.get("OTEL_RESOURCE_ATTRIBUTES", "")),
        semconv.RL_EXPERIMENT_NAME: names.key.experiment,
        semconv.RL_TRIAL_NAME: names.key.trial,
    }
    if "role" in names.typed:
        resource[semconv.RL_WORKER_ROLE] = names.typed["role"]  # which a stock SDK reads, too
    common = Protocol.GRPC if grpc and (prefers_grpc or wants_grpc(base)) else Protocol.HTTP
    environment |= {
        _ENDPOINT: f"http://{grpc if common is Protocol.GRPC else http}",
        _PROTOCOL: common.value,
        "OTEL_RESOURCE_ATTRIBUTES": ",".join(
            f"{name}={quote(value, safe='')}" for name, value in resource.items()
        ),
        # A program that uses only the OTel API gets its providers from these.
        "OTEL_PYTHON_METER_PROVIDER": "otel_rl",
        "OTEL_PYTHON_TRACER_PROVIDER": "otel_rl",
        # Under opentelemetry-instrument the first distribution found would configure the program,
        # and the package of this command brings one. Ours chooses the configurator.
        "OTEL_PYTHON_DISTRO": base.get("OTEL_PYTHON_DISTRO", "otel_rl"),
        # A stock SDK set up by the program exports as often as ours, not once a minute.
        "OTEL_METRIC_EXPORT_INTERVAL": base.get("OTEL_METRIC_EXPORT_INTERVAL", "1000"),
        "OTEL_METRICS_EXEMPLAR_FILTER": "always_on",
        **{variable_of(name): text for name, text in {**names.known, **names.typed}.items()},
        LAUNCH: names.launch,
        DEFAULT_EXPERIMENT: names.default_experiment,
    }
    if names.typed:
        environment[TYPED] = ",".join(name for name in NAMES if name in names.typed)
    _point_signals(environment, base, common, http=http, grpc=grpc, prefers_grpc=prefers_grpc)
    return environment


def _point_signals(
    environment: dict[str, str],
    base: Mapping[str, str],
    common: Protocol,
    *,
    http: str,
    grpc: str | None,
    prefers_grpc: bool,
) -> None:
    """Add the variables of a signal whose protocol differs from ``common``."""
    for signal in Signal:
        prefix = f"OTEL_EXPORTER_OTLP_{signal.upper()}_"
        if environment.get(f"{prefix}ENDPOINT"):
            continue
        wanted = _protocol(base, signal, None if prefers_grpc else f"{prefix}PROTOCOL", common)
        protocol = wanted if grpc else Protocol.HTTP
        environment.pop(f"{prefix}PROTOCOL", None)
        if protocol is not common or signal is Signal.TRACES:
            # For spans always: vLLM and SGLang read no other variable.
            environment[f"{prefix}PROTOCOL"] = protocol.value
        if protocol is not common:
            environment[f"{prefix}ENDPOINT"] = (
                f"http://{grpc}" if protocol is Protocol.GRPC else f"http://{http}/v1/{signal}"
            )
        if protocol is Protocol.GRPC:
            # The common variable may differ, and belongs to another endpoint, too.
            environment[f"{prefix}INSECURE"] = "true"


def _protocol(
    base: Mapping[str, str], signal: Signal, variable: str | None, common: Protocol
) -> Protocol:
    """Return a signal's protocol: by its exporter's name, its variable or the common one."""
    exporters = exporters_of(base, signal)
    if "otlp_proto_grpc" in exporters:
        return Protocol.GRPC
    if "otlp_proto_http" in exporters:
        return Protocol.HTTP
    own = base.get(variable, "").strip().lower() if variable is not None else ""
    if not own:
        return common
    return Protocol.GRPC if own == Protocol.GRPC else Protocol.HTTP


def notes_on(base: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a note for each variable of the user that is changed or has an unexpected effect.

    Values are left out: an endpoint may hold a password.

    Args:
        base: The user's environment.
        environment: Result of ``reporting_environment``.
    """
    replaced = [
        name
        for name in (*_REPLACED, _METRICS_ENDPOINT)
        if base.get(name, "").strip() and environment.get(name) != base[name]
    ]
    yield from misspelt(base)
    if replaced:
        yield (
            f"of your environment, {', '.join(replaced)} {_is(replaced)} replaced for CMD, so that "
            "what it measures is in this run"
        )
    if base.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        yield "OTEL_SDK_DISABLED=true: CMD records nothing, and nothing of it is in this run"
        return
    yield from exporters_beside_otlp(base, with_none=True)
    for variable in _CONFIG_FILES:
        if path := base.get(variable, "").strip():
            yield from _notes_on_file(variable, path)


def misspelt(base: Mapping[str, str]) -> Iterator[str]:
    """Yield a note for each variable that is none, but nearly one."""
    for name in sorted(base):
        if not name.startswith(_PREFIX):
            continue
        first, sep, rest = name.removeprefix(_PREFIX).partition("__")
        known = {_SETTINGS} if sep else VARIABLES
        if first in known:
            continue
        near = get_close_matches(first, known, 1, _ALIKE)
        if first.lower() in BridgeSettings.model_fields:
            yield _no_effect(name, f"{_SETTINGS}__{first}{sep}{rest}")
        elif near:
            yield _no_effect(name, f"{near[0]}{sep}{rest}")


def _no_effect(name: str, meant: str) -> str:
    return f"{name} has no effect: did you mean {_PREFIX}{meant}?"


def _is(found: list[str]) -> str:
    return "is" if len(found) == 1 else "are"


def _notes_on_file(variable: str, path: str) -> Iterator[str]:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        yield f"{variable}: {path}: {exc.strerror}"
        return
    missing: list[str] = []
    if not _substitutes(text, _ENDPOINT):
        missing.append("endpoint: ${OTEL_EXPORTER_OTLP_ENDPOINT}/v1/metrics to its otlp_http")
    names_experiment = semconv.RL_EXPERIMENT_NAME in text
    if not (names_experiment or _substitutes(text, "OTEL_RESOURCE_ATTRIBUTES")):
        missing.append("attributes_list: ${OTEL_RESOURCE_ATTRIBUTES} to its resource")
    if missing:
        yield (
            f"{variable}: an SDK that is configured by {path} reads nothing else of its "
            f"environment. To have it in this run, add {' and '.join(missing)}"
        )


def _substitutes(text: str, variable: str) -> bool:
    """Return whether a configuration file uses the value of an environment variable."""
    return re.search(rf"\$\{{(?:env:)?{variable}(?::-[^}}]*)?\}}", text) is not None
