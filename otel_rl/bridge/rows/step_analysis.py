"""Analysis of a step by its spans, for its row: critical path, busy time and health."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final, NamedTuple

from otel_rl.bridge.keys import tracker_key
from otel_rl.diagnose.spans.activity import PART, Activity, Process, Stretch
from otel_rl.diagnose.spans.clocks import estimate_clocks, with_one_clock
from otel_rl.diagnose.spans.critical_path import IDLE, Segment, critical_path
from otel_rl.diagnose.spans.span_forest import UNACCOUNTED, Forest
from otel_rl.diagnose.spans.step_health import Observer, RoleHealth, StepHealth
from otel_rl.records import KeySource, SpanRecord
from otel_rl.semconv import names
from otel_rl.semconv.spec import STEP_SPAN

MAX_PLACES: Final = 512
"""Bound on pairs of role and phase in the rows of one experiment: a span's name may hold anything,
such as an id, and each pair is a key of the run.
"""

MAX_WORKERS: Final = 64
"""Workers of one role and phase in ``StepAnalysis.busy``."""

_NS_PER_S: Final = 1_000_000_000

OTHERS: Final = ("other", "other")
"""Role and phase of all that are beyond the bound."""

# Label with the worker of ``rl.health.straggler.excess``.
_STRAGGLER: Final = "rl.health.straggler.worker"

Place = tuple[str, str, str]
"""Role, phase, and the instance of the worker."""


class HostClock(NamedTuple):
    """Correction of a host's clock.

    Attributes:
        ahead_ns: Nanoseconds by which the clock leads that of the step; negative if it is behind.
        worker: Instance of a worker on the host.
    """

    host: str
    ahead_ns: int
    worker: str


@dataclass(frozen=True, slots=True)
class StepAnalysis:
    """Analysis of a step.

    Attributes:
        time_ns: End of the step, on the last rank.
        values: Tracker key to seconds; the seconds add up to the duration of the step.
        trace_id: Trace of the step, in hexadecimal digits.
        worker: The instance that takes most of the critical path.
        longest: ``<role>/<phase>`` that takes most of the critical path.
        path: (role, phase, instance) to seconds on the critical path.
        busy: (role, phase, instance) to seconds of the step's time, waits included. Each role and
            phase has at most its ``MAX_WORKERS`` longest instances.
        clocks: Hosts whose clocks differ from that of the step.
        health: Tracker key to health value of the step.
        bound: Stage of the pipeline that takes most of the critical path.
        stragglers: Tracker key to the instance of a role that cost the step most time.
        missed: Instances of workers that may have taken part with spans that never arrived.
        sources: Metric of each key.
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
    sources: Mapping[str, KeySource] = field(default_factory=dict)


def explain(
    spans: Mapping[bytes, SpanRecord],
    role: str,
    steps: Iterable[int],
    places: set[tuple[str, str]],
    missed: Mapping[str, tuple[int, int]],
) -> Iterator[StepAnalysis | None]:
    """Analyse steps of a role, in the order of their numbers, from the present spans.

    The iterator is lazy: it yields None after each part of the work that may take some tens of
    milliseconds, and the analyses between them.

    Args:
        spans: All known spans, by their ids.
        steps: Numbers of the steps; steps without spans are left out.
        places: Roles and phases in the rows so far; the call adds new ones.
        missed: Instances of workers whose last spans may never arrive, with the time range of those
            spans.
    """
    wanted = set(steps)
    known = [*spans.values()] if wanted else []
    return _explained(known, role, wanted, places, missed)


def _explained(
    spans: Sequence[SpanRecord],
    role: str,
    wanted: set[int],
    places: set[tuple[str, str]],
    missed: Mapping[str, tuple[int, int]],
) -> Iterator[StepAnalysis | None]:
    roots: dict[int, list[SpanRecord]] = defaultdict(list)
    for span in spans:
        if span.name == STEP_SPAN and span.role == role and span.step in wanted:
            roots[span.step].append(span)
    if not roots:  # they were evicted
        return
    is_large = len(spans) >= PART
    forest = Forest(spans, finds_collectives=True)
    if is_large:
        yield None
    reference = min((root.worker, root.host) for of in roots.values() for root in of)[1]
    clocks = estimate_clocks(forest, reference)
    ahead_ns = {host: clock.ahead_ns for host, clock in clocks.items() if clock.ahead_ns}
    if ahead_ns:
        if is_large:
            yield None
        forest = Forest(with_one_clock(spans, clocks), finds_collectives=True)
    last_of = {}
    for step in sorted(roots):
        ranks = [forest.get(root.span_id) or root for root in roots[step]]
        last_of[step] = max(ranks, key=lambda root: root.end_ns)
    start_ns = min(root.start_ns for root in last_of.values())
    end_ns = max(root.end_ns for root in last_of.values())
    if is_large:
        yield None
    activity = Activity(forest, start_ns, end_ns)
    yield from activity.prepare()
    observer = Observer(forest, activity)
    if is_large:
        yield None
    host_clocks = list(_host_clocks(ahead_ns, forest))
    gaps = _gaps(forest, missed)
    explainer = _Explainer(forest, observer, host_clocks, places, gaps)
    for step, root in last_of.items():
        yield from explainer.explained(step, root)


