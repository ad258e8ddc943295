"""One run: drawn from a scenario and a seed, simulated, replayed to a bridge, looked at."""

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from exams.second.program import Program, System, drawn
from exams.second.scenario import ONE, Answer, Scenario
from exams.second.sdk.exporter import Exporter
from exams.second.systems import agents, asynchronous, lockstep
from exams.second.systems.world import Record, World
from exams.second.trouble import (
    CANNOT_TELL,
    Expected,
    Shape,
    Trouble,
    Troubles,
    What,
    at_steps,
)
from otel_rl.records import Signal

_LAG_S: Final = 0.2  # from an export to the bridge
_START: Final = {
    System.LOCKSTEP: lockstep.start,
    System.ASYNC: asynchronous.start,
    System.AGENTS: agents.start,
}
_SHARES: Final = {"reward": 0.12, "weight_sync": 0.06, "weight_push": 0.05, "reference": 0.07}
# What is wrong between roles, or with the policy, which all have.
_OF_NO_ROLE: Final = frozenset(
    {
        *(What.WIRE, What.DRY, What.CRAMPED, What.AGEING, What.LINK, What.STEAL),
        *(What.REWARD_FALL, What.REWARD_CONSTANT, What.REWARD_JUMP, What.ENTROPY, What.KL),
        *(What.GAP, What.HACK, What.DEAD),
    }
)
_SEEN: Final = 0.3  # of a step: what a slow phase adds at least


@dataclass(frozen=True, slots=True)
class Run:
    """A drawn run and what is right to say of it."""

    scenario: Scenario
    program: Program
    troubles: Sequence[Trouble]
    expected: Sequence[Expected]

    @property
    def onset(self) -> int | None:
        steps = [one.step for one in self.troubles if one.step]
        return min(steps) if steps and self.expected else None


def draw(scenario: Scenario, seed: int) -> Run:
    """Draw the program and the sizes of the troubles."""
    text = f"{seed} {scenario.name}"
    chance = random.Random(text)
    program = drawn(chance, scenario.system, scenario.needs, text)
    troubles, expected = [], []
    for raw, answer in scenario.troubles:
        one = at_steps(_sized(chance, raw, program), program.steps)
        troubles.append(one)
        if answer is not None:
            expected.append(_expected(one, answer, program))
    return Run(scenario, program, troubles, expected)


def _expected(one: Trouble, answer: Answer, program: Program) -> Expected:
    """Return the right answer, less what this program's data cannot show."""
    how, kinds = program.telemetry, answer.kinds
    index = one.index if answer.names_worker else None
    if one.what is What.HANG and not how.is_ours:
        kinds |= {CANNOT_TELL}  # the silence of a plain SDK is the same when all have ended
        if not how.spans or (one.phase == "train" and not how.names_waits):
            index = None
        elif index is not None:
            kinds |= {"crash"}  # of the worker that fell silent first: it may as well be dead
    step = program.told(one.step) if answer.has_onset else None
    has_role = index is not None or not (one.what in _OF_NO_ROLE or _is_unseen(one, program))
    role = one.role if has_role else ""
    return Expected(kinds, role, index, step)


def _is_unseen(one: Trouble, program: Program) -> bool:
    """Return whether only those who wait for a role tell its time."""
    is_lockstep = program.system is System.LOCKSTEP
    return is_lockstep and one.phase == "reward" and not program.telemetry.spans


def _sized(chance: random.Random, one: Trouble, program: Program) -> Trouble:
    index = one.index
    if index == ONE:
        index = chance.randrange(program.sizes[one.role])
    size = one.size
    if not size:
        least = 1 + max(0.5, 6 * program.noise)
        if one.what in (What.SLOW, What.HEAT):
            least = max(least, 1 + _SEEN / _SHARES.get(one.phase, 1.0))
            if program.system is System.ASYNC and one.phase in ("train", "reward"):
                least = max(least, 2.2 if one.phase == "train" else 4.0)
            if one.phase == "weight_push":
                least = 1 + (least - 1) * program.pushes
            size = least * chance.uniform(1.0, 1.8)
        else:
            size = {
                What.THRASH: chance.uniform(0.7, 1.6),
                What.GC: chance.uniform(0.5, 1.2),
                What.WIRE: chance.uniform(0.3, 0.8),
                What.STEAL: least * chance.uniform(1.2, 1.8),
                What.NIC: chance.uniform(8.0, 14.0),
                What.LINK: chance.uniform(4.0, 8.0),
                What.UNEVEN: chance.uniform(1.8, 2.8),
                What.GAP: chance.uniform(4.0, 12.0),
            }.get(one.what, 0.0)
    begins = one.begins
    if begins and one.shape is not Shape.PASSING:
        begins = min(0.75, max(0.25, begins + chance.uniform(-0.1, 0.1)))
    return replace(one, index=index, size=size, begins=begins)


def simulate(run: Run) -> World:
    """Let the run happen."""
    world = World(run.program, Troubles(run.troubles, run.program.seed))
    _START[run.program.system](world)
    world.kernel.run(lambda: world.ends_s)
    if math.isinf(world.ends_s):  # everybody waits for somebody
        world.stop_soon()
    return world


def requests(run: Run, world: World) -> Iterator[tuple[float, Sequence[tuple[Signal, bytes]]]]:
    """Yield the requests that arrive, with their time in seconds, in order."""
    exporters: dict[tuple[str, int, int], Exporter] = {}
    every_s = run.program.telemetry.every_s
    records = iter(sorted(world.records, key=lambda record: record.at_s))
    following = next(records, None)
    for tick in range(1, math.ceil(world.ends_s / every_s) + 2):
        at_s = tick * every_s
        recorded: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
        while following is not None and following.at_s <= at_s:
            recorded[following.role, following.index, following.life].append(following)
            following = next(records, None)
        for who in recorded:
            if who not in exporters:
                skew_s = _skew_s(world, who)
                exporters[who] = Exporter(run.program, who, skew_s, recorded[who][0].at_s)
        yield at_s + _LAG_S, _export(exporters, recorded, at_s)


def _skew_s(world: World, who: tuple[str, int, int]) -> float:
    skews = [one for one in world.troubles.of(What.SKEW) if one.meets(who[0], who[1])]
    return sum(one.size for one in skews)


def _export(exporters: dict[tuple[str, int, int], Exporter],
            recorded: dict[tuple[str, int, int], list[Record]],
            at_s: float) -> Sequence[tuple[Signal, bytes]]:  # fmt: skip
    metrics, spans = ExportMetricsServiceRequest(), ExportTraceServiceRequest()
    logs = ExportLogsServiceRequest()
    for who, exporter in list(exporters.items()):
        exporter.export(recorded.get(who, []), at_s, metrics, spans, logs)
        if exporter.is_gone:
            del exporters[who]
    arrived: list[tuple[Signal, bytes]] = []
    if spans.resource_spans:
        arrived.append((Signal.TRACES, spans.SerializeToString()))
    if metrics.resource_metrics:
        arrived.append((Signal.METRICS, metrics.SerializeToString()))
    if logs.resource_logs:
        arrived.append((Signal.LOGS, logs.SerializeToString()))
    return arrived
