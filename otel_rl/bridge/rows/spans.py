"""Recent spans of a run: kept, logged, counted, and given to the analysis of a step."""

import itertools
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from itertools import pairwise
from math import gcd
from sys import getsizeof
from typing import Final, NamedTuple

import msgspec

from otel_rl.bridge.journal.state import Int64, Stored
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.span_log import SpanLog, read_spans, span_log
from otel_rl.bridge.tracker_keys import tracker_key
from otel_rl.diagnose.spans.activity import PART, Activity, Process, Stretch
from otel_rl.diagnose.spans.clocks import estimate_clocks, with_one_clock
from otel_rl.diagnose.spans.critical_path import IDLE, Segment, critical_path
from otel_rl.diagnose.spans.span_forest import UNACCOUNTED, Forest
from otel_rl.diagnose.spans.step_health import Observer, RoleHealth, StepHealth
from otel_rl.records import KeySource, SpanRecord, Worker
from otel_rl.semconv import names
from otel_rl.semconv.spec import BLOCK_STEPS, STEP_SPAN

__all__ = [
    "MAX_PLACES",
    "MAX_WORKERS",
    "OTHERS",
    "Gaps",
    "HostClock",
    "MissingSpans",
    "Place",
    "RecentSpans",
    "SpanSteps",
    "SpanWindow",
    "StepAnalysis",
    "explain",
]

_MAX_DEPTH: Final = 16
_MAX_ROLES: Final = 64
_MAX_ENDS: Final = 1_000  # of a role: spans arrive within a minute or two