class _Explainer:
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
        self._keys: dict[KeySource, str] = {}
        self._sources: dict[str, KeySource] = {}
        self._looked_at = 0  # stretches, since the last pause

    def explained(self, step: int, root: SpanRecord) -> Iterator[StepAnalysis | None]:
        """Yield the analysis of a step, by its last rank; None before it where a pause is due."""
        meanwhile = self._observer.activity.within(root.start_ns, root.end_ns)
        size = sum(map(len, meanwhile.values()))
        if self._is_pause_due(size):
            yield None
        segments = critical_path(self._forest, root)
        health: StepHealth | None = None
        for part in self._observer.judged(root, segments, meanwhile):
            health = part
            if self._is_pause_due(size):
                yield None
        assert health is not None
        yield self._analysis(step, root, segments, health, _busy(meanwhile))

    def _is_pause_due(self, stretches: int) -> bool:
        self._looked_at += stretches
        if self._looked_at < PART:
            return False
        self._looked_at = 0
        return True

    def _analysis(
        self,
        step: int,
        root: SpanRecord,
        segments: Sequence[Segment],
        health: StepHealth,
        busy: Mapping[Place, float],
    ) -> StepAnalysis:
        path_ns = self._path_ns(segments)
        took_ns: dict[tuple[str, str], int] = defaultdict(int)
        of_workers: dict[str, int] = defaultdict(int)
        for (role, phase, worker), part_ns in path_ns.items():
            took_ns[role, phase] += part_ns
            of_workers[worker] += part_ns
        nothing = root.role, UNACCOUNTED
        longest = max(took_ns, key=lambda place: took_ns[place], default=nothing)
        return StepAnalysis(
            step=step,
            time_ns=root.end_ns,
            values={
                self._key(role, names.RL_CRITICAL_PATH_DURATION, (names.RL_PHASE, phase)): part_ns
                / _NS_PER_S
                for (role, phase), part_ns in took_ns.items()
            },
            trace_id=root.span_id[:16].hex(),
            worker=max(of_workers, key=of_workers.__getitem__, default=root.worker),
            longest="/".join(longest),
            path={place: part_ns / _NS_PER_S for place, part_ns in path_ns.items()},
            busy=busy,
            clocks=self._clocks,
            health=dict(self._health(health, root.role)),
            bound=health.bound,
            stragglers={
                tracker_key(role, _STRAGGLER): of.straggler.worker
                for role, of in self._named(health.roles)
                if of.straggler is not None
            },
            sources=self._sources,
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
        for role, of in self._named(health.roles):
            yield self._key(role, names.RL_HEALTH_BUSY), of.busy_ns / of.workers / _NS_PER_S
            yield self._key(role, names.RL_HEALTH_BUBBLE), of.bubble_ns / of.workers / _NS_PER_S
            yield self._key(role, names.RL_HEALTH_IDLE), of.idle_ns / of.workers / _NS_PER_S
            if of.slack_ns is not None:
                yield self._key(role, names.RL_HEALTH_SLACK), of.slack_ns / _NS_PER_S
            if of.straggler is not None:
                excess_s = of.straggler.excess_ns / _NS_PER_S
                yield self._key(role, names.RL_HEALTH_STRAGGLER_EXCESS), excess_s
        for stage in names.RlStageValues:
            share = health.bound_ns.get(stage, 0) / (health.took_ns or 1)
            key = self._key(stepping_role, names.RL_HEALTH_BOUND, (names.RL_STAGE, stage))
            yield key, share
        if health.overlap_ns is not None:
            overlap_s = health.overlap_ns / _NS_PER_S
            yield self._key(stepping_role, names.RL_HEALTH_OVERLAP), overlap_s
        if health.efficiency is not None:
            ideal_s = health.ideal_ns / _NS_PER_S
            yield self._key(stepping_role, names.RL_HEALTH_IDEAL), ideal_s
            yield self._key(stepping_role, names.RL_HEALTH_EFFICIENCY), health.efficiency

    def _key(self, role: str, name: str, *attributes: tuple[str, str]) -> str:
        source = KeySource(role, name, attributes)
        key = self._keys.get(source)
        if key is None:
            key = self._keys[source] = tracker_key(*source)
            self._sources[key] = source
        return key

    def _named(self, roles: Mapping[str, RoleHealth]) -> Iterable[tuple[str, RoleHealth]]:
        """Return at most as many roles as rows may name: role names are arbitrary."""
        for role, of in roles.items():
            if self._place(role, IDLE)[0] == role:
                yield role, of

    def _place(self, role: str, phase: str) -> tuple[str, str]:
        places = self._places
        place = role, phase
        if place not in places:
            if len(places) >= MAX_PLACES:
                place = OTHERS
            places.add(place)
        return place


def _gaps(forest: Forest, missed: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return, for workers with spans, the time after the last span in which more may be missing."""
    newest_ns: dict[str, int] = {}
    if missed:
        for span in forest.spans:
            if span.worker in missed:
                newest_ns[span.worker] = max(span.end_ns, newest_ns.get(span.worker, 0))
    return {
        worker: (max(last_ns, missed[worker][0]), missed[worker][1])
        for worker, last_ns in newest_ns.items()
    }


def _busy(activity: Mapping[Process, Sequence[Stretch]]) -> dict[Place, float]:
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
    if not ahead_ns:
        return
    worker_of: dict[str, str] = {}
    for span in forest.spans:
        if span.host in ahead_ns:
            worker_of[span.host] = min(span.worker, worker_of.get(span.host, span.worker))
    for host in sorted(worker_of):
        yield HostClock(host, ahead_ns[host], worker_of[host])
