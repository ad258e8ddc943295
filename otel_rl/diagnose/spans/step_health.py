"""Use of processes in a step: busy, waiting and idle time, and the step's limiting stage.

    trainer      [ bubble ......][ busy ......]      bubble: a phase in which it waits for others
    generator-0  [ busy ....] idle  [ busy ...]      idle: in no phase at all
    overlap                         [.........]      samples are made and learned from

Roles and phases may have any names: only the class of a phase and its pipeline stage count.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from otel_rl.diagnose.classify import stage_of
from otel_rl.diagnose.spans.activity import STANDSTILL, Activity, Process, Stretch
from otel_rl.diagnose.spans.by_end import ByEnd
from otel_rl.diagnose.spans.critical_path import IDLE, Segment
from otel_rl.diagnose.spans.slack import slack_of_roles
from otel_rl.diagnose.spans.span_forest import Forest
from otel_rl.records import SpanRecord
from otel_rl.semconv.names import RlStageValues

_Times = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Straggler:
    """The worker of a role that cost a step the most.

    Attributes:
        worker: Name of the worker, unique to the process.
        phase: Slow phase of the worker.
        excess_ns: Time beyond that of the worker's peers for the same pieces of work.
    """

    worker: str
    phase: str
    excess_ns: int


@dataclass(frozen=True, slots=True)
class RoleHealth:
    """Times of the workers of one role in a step. Each worker's times add up to the step's.

    Attributes:
        workers: Number of workers that lived in the step.
        busy_ns: Sum of the workers' working time.
        bubble_ns: Sum of the workers' time waiting for others.
        idle_ns: Sum of the workers' time in no phase, or in an idle phase.
        slack_ns: Time by which the role's work could have ended later; None if the step did not
            need it.
        straggler: Worst straggler; None if no worker was slower than the median of its peers.
    """

    workers: int
    busy_ns: int
    bubble_ns: int
    idle_ns: int
    slack_ns: int | None
    straggler: Straggler | None


@dataclass(frozen=True, slots=True)
class StepHealth:
    """Health of a step.

    Attributes:
        took_ns: Duration of the step.
        roles: Health of each role that lived in the step.
        overlap_ns: Time in which samples were both made and trained on; None if either did not
            happen.
        bound_ns: Time of the critical path by stage of the pipeline; it adds up to ``took_ns``.
    """

    took_ns: int
    roles: Mapping[str, RoleHealth]
    overlap_ns: int | None
    bound_ns: Mapping[str, int]

    @property
    def bound(self) -> str:
        """Return the stage with most of the critical path."""
        stages = [(took_ns, stage) for stage, took_ns in self.bound_ns.items()]
        return max(stages, default=(0, str(RlStageValues.IDLE)))[1]

    @property
    def efficiency(self) -> float | None:
        """Return effective over ideal throughput; None for a step of no duration."""
        return self.ideal_ns / self.took_ns if self.took_ns else None

    @property
    def ideal_ns(self) -> float:
        """Return the step's duration if all roles had worked in parallel, each one evenly."""
        return max((role.busy_ns / role.workers for role in self.roles.values()), default=0.0)


class Observer:
    """Computes the health of steps from the spans of all processes.

    Args:
        forest: Spans on one clock.
        activity: Activity of the spans' processes over all steps in question.
    """

    def __init__(self, forest: Forest, activity: Activity) -> None:
        self._forest = forest
        self.activity = activity
        """The argument."""
        self._pieces = ByEnd(
            span
            for span in forest.spans
            if activity.start_ns < span.end_ns <= activity.end_ns
            if span.phase and span.phase_class not in STANDSTILL and span.phase != IDLE
        )

    def judge(self, root: SpanRecord, path: Sequence[Segment]) -> StepHealth:
        """Compute the health of a step.

        Args:
            root: The step's span, of the rank that was last.
            path: Critical path of the step.
        """
        meanwhile = self.activity.within(root.start_ns, root.end_ns)
        return next(one for one in self.judged(root, path, meanwhile) if one is not None)

    def judged(
        self,
        root: SpanRecord,
        path: Sequence[Segment],
        meanwhile: Mapping[Process, Sequence[Stretch]],
    ) -> Iterator[StepHealth | None]:
        """Yield None after each part of the work, then the health of a step.

        Args:
            root: The step's span, of the rank that was last.
            path: Critical path of the step.
            meanwhile: Activity of all processes during the step.
        """
        took_ns = root.end_ns - root.start_ns
        stragglers = self._stragglers(root)
        yield None
        stages = _Stages(root.role)
        overlap_ns = _overlap(meanwhile, stages)
        yield None
        processes: dict[str, list[Sequence[Stretch]]] = defaultdict(list)
        for process, stretches in meanwhile.items():
            processes[process.role].append(stretches)
        slack_ns = slack_of_roles(self._forest, root, path)
        roles = {
            role: _role(some, took_ns, slack_ns.get(role), stragglers.get(role))
            for role, some in processes.items()
        }
        bound_ns: dict[str, int] = defaultdict(int)
        for segment in path:
            stage = stages.of(segment.role, segment.phase)
            bound_ns[stage] += segment.end_ns - segment.start_ns
        yield StepHealth(took_ns, roles, overlap_ns, dict(bound_ns))

    def _stragglers(self, root: SpanRecord) -> Mapping[str, Straggler]:
        """Return the worst straggler of each role, by the pieces of work that ended in the step."""
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
    if len(of_workers) < 2:
        return
    mean_ns = {worker: sum(own) // len(own) for worker, own in of_workers.items()}
    ordered = sorted(mean_ns.values())
    for worker, own_ns in mean_ns.items():
        peers_ns = _median_without(ordered, bisect_left(ordered, own_ns))
        if own_ns > peers_ns:
            yield Straggler(worker, phase, (own_ns - peers_ns) * len(of_workers[worker]))


def _median_without(ordered: Sequence[int], place: int) -> int:
    """Return the median of all but one, rounded down, without sorting the others again."""
    low, high = (len(ordered) - 2) // 2, (len(ordered) - 1) // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) // 2


class _Stages:
    """Stages of the pipeline by role and phase, each computed once, as names are parsed for it.

    Args:
        stepping_role: The role whose steps are the run's.
    """

    def __init__(self, stepping_role: str) -> None:
        self._stepping_role = stepping_role
        self._found: dict[tuple[str, str], str] = {}

    def of(self, role: str, phase: str) -> str:
        place = role, phase
        stage = self._found.get(place)
        if stage is None:
            stage = self._found[place] = stage_of(role, phase, self._stepping_role)
        return stage


def _overlap(meanwhile: Mapping[Process, Sequence[Stretch]], stages: _Stages) -> int | None:
    making: list[tuple[int, int]] = []
    learning: list[tuple[int, int]] = []
    for process, stretches in meanwhile.items():
        for stretch in stretches:
            if stretch.is_standstill:
                continue
            stage = stages.of(process.role, stretch.phase)
            if stage == RlStageValues.GENERATOR:
                making.append((stretch.start_ns, stretch.end_ns))
            elif stage == RlStageValues.TRAINER:
                learning.append((stretch.start_ns, stretch.end_ns))
    if not making or not learning:
        return None
    return _common_ns(_united(making), _united(learning))


def _united(times: list[tuple[int, int]]) -> _Times:
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
