"""What decided how long a step took, and how well it used its processes, by tracker key."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final, NamedTuple

from otel_rl.bridge.keys import tracker_key
from otel_rl.diagnose.activity import Activity, Process, Stretch
from otel_rl.diagnose.clocks import estimate_clocks, with_one_clock
from otel_rl.diagnose.critical_path import IDLE, Segment, critical_path
from otel_rl.diagnose.forest import UNACCOUNTED, Forest
from otel_rl.diagnose.health import Observer, RoleHealth, StepHealth
from otel_rl.records import SpanRecord
from otel_rl.semconv import names
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["MAX_PLACES", "MAX_WORKERS", "Explained", "HostClock", "Place", "explain"]

MAX_PLACES: Final = 512
"""Pairs of role and phase in the rows of one experiment: a span's name may hold anything, an id for
example, and each pair is a key of the run."""

MAX_WORKERS: Final = 64
"""Of one role and phase in ``Explained.busy``."""

_NS_PER_S: Final = 1_000_000_000

_OTHER: Final = "other"

# Whom ``rl.health.straggler.excess`` is about.
_STRAGGLER: Final = "rl.health.straggler.worker"

Place = tuple[str, str, str]
"""Role, phase, and the instance of the worker."""


class HostClock(NamedTuple):
    """A clock that was corrected.

    Attributes:
        host: Whose.
        ahead_ns: By how much it is ahead of the clock of the step; negative if behind.
        worker: The instance of a worker there.
    """

    host: str
    ahead_ns: int
    worker: str


@dataclass(frozen=True, slots=True)
class Explained:
    """What decided how long a step took.

    Attributes:
        step: Which.
        time_ns: Its end, of the rank that was last.
        values: Tracker key to seconds; their sum is how long it took.
        trace_id: Of the step, in hexadecimal digits.
        worker: The instance that took most of it.
        longest: ``<role>/<phase>`` that took most of it.
        path: (role, phase, instance) to seconds on the critical path.
        busy: (role, phase, instance) to seconds of the step's time, waits included. Of each role
            and phase no more than ``MAX_WORKERS``, those that took longest.
        clocks: Of hosts whose clocks differ from that of the step.
        health: Tracker key to how well the step used its processes.
        bound: The stage of the pipeline that has most of the critical path.
        stragglers: Tracker key to the instance of a role that the step has lost most by.
        missed: Instances of workers that may have taken part with spans that never arrived.
    """

    step: int
    time_ns: int
    values: dict[str, float]
    trace_id: str
    worker: str
    longest: str
    path: Mapping[Place, float]
    busy: Mapping[Place, float]
    clocks: Sequence[HostClock]
    health: Mapping[str, float]
    bound: str
    stragglers: Mapping[str, str]
    missed: Sequence[str] = ()


def explain(
    spans: Mapping[bytes, SpanRecord],
    role: str,
    steps: Iterable[int],
    places: set[tuple[str, str]],
    missed: Mapping[str, tuple[int, int]],
) -> Iterator[Explained]:
    """What decided how long some steps of a role took, in the order of their numbers.

    All spans are put in order at once, and each step is explained when it is asked for, from the
    spans as they were.

    Args:
        spans: All that are known, by their ids.
        role: Whose steps these are.
        steps: Their numbers; those that no span tells of are left out.
        places: Roles and phases that rows have named; new ones are put in.
        missed: Instances of workers whose last spans may never arrive, and from when to when they
            may have made some.
    """
    roots: dict[int, list[SpanRecord]] = defaultdict(list)
    wanted = set(steps)
    if not wanted:
        return iter(())
    for span in spans.values():
        if span.name == STEP_SPAN and span.role == role and span.step in wanted:
            roots[span.step].append(span)
    if not roots:  # they had to make room
        return iter(())
    forest = Forest(spans.values())
    reference = min((root.worker, root.host) for of in roots.values() for root in of)[1]
    clocks = estimate_clocks(forest, reference)
    ahead_ns = {host: clock.ahead_ns for host, clock in clocks.items() if clock.ahead_ns}
    if ahead_ns:
        forest = Forest(with_one_clock(spans.values(), clocks))
    last_of = {}
    for step in sorted(roots):
        ranks = [forest.get(root.span_id) or root for root in roots[step]]
        last_of[step] = max(ranks, key=lambda root: root.end_ns)
    start_ns = min(root.start_ns for root in last_of.values())
    end_ns = max(root.end_ns for root in last_of.values())
    observer = Observer(forest, Activity(forest, start_ns, end_ns))
    host_clocks = list(_host_clocks(ahead_ns, forest))
    gaps = _gaps(forest, missed)
    explainer = _Explainer(forest, observer, host_clocks, places, gaps)
    return (explainer.explained(step, root) for step, root in last_of.items())


class _Explainer:
    """Explains steps by one forest."""

    def __init__(
        self,
        forest: Forest,
        observer: Observer,
        clocks: Sequence[HostClock],
        places: set[tuple[str, str]],
        gaps: Mapping[str, tuple[int, int]],
    ) -> None:
        self._forest = forest
        self._observer = observer
        self._clocks = clocks
        self._places = places
        self._gaps = gaps

    def explained(self, step: int, root: SpanRecord) -> Explained:
        """The step, by the rank that was last."""
        segments = critical_path(self._forest, root)
        path_ns = self._path_ns(segments)
        took_ns: dict[tuple[str, str], int] = defaultdict(int)
        of_workers: dict[str, int] = defaultdict(int)
        for (role, phase, worker), part_ns in path_ns.items():
            took_ns[role, phase] += part_ns
            of_workers[worker] += part_ns
        nothing = root.role, UNACCOUNTED
        longest = max(took_ns, key=lambda place: took_ns[place], default=nothing)
        health = self._observer.judge(root, segments)
        return Explained(
            step=step,
            time_ns=root.end_ns,
            values={_key(*place): part_ns / _NS_PER_S for place, part_ns in took_ns.items()},
            trace_id=root.span_id[:16].hex(),
            worker=max(of_workers, key=of_workers.__getitem__, default=root.worker),
            longest="/".join(longest),
            path={place: part_ns / _NS_PER_S for place, part_ns in path_ns.items()},
            busy=_busy(self._observer.activity.within(root.start_ns, root.end_ns)),
            clocks=self._clocks,
            health=dict(self._health(health, root.role)),
            bound=health.bound,
            stragglers={
                tracker_key(role, _STRAGGLER): of.straggler.worker
                for role, of in self._named(health.roles)
                if of.straggler is not None
            },
            missed=[
                worker
                for worker, (start_ns, end_ns) in self._gaps.items()
                if start_ns < root.end_ns and root.start_ns < end_ns
            ],
        )

    def _path_ns(self, segments: Iterable[Segment]) -> Mapping[Place, int]:
        took_ns: dict[Place, int] = defaultdict(int)
        for segment in segments:
            place = *self._place(segment.role, segment.phase), segment.worker
            took_ns[place] += segment.end_ns - segment.start_ns
        return took_ns

    def _health(self, health: StepHealth, stepping_role: str) -> Iterator[tuple[str, float]]:
        """By tracker key."""
        for role, of in self._named(health.roles):
            yield tracker_key(role, names.RL_HEALTH_BUSY), of.busy_ns / of.workers / _NS_PER_S
            yield tracker_key(role, names.RL_HEALTH_BUBBLE), of.bubble_ns / of.workers / _NS_PER_S
            yield tracker_key(role, names.RL_HEALTH_IDLE), of.idle_ns / of.workers / _NS_PER_S
            if of.slack_ns is not None:
                yield tracker_key(role, names.RL_HEALTH_SLACK), of.slack_ns / _NS_PER_S
            if of.straggler is not None:
                excess_s = of.straggler.excess_ns / _NS_PER_S
                yield tracker_key(role, names.RL_HEALTH_STRAGGLER_EXCESS), excess_s
        for stage in names.RlStageValues:
            share = health.bound_ns.get(stage, 0) / (health.took_ns or 1)
            key = tracker_key(stepping_role, names.RL_HEALTH_BOUND, [(names.RL_STAGE, stage)])
            yield key, share
        if health.overlap_ns is not None:
            overlap_s = health.overlap_ns / _NS_PER_S
            yield tracker_key(stepping_role, names.RL_HEALTH_OVERLAP), overlap_s
        if health.efficiency is not None:
            ideal_s = health.ideal_ns / _NS_PER_S
            yield tracker_key(stepping_role, names.RL_HEALTH_IDEAL), ideal_s
            yield tracker_key(stepping_role, names.RL_HEALTH_EFFICIENCY), health.efficiency

    def _named(self, roles: Mapping[str, RoleHealth]) -> Iterable[tuple[str, RoleHealth]]:
        """As many as rows may name: a role may be called anything, too."""
        for role, of in roles.items():
            if self._place(role, IDLE)[0] == role:
                yield role, of

    def _place(self, role: str, phase: str) -> tuple[str, str]:
        places = self._places
        place = role, phase
        if place not in places:
            if len(places) >= MAX_PLACES:
                return _OTHER, _OTHER
            places.add(place)
        return place


def _gaps(forest: Forest, missed: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Of those that have made spans, the time after the last one that may have had more."""
    newest_ns: dict[str, int] = {}
    if missed:
        for span in forest.spans:
            if span.worker in missed:
                newest_ns[span.worker] = max(span.end_ns, newest_ns.get(span.worker, 0))
    return {
        worker: (max(last_ns, missed[worker][0]), missed[worker][1])
        for worker, last_ns in newest_ns.items()
    }


