"""How well a step used its processes: what they did meanwhile, and what limited it.

    trainer      [ bubble ......][ busy ......]      bubble: a phase in which it waits for others
    generator-0  [ busy ....] idle  [ busy ...]      idle: in no phase at all
    overlap                         [.........]      samples are made and learned from

Roles and phases may be called anything: what counts is the class of a phase, and the stage of the
pipeline that it is of.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from otel_rl.diagnose.activity import STANDSTILL, Activity, Process, Stretch
from otel_rl.diagnose.critical_path import IDLE, Segment
from otel_rl.diagnose.forest import ByEnd, Forest
from otel_rl.diagnose.slack import slack_of_roles
from otel_rl.diagnose.stages import stage_of
from otel_rl.records import SpanRecord
from otel_rl.semconv.names import RlStageValues

__all__ = ["Observer", "RoleHealth", "StepHealth", "Straggler"]

_Times = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Straggler:
    """The worker of a role that a step has lost most by.

    Attributes:
        worker: Unique to the process.
        phase: In which it was slow.
        excess_ns: Time that it took more than its peers would have for the same pieces of work.
    """

    worker: str
    phase: str
    excess_ns: int


@dataclass(frozen=True, slots=True)
class RoleHealth:
    """What the workers of one role did in a step. Their times add up to the step's for each.

    Attributes:
        workers: How many lived in it.
        busy_ns: Of all of them, doing something themselves.
        bubble_ns: Of all of them, waiting for others.
        idle_ns: Of all of them, in no phase, or in one that says so.
        slack_ns: By how much its work could have ended later; None if the step did not need it.
        straggler: None where no worker was slower than the median of its peers.
    """

    workers: int
    busy_ns: int
    bubble_ns: int
    idle_ns: int
    slack_ns: int | None
    straggler: Straggler | None


@dataclass(frozen=True, slots=True)
class StepHealth:
    """How well a step used its processes.

    Attributes:
        took_ns: How long the step took.
        roles: Of each role that lived in it.
        overlap_ns: Time in which samples were made and learned from; None if either is not seen.
        bound_ns: Time of the critical path by stage of the pipeline; it adds up to ``took_ns``.
    """

    took_ns: int
    roles: Mapping[str, RoleHealth]
    overlap_ns: int | None
    bound_ns: Mapping[str, int]

    @property
    def bound(self) -> str:
        """The stage that has most of the critical path."""
        stages = [(took_ns, stage) for stage, took_ns in self.bound_ns.items()]
        return max(stages, default=(0, str(RlStageValues.IDLE)))[1]

    @property
    def efficiency(self) -> float | None:
        """Effective over ideal throughput; None of a step that took no time."""
        return self.ideal_ns / self.took_ns if self.took_ns else None

    @property
    def ideal_ns(self) -> float:
        """How long the step would have taken had all worked at once, each role evenly."""
        return max((role.busy_ns / role.workers for role in self.roles.values()), default=0.0)


class Observer:
    """Judges steps by the spans of all processes.

    Args:
        forest: Of them, by clocks that agree.
        activity: What they did, over all steps that are to be judged.
    """

    def __init__(self, forest: Forest, activity: Activity) -> None:
        self._forest = forest
        self.activity = activity
        """As given."""
        self._pieces = ByEnd(
            span
            for span in forest.spans
            if activity.start_ns < span.end_ns <= activity.end_ns
            if span.phase and span.phase_class not in STANDSTILL and span.phase != IDLE
        )

    def judge(self, root: SpanRecord, path: Sequence[Segment]) -> StepHealth:
        """How well a step used its processes.

        Args:
            root: The step, of the rank that was last.
            path: Its critical path.
        """
        took_ns = root.end_ns - root.start_ns
        meanwhile = self.activity.within(root.start_ns, root.end_ns)
        processes: dict[str, list[Sequence[Stretch]]] = defaultdict(list)
        for process, stretches in meanwhile.items():
            processes[process.role].append(stretches)
        slack_ns = slack_of_roles(self._forest, root, path)
        stragglers = self._stragglers(root)
        roles = {
            role: _role(some, took_ns, slack_ns.get(role), stragglers.get(role))
            for role, some in processes.items()
        }
        bound_ns: dict[str, int] = defaultdict(int)
        for segment in path:
            stage = stage_of(segment.role, segment.phase, root.role)
            bound_ns[stage] += segment.end_ns - segment.start_ns
        return StepHealth(took_ns, roles, _overlap(meanwhile, root.role), dict(bound_ns))

    def _stragglers(self, root: SpanRecord) -> Mapping[str, Straggler]:
        """The worst of each role, by the pieces of work that ended in the step."""
        pieces: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for span in self._pieces.between(root.start_ns, root.end_ns):
            pieces[span.role, span.phase][span.worker].append(self._own_ns(span))
        worst: dict[str, Straggler] = {}
        for (role, phase), of_workers in pieces.items():
            for straggler in _excesses(phase, of_workers):
                known = worst.get(role)
                if known is None or straggler.excess_ns > known.excess_ns:
                    worst[role] = straggler
        return worst

    def _own_ns(self, span: SpanRecord) -> int:
        """Without the time of phases within it."""
        within_ns = sum(
            child.end_ns - child.start_ns
            for child in self._forest.children(span, span.end_ns)
            if child.phase and child.worker == span.worker
        )
        return max(0, span.end_ns - span.start_ns - within_ns)


def _role(
    processes: Iterable[Sequence[Stretch]],
    took_ns: int,
    slack_ns: int | None,
    straggler: Straggler | None,
) -> RoleHealth:
    workers = busy_ns = bubble_ns = 0
    for stretches in processes:
        workers += 1
        for stretch in stretches:
            if stretch.phase == IDLE:
                continue
            if stretch.is_standstill:
                bubble_ns += stretch.end_ns - stretch.start_ns
            else:
                busy_ns += stretch.end_ns - stretch.start_ns
    idle_ns = workers * took_ns - busy_ns - bubble_ns
    return RoleHealth(workers, busy_ns, bubble_ns, idle_ns, slack_ns, straggler)


def _excesses(phase: str, of_workers: Mapping[str, Sequence[int]]) -> Iterator[Straggler]:
    """Of each worker that is slower than the median of the others."""
    if len(of_workers) < 2:
        return
    mean_ns = {worker: sum(own) // len(own) for worker, own in of_workers.items()}
    ordered = sorted(mean_ns.values())
    for worker, own_ns in mean_ns.items():
        peers_ns = _median_without(ordered, bisect_left(ordered, own_ns))
        if own_ns > peers_ns:
            yield Straggler(worker, phase, (own_ns - peers_ns) * len(of_workers[worker]))


def _median_without(ordered: Sequence[int], place: int) -> int:
    """The median of all but one, rounded down; without putting the others in order again."""
    low, high = (len(ordered) - 2) // 2, (len(ordered) - 1) // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) // 2


def _overlap(meanwhile: Mapping[Process, Sequence[Stretch]], stepping_role: str) -> int | None:
    making: list[tuple[int, int]] = []
    learning: list[tuple[int, int]] = []
    for process, stretches in meanwhile.items():
        for stretch in stretches:
            if stretch.is_standstill:
                continue
            stage = stage_of(process.role, stretch.phase, stepping_role)
            if stage == RlStageValues.GENERATOR:
                making.append((stretch.start_ns, stretch.end_ns))
            elif stage == RlStageValues.TRAINER:
                learning.append((stretch.start_ns, stretch.end_ns))
    if not making or not learning:
        return None
    return _common_ns(_united(making), _united(learning))


def _united(times: list[tuple[int, int]]) -> _Times:
    """Any of them, as times that do not touch."""
    times.sort()
    united: list[tuple[int, int]] = []
    for start_ns, end_ns in times:
        if united and start_ns <= united[-1][1]:
            united[-1] = united[-1][0], max(united[-1][1], end_ns)
        else:
            united.append((start_ns, end_ns))
    return united


def _common_ns(some: _Times, others: _Times) -> int:
    place = other = common_ns = 0
    while place < len(some) and other < len(others):
        (start_ns, end_ns), (other_start_ns, other_end_ns) = some[place], others[other]
        common_ns += max(0, min(end_ns, other_end_ns) - max(start_ns, other_start_ns))
        if end_ns <= other_end_ns:
            place += 1
        else:
            other += 1
    return common_ns