class SpanSteps:
    """Steps that spans have told."""

    def __init__(self) -> None:
        # By role: (end, the step that follows), in order.
        self._ends: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._loop = ""

    def of(
        self, spans: Sequence[SpanRecord], step_at: Callable[[int], int | None]
    ) -> Iterator[tuple[SpanRecord, int]]:
        """Yield each span with its step.

        Args:
            spans: New spans of one message.
            step_at: Returns the step in progress at a time in ns; None where no metric tells it.
        """
        by_id: Mapping[bytes, SpanRecord] = {}
        if any(span.step is None for span in spans):
            by_id = {span.span_id: span for span in spans}
            self._observe(spans)
        for span in spans:
            yield span, self._step_of(span, by_id, step_at)

    def _step_of(
        self,
        span: SpanRecord,
        by_id: Mapping[bytes, SpanRecord],
        step_at: Callable[[int], int | None],
    ) -> int:
        if span.step is not None:
            return span.step
        # Metrics are asked first: a span around ends later, and may come in a later message. Some
        # spans of a worker would have its step and some that of the metrics, one apart.
        step = step_at(span.end_ns)
        if step is None:
            step = _of_span_around(span, by_id)
        return self._at(span) if step is None else step

    def _observe(self, spans: Sequence[SpanRecord]) -> None:
        for span in spans:
            is_known = span.role in self._ends or len(self._ends) < _MAX_ROLES
            if span.step is None or not is_known:
                continue
            if span.name == STEP_SPAN or not self._loop:
                self._loop = span.role
            ends = self._ends[span.role]
            insort(ends, (span.end_ns, span.step + 1))
            if len(ends) > _MAX_ENDS:
                del ends[: _MAX_ENDS // 2]

    def _at(self, span: SpanRecord) -> int:
        """Return the step in progress when a span ended, by its own role, else by the loop."""
        ends = self._ends.get(span.role) or self._ends.get(self._loop) or []
        place = bisect_right(ends, span.end_ns, key=lambda one: one[0])
        return ends[place - 1][1] if place else 0


def _of_span_around(span: SpanRecord, by_id: Mapping[bytes, SpanRecord]) -> int | None:
    """Return the step of a span, or of the nearest one around it."""
    around: SpanRecord | None = span
    for _ in range(_MAX_DEPTH):
        if around is None or around.step is not None:
            break
        around = None if around.parent_id is None else by_id.get(around.parent_id)
    return None if around is None else around.step


# Highest steps of one rank that are remembered, in whatever order they come.
_STEPS_OF_RANK: Final = 16

# Workers whose steps are remembered.
_MAX_RANKS: Final = 4_096

# Steps without spans that show a rule: an export may be lost, and the spans of some steps with it.
_FEWEST: Final = 3
_SHARE: Final = 0.05


class Gaps(NamedTuple):
    """Steps that should have spans.

    Attributes:
        lacking: Ranks that have spans before and after a step but not in it, by step.
        missing: Number of steps that have no spans, or lack some rank's, if there are several gaps.
        compared: Number of steps that were compared.
    """

    lacking: Mapping[int, Collection[str]] = {}
    missing: int = 0
    compared: int = 0

    def __str__(self) -> str:
        """Return it in words."""
        return f"Of {self.compared} steps {self.missing} lack spans: they are sampled, or lost"

    @property
    def is_a_rule(self) -> bool:
        """Return whether they are too many to be lost by accident."""
        return self.missing >= _FEWEST and self.missing >= _SHARE * self.compared


class MissingSpans:
    """Steps of each rank that have spans.

    Attributes:
        marked_ns: Latest end of a span that says that others of its step may have been dropped, by
            role and worker.
    """

    def __init__(
        self,
        ranks: Mapping[tuple[str, str], Iterable[int]] | None = None,
        *,
        marked_ns: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        self.marked_ns = dict(marked_ns or {})
        self._steps = {rank: sorted(of) for rank, of in (ranks or {}).items()}

    @property
    def ranks(self) -> Mapping[tuple[str, str], Sequence[int]]:
        """Return the highest steps with spans, in order, by role and worker."""
        return {rank: [*steps] for rank, steps in self._steps.items()}

    def add(self, spans: Iterable[SpanRecord]) -> None:
        """Take new spans."""
        for span in spans:
            if span.name != STEP_SPAN or span.step is None:
                continue
            rank = span.role, span.worker
            if rank not in self._steps:
                self._steps[rank] = []
                if len(self._steps) > _MAX_RANKS:
                    del self._steps[next(iter(self._steps))]
            steps = self._steps[rank]
            if span.step not in steps:
                insort(steps, span.step)
                del steps[:-_STEPS_OF_RANK]

    def mark(self, sampled: Mapping[Worker, int]) -> None:
        """Note the workers whose spans say that others of their step may have been dropped.

        Args:
            sampled: Latest end of such a span, by worker.
        """
        for worker, end_ns in sampled.items():
            rank = worker.role, worker.instance
            # The latest come last.
            self.marked_ns[rank] = max(self.marked_ns.pop(rank, 0), end_ns)
            if len(self.marked_ns) > _MAX_RANKS:
                del self.marked_ns[next(iter(self.marked_ns))]

    def unmark_through(self, horizon_ns: int) -> None:
        """Forget the spans that ended by then: one does not tell of all later steps."""
        for rank, end_ns in [*self.marked_ns.items()]:
            if end_ns <= horizon_ns:
                del self.marked_ns[rank]

    def gaps(
        self,
        role: str,
        spanned: Collection[int],
        reported: Iterable[int],
        waiting: Collection[int] = (),
    ) -> Gaps:
        """Compare the steps of a role that have spans of any rank with those that should have.

        Args:
            role: The role.
            spanned: Its steps with spans.
            reported: Its steps by metrics.
            waiting: Further ones with spans, of which some are still to come.
        """
        if not spanned:
            return Gaps()
        lacking = self._lacking(role, spanned)
        first, last = min(spanned), max(spanned)
        blocks, every = {step // BLOCK_STEPS for step in spanned}, _interval(sorted(spanned))
        # Workers keep or drop whole blocks, see ``otel_rl/worker/tracing/sampler.py``.
        missing = {
            step
            for step in set(reported).difference(spanned, waiting)
            if first < step < last and step // BLOCK_STEPS in blocks and (step - first) % every == 0
        }
        torn = self._torn(role)
        of_ranks = sum(not torn.isdisjoint(workers) for workers in lacking.values())
        in_order = sorted(missing.union(spanned))
        gap_count = sum(
            step in missing and before not in missing for before, step in pairwise(in_order)
        )
        of_all = len(missing) if gap_count > 1 else 0  # see ``_torn``
        return Gaps(lacking, of_all + of_ranks, len(in_order))

    def _torn(self, role: str) -> set[str]:
        """Return the ranks with several gaps: one alone is a lost export, or a rank was away."""
        return {
            worker
            for (of_role, worker), steps in self._steps.items()
            if of_role == role and _gap_count(steps) > 1
        }

    def _lacking(self, role: str, spanned: Collection[int]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        in_order = sorted(spanned)
        for (of_role, worker), steps in self._steps.items():
            if of_role != role:
                continue
            own, first, every = set(steps), steps[0], _interval(steps)
            between = slice(bisect_right(in_order, first), bisect_left(in_order, steps[-1]))
            for step in in_order[between]:
                if step not in own and (step - first) % every == 0:
                    found.setdefault(step, []).append(worker)
        return found


def _interval(in_order: Sequence[int]) -> int:
    """Return the largest interval that all of these steps keep; chance keeps none beyond 1."""
    return gcd(*_distances(in_order)) or 1


def _gap_count(in_order: Sequence[int]) -> int:
    every = _interval(in_order)
    return sum(distance > every for distance in _distances(in_order))


def _distances(in_order: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(in_order)]


# Size of a span without its texts and links: the record, two ids, times, its place in a dict.
_SPAN_BYTES: Final = 480
_LINK_BYTES: Final = 72

# Roles, workers and hosts up to this length are shared, and not counted with each span.
_SHARED_CHARS: Final = 256

# Workers whose latest span is known; beyond it, the oldest are forgotten.
_MAX_WORKERS: Final = 4_096


class RecentSpans:
    """Spans that may still explain a step, each once, in the order of arrival.

    Args:
        forgotten_ns: Time up to which spans are forgotten.
        newest_ns: Latest end of a span, by worker.
        unnamed_ns: Latest end of a span of the forgotten workers.
    """

    def __init__(
        self,
        forgotten_ns: int = 0,
        newest_ns: Mapping[str, int] | None = None,
        unnamed_ns: int = 0,
    ) -> None:
        self._forgotten_ns = forgotten_ns
        self._spans: dict[bytes, SpanRecord] = {}
        self._bytes = 0  # of those
        self._fresh: list[SpanRecord] = []
        self._newest_ns: dict[str, int] = dict(newest_ns or {})
        self._unnamed_ns = unnamed_ns

    @property
    def forgotten_ns(self) -> int:
        """Return the time up to which no log by ``newest_ns`` is needed any more."""
        return self._forgotten_ns

    @property
    def unnamed_ns(self) -> int:
        """Return the latest end of a span of the workers that are forgotten."""
        return self._unnamed_ns

    @property
    def by_id(self) -> Mapping[bytes, SpanRecord]:
        """Return the spans, by id."""
        return self._spans

    def new_of(self, spans: Iterable[SpanRecord]) -> Sequence[SpanRecord]:
        """Return the spans that are new, each once. Call it before ``add``.

        A span older than the window may be a repeat. It is new if it ended after all others of its
        worker, whose clock is then far behind.
        """
        new: dict[bytes, SpanRecord] = {}
        newest_ns: dict[str, int] = {}
        for span in spans:
            worker, end_ns = span.worker, span.end_ns
            if end_ns > newest_ns.get(worker, 0):
                newest_ns[worker] = end_ns
            if span.span_id in self._spans:
                continue
            if end_ns > self._forgotten_ns or end_ns > self._newest_ns.get(worker, end_ns):
                new.setdefault(span.span_id, span)
        for worker, end_ns in newest_ns.items():
            self._note_worker(worker, end_ns)
        return list(new.values())

    def add(self, spans: Iterable[SpanRecord]) -> tuple[Sequence[SpanRecord], int]:
        """Add spans; repeats make no difference.

        Returns:
            Those that were added, and the number of those that are too old.
        """
        added: list[SpanRecord] = []
        too_old = 0
        for span in spans:
            if span.span_id in self._spans:
                continue
            if span.end_ns <= self._forgotten_ns:
                too_old += 1
                continue
            self._keep(span)
            added.append(span)
        self._fresh += added
        return added, too_old

    def make_room(self, settings: AlignSettings) -> int:
        """Evict the oldest spans above the bound, and a tenth more, to do it rarely."""
        before = len(self._spans)
        surplus = before - settings.max_spans
        surplus_bytes = self._bytes - settings.max_spans_bytes
        if surplus <= 0 and surplus_bytes <= 0:
            return 0
        oldest = sorted(self._spans.values(), key=lambda span: span.end_ns)
        n = surplus + before // 10 if surplus > 0 else 0
        if surplus_bytes > 0:
            freed = itertools.accumulate(map(_size_bytes, oldest))
            n = max(n, bisect_left([*freed], surplus_bytes + self._bytes // 10))
        self.drop_through(oldest[min(before - 1, n)].end_ns)
        return before - len(self._spans)

    def drop_through(self, horizon_ns: int) -> None:
        """Forget the spans that ended by then."""
        if horizon_ns <= self._forgotten_ns:
            return
        self._forgotten_ns = horizon_ns
        self._spans = {
            span_id: span for span_id, span in self._spans.items() if span.end_ns > horizon_ns
        }
        self._bytes = sum(map(_size_bytes, self._spans.values()))
        self._fresh = [span for span in self._fresh if span.end_ns > horizon_ns]

    def take_log(self) -> SpanLog | None:
        """Return the spans since the last call; None if there are none."""
        if not self._fresh:
            return None
        log = span_log(self._fresh)
        self._fresh = []
        return log

    def restore(self, body: bytes, settings: AlignSettings) -> int:
        """Restore the result of ``take_log``, in any order.

        Returns:
            Number of evicted spans.

        Raises:
            StateRefused: It is something else.
        """
        dropped = 0
        for spans in read_spans(body):
            for span in spans:
                if span.end_ns > self._forgotten_ns and span.span_id not in self._spans:
                    self._keep(span)
                    self._note_worker(span.worker, span.end_ns)
            dropped += self.make_room(settings)
        return dropped

    def newest_of_forgotten(self) -> dict[str, int]:
        """Return the latest end of a span of each worker whose spans are all forgotten."""
        return {
            worker: end_ns
            for worker, end_ns in self._newest_ns.items()
            if end_ns <= self._forgotten_ns
        }

    def _note_worker(self, worker: str, end_ns: int) -> None:
        newest_ns = self._newest_ns
        # A forgotten worker may have reached the latest time of these.
        newest_ns[worker] = max(end_ns, newest_ns.pop(worker, self._unnamed_ns))
        while len(newest_ns) > _MAX_WORKERS:
            self._unnamed_ns = max(self._unnamed_ns, newest_ns.pop(next(iter(newest_ns))))

    def _keep(self, span: SpanRecord) -> None:
        self._spans[span.span_id] = span
        self._bytes += _size_bytes(span)


def _size_bytes(span: SpanRecord) -> int:
    """Return the approximate size of a span in memory. Short role, worker and host are shared."""
    texts = getsizeof(span.name) + getsizeof(span.phase) + getsizeof(span.phase_class)
    for shared in span.role, span.worker, span.host:
        if len(shared) > _SHARED_CHARS:
            texts += getsizeof(shared)
    return _SPAN_BYTES + texts + _LINK_BYTES * len(span.links)


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
    """Corrected clock.

    Attributes:
        host: The host.
        ahead_ns: Its lead over the clock of the step; negative if behind.
        worker: The instance of a worker there.
    """

    host: str
    ahead_ns: int
    worker: str


@dataclass(frozen=True, slots=True)
class StepAnalysis:
    """Analysis of a step.

    Attributes:
        step: The step.
        time_ns: Its end, on the last rank.
        values: Tracker key to seconds; their sum is the duration of the step.
        trace_id: Of the step, in hexadecimal digits.
        worker: The instance that took most of it.
        longest: ``<role>/<phase>`` that took most of it.
        path: (role, phase, instance) to seconds on the critical path.
        busy: (role, phase, instance) to seconds of the step's time, waits included. Of each role
            and phase at most ``MAX_WORKERS``, the longest.
        clocks: Of hosts whose clocks differ from that of the step.
        health: Tracker key to health value of the step.
        bound: The stage of the pipeline with most of the critical path.
        stragglers: Tracker key to the instance of a role that cost the step most.
        missed: Instances of workers that may have taken part with spans that never arrived.
        sources: The metric of each key.
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
    """Analyse some steps of a role, in the order of their numbers, from the spans of now.

    Lazily: None after each part of the work that may take some tens of milliseconds, and the steps.

    Args:
        spans: All known spans, by their ids.
        role: Role of the steps.
        steps: Their numbers; those without spans are left out.
        places: Roles and phases in the rows so far; new ones are added.
        missed: Instances of workers whose last spans may never arrive, and the time range of these.
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
    """Analyses steps of one forest."""

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
        """Yield the analysis of the step, by the last rank; None where a pause is due before it."""
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
        """Yield health values by tracker key."""
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
    """Return the time after the last known span that may have had more, of workers with spans."""
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
    """Return seconds by role, phase and worker, as ``StepAnalysis.busy``."""
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
    """Yield the clocks, with the first worker of each host."""
    if not ahead_ns:
        return
    worker_of: dict[str, str] = {}
    for span in forest.spans:
        if span.host in ahead_ns:
            worker_of[span.host] = min(span.worker, worker_of.get(span.host, span.worker))
    for host in sorted(worker_of):
        yield HostClock(host, ahead_ns[host], worker_of[host])


_MARKED: Final = "Spans of {roles} say that they are sampled (tracestate ot=th, or tailsampling.*)"

# Interval of explanations, each of which sorts all spans. Steps are explained together.
_EVERY_NS: Final = 5 * _NS_PER_S

# A step takes some milliseconds, in which the rows of others wait.
_STEPS_AT_A_TIME: Final = 32

# Number of explained steps in memory.
_REMEMBERED: Final = 4_096


class SpanWindow(Stored, dict=True):
    """Explains steps by recent spans, which arrive in any order.

    Attributes:
        recent: The spans, which are in a log of their own.
        missing: Steps that have spans.
        gaps: Steps without spans, as of the last explanation.
    """

    # Arrival of the last root of a rank, for each step to be explained.
    _waiting: dict[tuple[str, Int64], Int64] = msgspec.field(default_factory=dict)
    # End of each explained step, so that a late rank does not have it explained again, while a
    # repeated pass does.
    _explained: dict[tuple[str, Int64], Int64] = msgspec.field(default_factory=dict)
    _places: set[tuple[str, str]] = msgspec.field(
        default_factory=set
    )  # roles and phases in the rows
    _looked_ns: Int64 = 0  # time of the last explanation, by the bridge's clock
    # Of ``recent`` and ``missing``, as of ``stored``.
    _forgotten_ns: Int64 = 0
    _behind_ns: dict[str, Int64] = msgspec.field(default_factory=dict)
    _unnamed_ns: Int64 = 0
    _ranks: Mapping[tuple[str, str], Sequence[Int64]] = msgspec.field(default_factory=dict)
    _is_marked: bool = False

    def __post_init__(self) -> None:
        self.recent = RecentSpans(self._forgotten_ns, self._behind_ns, self._unnamed_ns)
        # Which workers were sampled is not kept: all are, as long as the last steps tell of them.
        last_ns = max(self._forgotten_ns + 1, *self._explained.values(), 0)
        marked_ns = dict.fromkeys(self._ranks, last_ns) if self._is_marked else {}
        self.missing = MissingSpans(self._ranks, marked_ns=marked_ns)
        self.gaps = Gaps()
        self._explaining: _Explaining | None = None

    def stored(self) -> "SpanWindow":
        """Return the window for the journal, without the spans."""
        self._forgotten_ns, self._unnamed_ns = self.recent.forgotten_ns, self.recent.unnamed_ns
        # The others are read from the spans; mostly there are no more than those.
        self._behind_ns = self.recent.newest_of_forgotten()
        self._ranks, self._is_marked = self.missing.ranks, bool(self.missing.marked_ns)
        return self

    @property
    def is_open(self) -> bool:
        """Return whether a step waits to be explained."""
        return bool(self._waiting)

    @property
    def crowded_role(self) -> str:
        """Return the role with most phases in the rows, if there were too many; else empty."""
        if OTHERS not in self._places:
            return ""
        return Counter(role for role, _ in self._places).most_common(1)[0][0]

    @property
    def sampled(self) -> str:
        """Return what shows that spans of steps are dropped on the way, in words; else empty."""
        if self.gaps.is_a_rule:
            return str(self.gaps)
        roles = sorted({role for role, _ in self.missing.marked_ns} - {""})
        return _MARKED.format(roles=", ".join(roles)) if roles else ""

    @property
    def has_more(self) -> bool:
        """Return whether the next ``close`` continues to explain, at any time."""
        return self._explaining is not None

    def add(self, spans: Iterable[SpanRecord], settings: AlignSettings, received_ns: int) -> int:
        """Add spans; repeats make no difference.

        Returns:
            Number of spans that were too old or evicted; and of those, the ones of steps that may
            wait to be explained.
        """
        added, dropped = self.recent.add(spans)
        self.missing.add(added)
        for span in added:
            if span.name == STEP_SPAN and span.step is not None:
                step = (span.role, span.step)
                # A span that began after the step's end is the same step of another pass.
                if span.start_ns >= self._explained.get(step, 0):
                    self._waiting[step] = received_ns
        while len(self._waiting) > settings.max_open_steps:
            del self._waiting[next(iter(self._waiting))]
            dropped += 1
        return dropped + self.recent.make_room(settings)

    def close(
        self,
        role: str,
        settings: AlignSettings,
        now_ns: int,
        missed: Callable[[], Mapping[str, tuple[int, int]]] = dict,
        reported: Callable[[], Iterable[int]] = tuple,
        *,
        everything: bool,
    ) -> Sequence[StepAnalysis]:
        """Explain a bounded number of steps of ``role`` whose spans have had time to arrive.

        Args:
            role: Role of the steps; empty if no metric has one.
            settings: How long to wait for spans.
            now_ns: The bridge's clock.
            missed: Returns the instances of workers whose last spans may never arrive, and the time
                range of these. Called if there is something to explain.
            reported: Returns the steps of the role by metrics.
            everything: Also explain steps whose spans may still arrive.
        """
        explained = self._go_on(settings, everything=everything)
        if self._explaining is None and (
            everything or not 0 <= now_ns - self._looked_ns < _EVERY_NS
        ):
            self._looked_ns = now_ns
            self._look(role, settings, now_ns, missed, reported, everything=everything)
            explained += self._go_on(settings, everything=everything)
        return explained

    def _look(
        self,
        role: str,
        settings: AlignSettings,
        now_ns: int,
        missed: Callable[[], Mapping[str, tuple[int, int]]],
        reported: Callable[[], Iterable[int]],
        *,
        everything: bool,
    ) -> None:
        """Begin to explain the steps that have waited long enough."""
        wait_ns = int(settings.spans_wait_s * _NS_PER_S)
        due = [
            step
            for step, received_ns in self._waiting.items()
            if everything or now_ns - min(received_ns, now_ns) >= wait_ns
        ]
        if not due:
            return
        role = role or _stepping_role(due)
        steps = [number for of, number in due if of == role]
        if steps:
            explained_before = {number for of, number in self._explained if of == role}
            waiting = {number for of, number in self._waiting if of == role}
            self.gaps = self.missing.gaps(role, explained_before.union(steps), reported(), waiting)
        explained = explain(self.recent.by_id, role, steps, self._places, missed() if steps else {})
        self._explaining = _Explaining(role, self._over_ns(due), explained)

    def _go_on(self, settings: AlignSettings, *, everything: bool) -> list[StepAnalysis]:
        """Explain some of the steps that were begun; the others wait, also over a restart."""
        explaining = self._explaining
        if explaining is None:
            return []
        explained: list[StepAnalysis] = []
        is_over = True
        for one in explaining.explained:
            if one is not None:
                explained.append(self._with_missed(one))
            if not everything and (one is None or len(explained) >= _STEPS_AT_A_TIME):
                is_over = False
                break
        done = [(explaining.role, one.step) for one in explained]
        for step in [*explaining.over_ns] if is_over else done:
            self._waiting.pop(step, None)
            self._explained.pop(step, None)
            self._explained[step] = explaining.over_ns.pop(step)
        while len(self._explained) > _REMEMBERED:
            del self._explained[next(iter(self._explained))]
        if is_over:
            self._explaining = None
            self._forget(settings)
        return explained

    def _with_missed(self, of: StepAnalysis) -> StepAnalysis:
        """Add the workers whose spans are dropped on the way."""
        dropped = self.gaps.lacking.get(of.step, ())
        if self.gaps.is_a_rule:
            dropped = {span.worker for span in self.recent.by_id.values()}
        else:
            dropped = {*dropped, *(worker for _, worker in self.missing.marked_ns)}
        return replace(of, missed=sorted({*of.missed, *dropped})) if dropped else of

    def _over_ns(self, steps: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the end of each step, on the last rank."""
        over_ns = dict.fromkeys(steps, 0)
        for span in self.recent.by_id.values() if steps else ():
            if span.name == STEP_SPAN and span.step is not None:
                step = span.role, span.step
                if over_ns.get(step, span.end_ns) < span.end_ns:
                    over_ns[step] = span.end_ns
        return over_ns

    def _forget(self, settings: AlignSettings) -> None:
        """Forget spans that ended too long before the oldest waiting step."""
        spans = self.recent.by_id.values()
        if not spans:
            return
        newest_ns = max(span.end_ns for span in spans)
        starts = [
            span.start_ns
            for span in spans
            if span.step is not None and (span.role, span.step) in self._waiting
        ]
        oldest_ns = min(starts, default=newest_ns)
        horizon_ns = oldest_ns - int(settings.spans_horizon_s * _NS_PER_S)
        self.recent.drop_through(horizon_ns)
        self.missing.unmark_through(horizon_ns)


def _stepping_role(steps: Sequence[tuple[str, int]]) -> str:
    """Return the role of the run's steps by spans alone: trainers, else that with most."""
    found = Counter(role for role, _ in steps)
    return max(found, key=lambda role: (role == "trainer", found[role], role))


@dataclass(slots=True)
class _Explaining:
    """Steps that are being explained.

    Attributes:
        role: Role of the steps.
        over_ns: End of each remaining step, by role and number; also of other roles.
        explained: Iterator that explains the next of them.
    """

    role: str
    over_ns: dict[tuple[str, int], int]
    explained: Iterator[StepAnalysis | None]