def _key(role: str, phase: str) -> str:
    return tracker_key(role, names.RL_CRITICAL_PATH_DURATION, [(names.RL_PHASE, phase)])


def _busy(activity: Mapping[Process, Sequence[Stretch]]) -> dict[Place, float]:
    """Seconds by role, phase and worker, as ``Explained.busy``."""
    of_workers: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for process, stretches in activity.items():
        for stretch in stretches:
            place = process.role, stretch.phase
            of_workers[place][process.worker] += stretch.end_ns - stretch.start_ns
    longest = nlargest(MAX_PLACES, of_workers, key=lambda place: sum(of_workers[place].values()))
    return {
        (*place, worker): of_workers[place][worker] / _NS_PER_S
        for place in longest
        for worker in nlargest(MAX_WORKERS, of_workers[place], key=of_workers[place].__getitem__)
    }


def _host_clocks(ahead_ns: Mapping[str, int], forest: Forest) -> Iterator[HostClock]:
    """With the worker of each host that comes first."""
    if not ahead_ns:
        return
    worker_of: dict[str, str] = {}
    for span in forest.spans:
        if span.host in ahead_ns:
            worker_of[span.host] = min(span.worker, worker_of.get(span.host, span.worker))
    for host in sorted(worker_of):
        yield HostClock(host, ahead_ns[host], worker_of[host])
