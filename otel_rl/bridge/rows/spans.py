"""Recent spans of a run: they are kept, logged, and given to the analysis of a step."""

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from math import fsum
from sys import getsizeof
from typing import Final

from msgspec import field

from otel_rl.bridge.journal.log import Appended
from otel_rl.bridge.journal.state import Int64, Stored
from otel_rl.bridge.keys import tracker_key
from otel_rl.bridge.rows.missing_spans import Gaps, MissingSpans
from otel_rl.bridge.rows.pace import Pace
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.span_log import read_spans, span_log
from otel_rl.bridge.rows.step_analysis import OTHERS, StepAnalysis, explain
from otel_rl.records import SpanRecord
from otel_rl.semconv import names
from otel_rl.semconv.spec import STEP_SPAN

_NS_PER_S: Final = 1_000_000_000

# Size of a span without its texts and links: the record, two ids, times, its place in a dict.
_SPAN_BYTES: Final = 480
_LINK_BYTES: Final = 72

# Roles, workers and hosts up to this length are shared, and not counted with each span.
_SHARED_CHARS: Final = 256

# Workers whose latest span is known; beyond it, the oldest are forgotten.
_MAX_WORKERS: Final = 4_096


class RecentSpans(Stored, dict=True):
    """Spans that may still explain a step, each kept once, in the order of arrival.

    The object is stored without its spans, which are in a log of their own.

    Attributes:
        forgotten_ns: Time up to which spans are forgotten; logs with a ``newest_ns`` up to it are
            not needed.
        newest_ns: Latest end of a span, by worker.
        unnamed_ns: Latest end of a span of the forgotten workers.
    """

    forgotten_ns: Int64 = 0
    newest_ns: dict[str, Int64] = field(default_factory=dict)
    unnamed_ns: Int64 = 0

    def __post_init__(self) -> None:
        self._spans: dict[bytes, SpanRecord] = {}
        self._bytes = 0  # of those
        self._fresh: list[SpanRecord] = []

    @property
    def by_id(self) -> Mapping[bytes, SpanRecord]:
        return self._spans

    def new_of(self, spans: Iterable[SpanRecord]) -> Sequence[SpanRecord]:
        """Return the new spans, each once. Call this before ``add``.

        A span older than the window may be a repeat. It counts as new if it ended after all other
        spans of its worker, whose clock is then far behind.
        """
        new: dict[bytes, SpanRecord] = {}
        newest_ns: dict[str, int] = {}
        for span in spans:
            worker, end_ns = span.worker, span.end_ns
            if end_ns > newest_ns.get(worker, 0):
                newest_ns[worker] = end_ns
            if span.span_id in self._spans:
                continue
            if end_ns > self.forgotten_ns or end_ns > self.newest_ns.get(worker, end_ns):
                new.setdefault(span.span_id, span)
        for worker, end_ns in newest_ns.items():
            self._note_worker(worker, end_ns)
        return list(new.values())

    def add(self, spans: Iterable[SpanRecord]) -> tuple[Sequence[SpanRecord], int]:
        """Add spans; repeats make no difference.

        Returns:
            The spans that were added, and the number of spans that are too old.
        """
        added: list[SpanRecord] = []
        too_old = 0
        for span in spans:
            if span.span_id in self._spans:
                continue
            if span.end_ns <= self.forgotten_ns:
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
        if horizon_ns <= self.forgotten_ns:
            return
        self.forgotten_ns = horizon_ns
        self._spans = {
            span_id: span for span_id, span in self._spans.items() if span.end_ns > horizon_ns
        }
        self._bytes = sum(map(_size_bytes, self._spans.values()))
        self._fresh = [span for span in self._fresh if span.end_ns > horizon_ns]

    def take_log(self) -> Appended | None:
        """Return the spans since the last call; None if there are none."""
        if not self._fresh:
            return None
        log = span_log(self._fresh)
        self._fresh = []
        return log

    def restore(self, body: bytes, settings: AlignSettings) -> int:
        """Restore results of ``take_log``, in any order.

        Returns:
            Number of evicted spans.

        Raises:
            StateRefused: The bytes are not a log of spans.
        """
        dropped = 0
        for spans in read_spans(body):
            for span in spans:
                if span.end_ns > self.forgotten_ns and span.span_id not in self._spans:
                    self._keep(span)
            dropped += self.make_room(settings)
        return dropped

    def _note_worker(self, worker: str, end_ns: int) -> None:
        newest_ns = self.newest_ns
        # A forgotten worker may have reached the latest time of these.
        newest_ns[worker] = max(end_ns, newest_ns.pop(worker, self.unnamed_ns))
        while len(newest_ns) > _MAX_WORKERS:
            self.unnamed_ns = max(self.unnamed_ns, newest_ns.pop(next(iter(newest_ns))))

    def _keep(self, span: SpanRecord) -> None:
        self._spans[span.span_id] = span
        self._bytes += _size_bytes(span)


