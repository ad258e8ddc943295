"""Standard OTel variables that make a command, and all its children, report to a bridge."""

import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final
from urllib.parse import quote

from otel_rl.bridge.config import BridgeSettings
from otel_rl.cli.run_names import NAMES, RunNames, variable_of
from otel_rl.integrations.automatic import DIRECTORY
from otel_rl.records import Signal
from otel_rl.semconv import names as semconv
from otel_rl.setting_types import fields_of
from otel_rl.worker.identity import parse_resource_attributes
from otel_rl.worker.settings import (
    CONFIG_FILES,
    DEFAULT_EXPERIMENT,
    ENDPOINT,
    LAUNCH,
    PROTOCOL,
    TABLE,
    TYPED,
    Protocol,
    exporters_beside_otlp,
    exporters_of,
    is_disabled,
)

_SWITCH: Final = "OTEL_RL_ADAPTERS"
_PATH: Final = "PYTHONPATH"

_PREFIX: Final = "OTEL_RL_"
_BRIDGE: Final = "BRIDGE"  # before the two underscores of a setting, which are checked elsewhere

_ALIKE: Final = 0.75  # TRAIL and TRIAL: 0.8

_HEADERS: Final = "OTEL_EXPORTER_OTLP_HEADERS"
_METRICS_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"

# Always replaced: they would divert measurements from the bridge, or drop some.
_REPLACED: Final = tuple(entry.variable for entry in TABLE if entry.is_replaced)

# The others are of a sweep, and of a worker, that have started the command.
_REMOVED: Final = (_METRICS_ENDPOINT, *(one.variable for one in TABLE if one.run is None))


def _prefix(signal: Signal) -> str:
    return f"OTEL_EXPORTER_OTLP_{signal.upper()}_"


def wants_grpc(base: Mapping[str, str]) -> bool:
    return base.get(PROTOCOL, "").strip().lower() == Protocol.GRPC


def reporting_environment(
    base: Mapping[str, str],
    *,
    http: str,
    names: RunNames,
    grpc: str | None = None,
    prefers_grpc: bool = False,
    token: str = "",
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
        token: Of the bridge; empty if it needs none. It goes to no other endpoint.
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
        ENDPOINT: f"http://{grpc if common is Protocol.GRPC else http}",
        PROTOCOL: common.value,
        "OTEL_RESOURCE_ATTRIBUTES": ",".join(
            f"{name}={quote(value, safe='')}" for name, value in resource.items()
        ),
        **{
            one.variable: one.run if one.is_replaced else base.get(one.variable, one.run)
            for one in TABLE
            if one.run
        },
        **{variable_of(name): text for name, text in {**names.known, **names.typed}.items()},
        LAUNCH: names.launch,
        DEFAULT_EXPERIMENT: names.default_experiment,
    }
    if names.typed:
        environment[TYPED] = ",".join(name for name in NAMES if name in names.typed)
    if token:
        _authorize(environment, token)
    _point_signals(environment, base, common, http=http, grpc=grpc, prefers_grpc=prefers_grpc)
    return environment


def _authorize(environment: dict[str, str], token: str) -> None:
    """Add a token to the headers of the signals without an endpoint of their own."""
    prefixes = {*map(_prefix, Signal)}
    ours = {prefix for prefix in prefixes if not environment.get(f"{prefix}ENDPOINT")}
    common = environment.get(_HEADERS, "")
    for prefix in ours:
        own = environment.get(f"{prefix}HEADERS", "")
        if own or ours != prefixes:
            environment[f"{prefix}HEADERS"] = _with_token(own or common, token)
    if ours == prefixes:
        environment[_HEADERS] = _with_token(common, token)


def _with_token(headers: str, token: str) -> str:
    others = [one for one in headers.split(",") if one.strip() and not _authorizes(one)]
    return ",".join([*others, f"authorization=Bearer%20{quote(token, safe='')}"])


def _authorizes(header: str) -> bool:
    return header.partition("=")[0].strip().lower() == "authorization"


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
        prefix = _prefix(signal)
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
    lost = [
        name
        for name in (
            _HEADERS,
            *(f"{_prefix(signal)}HEADERS" for signal in Signal),
        )
        if any(map(_authorizes, base.get(name, "").split(","))) and environment[name] != base[name]
    ]
    if lost:
        yield (
            f"of your environment, the authorization in {', '.join(lost)} is replaced for CMD by "
            "the token of this run; your other headers are kept"
        )
    if is_disabled(base):
        yield "OTEL_SDK_DISABLED=true: CMD records nothing, and nothing of it is in this run"
        return
    yield from exporters_beside_otlp(base, with_none=True)
    for variable in CONFIG_FILES:
        if path := base.get(variable, "").strip():
            yield from _notes_on_file(variable, path, wants_token=_HEADERS in environment)


def misspelt(base: Mapping[str, str]) -> Iterator[str]:
    """Yield a note for each variable that is none, but nearly one."""
    of_table = {one.variable for one in TABLE}
    typed = [one.variable.removeprefix(_PREFIX) for one in TABLE if not one.is_internal]
    for name in sorted({*base} - of_table):
        first, sep, rest = name.removeprefix(_PREFIX).partition("__")
        if not name.startswith(_PREFIX) or (sep and first == _BRIDGE):
            continue
        near = get_close_matches(first, [_BRIDGE] if sep else typed, 1, _ALIKE)
        if first.lower() in fields_of(BridgeSettings):
            near = [f"{_BRIDGE}__{first}"]
        if near:
            yield f"{name} has no effect: did you mean {_PREFIX}{near[0]}{sep}{rest}?"


def _is(found: list[str]) -> str:
    return "is" if len(found) == 1 else "are"


def _notes_on_file(variable: str, path: str, *, wants_token: bool) -> Iterator[str]:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        yield f"{variable}: {path}: {exc.strerror}"
        return
    missing: list[str] = []
    if not _substitutes(text, ENDPOINT):
        missing.append("endpoint: ${OTEL_EXPORTER_OTLP_ENDPOINT}/v1/metrics to its otlp_http")
    if wants_token and not _substitutes(text, _HEADERS):
        missing.append("headers_list: ${OTEL_EXPORTER_OTLP_HEADERS} to its otlp_http")
    names_experiment = semconv.RL_EXPERIMENT_NAME in text
    if not (names_experiment or _substitutes(text, "OTEL_RESOURCE_ATTRIBUTES")):
        missing.append("attributes_list: ${OTEL_RESOURCE_ATTRIBUTES} to its resource")
    if missing:
        yield (
            f"{variable}: an SDK that is configured by {path} reads nothing else of its "
            f"environment. To have it in this run, add {' and '.join(missing)}"
        )


def _substitutes(text: str, variable: str) -> bool:
    return re.search(rf"\$\{{(?:env:)?{variable}(?::-[^}}]*)?\}}", text) is not None


def adapter_environment(base: Mapping[str, str], *, is_wanted: bool) -> dict[str, str]:
    """Return the variables to add to ``base`` so that Python loads adapters at its start.

    Args:
        base: The environment so far. ``OTEL_RL_ADAPTERS=off`` in it disables them.
        is_wanted: Whether adapters are enabled on the command line.
    """
    if not is_wanted or base.get(_SWITCH, "auto").strip().lower() != "auto":
        return {_SWITCH: "off"}
    # An empty entry would be the working directory.
    paths = [str(DIRECTORY), *filter(None, [base.get(_PATH)])]
    return {_SWITCH: "auto", _PATH: os.pathsep.join(paths)}
