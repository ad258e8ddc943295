"""Parts of OTLP messages: attributes, resources, units, clocks."""

from collections.abc import Mapping
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from exams.second.program import Program

BEGIN_NS: Final = 1_790_000_000 * 10**9
STEP: Final = "rl.loop.iteration"


def nanoseconds(at_s: float) -> int:
    """Return a time of the simulation as Unix time."""
    return BEGIN_NS + int(at_s * 1e9)


def pairs(attributes: Mapping[str, str | int | float]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_any(value)) for key, value in attributes.items()]


def _any(value: str | float) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    return AnyValue(double_value=value)


def host_of(role: str, index: int) -> str:
    """Return the host of a worker; some share one."""
    return f"node-{(len(role) + index) % 7}"


def unit_of(name: str) -> str:
    """Return a gauge's unit, where a program would set one."""
    is_time = name.startswith("rl.") and name.endswith((".duration", ".age"))
    return "s" if is_time else ""


def resource_of(program: Program, who: tuple[str, int, int]) -> Resource:
    role, index, life = who
    attributes: dict[str, str | int | float] = {
        "service.name": f"rl.{role}",
        "service.instance.id": f"{role}-{index}-{life}",
        "rl.experiment.name": "second",
        "rl.trial.name": "exam",
        "rl.worker.role": role,
        "rl.worker.index": index,
        "host.name": host_of(role, index),
        "process.pid": 4000 + 40 * index + life,
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
    }
    if program.telemetry.is_ours:
        attributes["telemetry.distro.name"] = "otel_rl"
        if role == "trainer":
            attributes["rl.worker.count"] = program.sizes[role]
    return Resource(attributes=pairs(attributes))