def _size_bytes(span: SpanRecord) -> int:
    """Return the approximate memory of a span. Short role, worker and host are shared."""
    texts = getsizeof(span.name) + getsizeof(span.phase) + getsizeof(span.phase_class)
    for shared in span.role, span.worker, span.host:
        if len(shared) > _SHARED_CHARS:
            texts += getsizeof(shared)
    return _SPAN_BYTES + texts + _LINK_BYTES * len(span.links)


# Spans that stay of one step, and bytes of all of a run: about a hundred large steps.
_CHOSEN_SPANS: Final = 3_000
_CHOSEN_BYTES: Final = 16 << 20

_LONGER: Final = 1.5
_BEFORE_A_FAULT: Final = 9  # steps, of which the median one is usual


class ChosenSteps(Stored, dict=True):
    """Steps whose spans stay as long as their run, to compare a slow step with a usual one.

    Chosen are steps at growing distances, each a fifth further on than the last; each step that
    takes half as long again as the longest before; and for a fault that is found, a usual step
    before it began and the first step since.

    Attributes:
        next_step: The next step that is far enough from the last chosen one.
        longest_s: Duration of the longest step so far.
        left_bytes: Bytes of room for further steps.
    """

    next_step: Int64 = 0
    longest_s: float = 0.0
    left_bytes: Int64 = _CHOSEN_BYTES

    def __post_init__(self) -> None:
        self._fresh: dict[bytes, SpanRecord] = {}

    def look(self, of: StepAnalysis, spans: Iterable[SpanRecord]) -> None:
        """Keep the spans of a step that was just explained, if the step is chosen."""
        took_s = fsum(of.values.values())
        is_next, is_longer = of.step >= self.next_step, took_s >= _LONGER * self.longest_s
        if is_next:
            self.next_step = of.step + 1 + of.step // 5
        if is_longer:
            self.longest_s = took_s
        if is_next or is_longer:
            self._keep(of.step, of.time_ns - int(took_s * _NS_PER_S), of.time_ns, spans)

    def found(self, since_step: int, role: str, spans: Collection[SpanRecord]) -> None:
        """Keep a step of before a fault and one after its begin, if their spans are still there."""
        times: dict[int, tuple[int, int]] = {}
        for span in spans:
            if span.name == STEP_SPAN and span.role == role and span.step is not None:
                begun_ns, end_ns = times.get(span.step, (span.start_ns, span.end_ns))
                times[span.step] = min(begun_ns, span.start_ns), max(end_ns, span.end_ns)
        before = sorted(step for step in times if step < since_step)[-_BEFORE_A_FAULT:]
        before.sort(key=lambda step: times[step][1] - times[step][0])
        after = min((step for step in times if step >= since_step), default=None)
        for step in (*before[len(before) // 2 :][:1], *([] if after is None else [after])):
            self._keep(step, *times[step], spans)

    def take_log(self) -> Appended | None:
        """Return the spans since the last call; None if there are none."""
        if not self._fresh:
            return None
        log = span_log([*self._fresh.values()])
        self.left_bytes -= len(log.body)
        self._fresh = {}
        return log

    def _keep(self, step: int, begun_ns: int, end_ns: int, spans: Iterable[SpanRecord]) -> None:
        if self.left_bytes > 0:
            inside = (
                one
                for one in spans
                if one.end_ns > begun_ns
                and one.start_ns < end_ns
                and (one.name != STEP_SPAN or one.step == step)  # of its neighbours there is a part
            )
            longest = nlargest(_CHOSEN_SPANS, inside, key=lambda one: one.end_ns - one.start_ns)
            self._fresh.update((one.span_id, one) for one in longest)


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
        chosen: Steps whose spans stay as long as the run.
        missing: Record of the steps that have spans.
        gaps: Steps without spans, as of the last explanation.
        newest_step: Step that was explained last; None before the first.
    """

    recent: RecentSpans = field(default_factory=RecentSpans)
    chosen: ChosenSteps = field(default_factory=ChosenSteps)
    missing: MissingSpans = field(default_factory=MissingSpans)
    newest_step: Int64 | None = None
    # Arrival of the last root of a rank, for each step to be explained.
    _waiting: dict[tuple[str, Int64], Int64] = field(default_factory=dict)
    # End of each explained step, so that a late rank does not have it explained again, while a
    # repeated pass does.
    _explained: dict[tuple[str, Int64], Int64] = field(default_factory=dict)
    _places: set[tuple[str, str]] = field(default_factory=set)  # roles and phases in the rows
    _looked_ns: Int64 = 0  # time of the last explanation, by the bridge's clock
    _ideal: Pace = field(default_factory=Pace)  # lengths of steps if all roles worked in parallel

    def __post_init__(self) -> None:
        self.gaps = Gaps()
        self._explaining: _Explaining | None = None

    @property
    def is_open(self) -> bool:
        return bool(self._waiting)

    @property
    def crowded_role(self) -> str:
        """Return the role with most phases in the rows if there were too many; else empty."""
        if OTHERS not in self._places:
            return ""
        return Counter(role for role, _ in self._places).most_common(1)[0][0]

    @property
    def sampled(self) -> str:
        """Return in words what shows that spans of steps are dropped on the way; else empty."""
        if self.gaps.is_a_rule:
            return str(self.gaps)
        roles = sorted({role for role, _ in self.missing.marked_ns} - {""})
        return _MARKED.format(roles=", ".join(roles)) if roles else ""

    @property
    def has_more(self) -> bool:
        """Return whether the next ``close`` continues an explanation, at whatever time."""
        return self._explaining is not None

    def add(self, spans: Iterable[SpanRecord], settings: AlignSettings, received_ns: int) -> int:
        """Add spans; repeats make no difference. Returns how many were too old or evicted."""
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
        reported: Iterable[int] = (),
        *,
        everything: bool,
    ) -> Sequence[StepAnalysis]:
        """Explain a bounded number of a role's steps whose spans have had time to arrive.

        Args:
            role: Role of the steps; empty if no metric has one.
            settings: Settings that say how long to wait for spans.
            missed: Returns the instances of workers whose last spans may never arrive, each with
                the time range of those spans. Called only if there is a step to explain.
            reported: Steps of the role that metrics report.
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

    def found(self, since_step: int, role: str) -> None:
        """Keep spans of steps around the begin of a fault of a role; empty means the usual role."""
        spans = self.recent.by_id.values()
        known = [
            (span.role, span.step)
            for span in spans
            if span.name == STEP_SPAN and span.step is not None
        ]
        if known:
            self.chosen.found(since_step, role or _stepping_role(known), spans)

    def _look(
        self,
        role: str,
        settings: AlignSettings,
        now_ns: int,
        missed: Callable[[], Mapping[str, tuple[int, int]]],
        reported: Iterable[int],
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
            self.gaps = self.missing.gaps(role, explained_before.union(steps), reported, waiting)
        explained = explain(self.recent.by_id, role, steps, self._places, missed() if steps else {})
        self._explaining = _Explaining(role, self._over_ns(due), explained)

    def _go_on(self, settings: AlignSettings, *, everything: bool) -> list[StepAnalysis]:
        """Explain some of the begun steps; the others wait, also over a restart."""
        explaining = self._explaining
        if explaining is None:
            return []
        explained: list[StepAnalysis] = []
        is_over = True
        for one in explaining.explained:
            if one is not None:
                self.chosen.look(one, self.recent.by_id.values())
                explained.append(self._against_best(self._with_missed(one), explaining.role))
            if not everything and (one is None or len(explained) >= _STEPS_AT_A_TIME):
                is_over = False
                break
        if explained:
            self.newest_step = explained[-1].step
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
        """Add the workers whose spans are dropped on the way to the analysis."""
        dropped = self.gaps.lacking.get(of.step, ())
        if self.gaps.is_a_rule:
            dropped = {span.worker for span in self.recent.by_id.values()}
        else:
            dropped = {*dropped, *(worker for _, worker in self.missing.marked_ns)}
        return replace(of, missed=sorted({*of.missed, *dropped})) if dropped else of

    def _against_best(self, of: StepAnalysis, role: str) -> StepAnalysis:
        """Lower the efficiency by how much slower the step is than the run's best pace."""
        ideal_s = of.health.get(tracker_key(role, names.RL_HEALTH_IDEAL), 0.0)
        if not ideal_s:
            return of
        self._ideal.add(ideal_s)
        best_s = self._ideal.best_s
        if best_s is None or ideal_s <= best_s:
            return of
        key = tracker_key(role, names.RL_HEALTH_EFFICIENCY)
        return replace(of, health={**of.health, key: of.health[key] * best_s / ideal_s})

    def _over_ns(self, steps: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
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
    """Return the role of the run's steps by spans alone: trainers, else the role with most."""
    found = Counter(role for role, _ in steps)
    return max(found, key=lambda role: (role == "trainer", found[role], role))


@dataclass(slots=True)
class _Explaining:
    """Steps that are being explained.

    Attributes:
        over_ns: End of each remaining step, by role and number, including steps of other roles.
        explained: Iterator that explains the next step.
    """

    role: str
    over_ns: dict[tuple[str, int], int]
    explained: Iterator[StepAnalysis | None]
