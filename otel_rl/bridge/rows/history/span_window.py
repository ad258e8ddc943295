"""Window of the spans of one experiment that may explain a step, and the explained steps.

A step is explained once the spans of every process have had time to arrive: each sends them at
intervals of its own. Later spans are ignored.

Spans are too many to be written again with every commit. So they are returned as a log of new ones,
stored in the transaction of the rows, and read again after a restart, as in ``dedup_log.py``.
"""

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Final, NamedTuple

from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.bridge.rows.history.step_analysis import StepAnalysis, explain
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import SpanRecord
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["SpanLog", "SpanWindow", "read_spans"]

_NS_PER_S: Final = 1_000_000_000

# Interval of explanations, each of which sorts all spans. Steps are explained together.
_EVERY_NS: Final = 5 * _NS_PER_S

# A step takes some milliseconds, in which the rows of others wait.
_STEPS_AT_A_TIME: Final = 32

# Number of explained steps in memory.
_REMEMBERED: Final = 4_096

# Size of a span without its texts and links: the record, two ids, times, its place in a dict.
_SPAN_BYTES: Final = 480
_LINK_BYTES: Final = 72

# Roles, workers and hosts up to this length are shared, and not counted with each span.
_SHARED_CHARS: Final = 256

# Bytes of spans in one part of a log, which is read part by part.
_PART_BYTES: Final = 1 << 20
_ENCODED_BYTES: Final = 100
_ENCODED_LINK_BYTES: Final = 26

# Workers whose latest span is known; beyond it, the oldest are forgotten.
_MAX_WORKERS: Final = 4_096


class SpanLog(NamedTuple):
    """Spans, to be stored beside the state and passed to ``restore``.

    Attributes:
        newest_ns: The latest of their ends.
        body: Opaque.
    """

    newest_ns: int
    body: bytes


class SpanWindow:
    """Collects spans in any order, and explains steps."""

    def __init__(self) -> None:
        self._known = _Known({}, {}, set(), 0, 0)
        self._begin()

    def _begin(self) -> None:
        # In the order of arrival.
        self._spans: dict[bytes, SpanRecord] = {}
        self._bytes = 0  # of those
        self._fresh: list[SpanRecord] = []
        # The latest end of a span, by worker; and of the forgotten workers.
        self._newest_ns: dict[str, int] = {}
        self._unnamed_ns = 0
        self._explaining: _Explaining | None = None

    @property
    def forgotten_ns(self) -> int:
        """Return the time up to which no log by ``newest_ns`` is needed any more."""
        return self._known.forgotten_ns

    @property
    def is_open(self) -> bool:
        """Return whether a step waits to be explained."""
        return bool(self._known.waiting)

    @property
    def has_more(self) -> bool:
        """Return whether the next ``close`` continues to explain, at any time."""
        return self._explaining is not None

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
            if end_ns > self.forgotten_ns or end_ns > self._newest_ns.get(worker, end_ns):
                new.setdefault(span.span_id, span)
        for worker, end_ns in newest_ns.items():
            self._heard(worker, end_ns)
        return list(new.values())

    def _heard(self, worker: str, end_ns: int) -> None:
        newest_ns = self._newest_ns
        # A forgotten worker may have reached the latest time of these.
        newest_ns[worker] = max(end_ns, newest_ns.pop(worker, self._unnamed_ns))
        while len(newest_ns) > _MAX_WORKERS:
            self._unnamed_ns = max(self._unnamed_ns, newest_ns.pop(next(iter(newest_ns))))

    def add(self, spans: Iterable[SpanRecord], settings: AlignSettings, received_ns: int) -> int:
        """Add spans; repeats make no difference.

        Returns:
            Number of spans that were too old or evicted; and of those, the ones of steps that may
            wait to be explained.
        """
        dropped = 0
        for span in spans:
            if span.span_id in self._spans:
                continue
            if span.end_ns <= self.forgotten_ns:
                dropped += 1
                continue
            self._take(span, received_ns)
            self._fresh.append(span)
        waiting = self._known.waiting
        while len(waiting) > settings.max_open_steps:
            del waiting[next(iter(waiting))]
            dropped += 1
        return dropped + self._make_room(settings)

    def close(
        self,
        role: str,
        settings: AlignSettings,
        now_ns: int,
        missed: Callable[[], Mapping[str, tuple[int, int]]] = dict,
        *,
        everything: bool,
    ) -> Sequence[StepAnalysis]:
        """Explain a bounded number of steps of ``role`` whose spans have had time to arrive.

        Args:
            role: Role of the steps; empty if no metric has told one.
            settings: How long to wait for spans.
            now_ns: The bridge's clock.
            missed: Returns the instances of workers whose last spans may never arrive, and the time
                range of these. Called if there is something to explain.
            everything: Also explain steps whose spans may still arrive.
        """
        explained = self._go_on(settings, everything=everything)
        if self._explaining is None and (
            everything or not 0 <= now_ns - self._known.looked_ns < _EVERY_NS
        ):
            self._known.looked_ns = now_ns
            self._look(role, settings, now_ns, missed, everything=everything)
            explained += self._go_on(settings, everything=everything)
        return explained

    def _look(
        self,
        role: str,
        settings: AlignSettings,
        now_ns: int,
        missed: Callable[[], Mapping[str, tuple[int, int]]],
        *,
        everything: bool,
    ) -> None:
        """Begin to explain the steps that have waited long enough."""
        wait_ns = int(settings.spans_wait_s * _NS_PER_S)
        due = [
            step
            for step, received_ns in self._known.waiting.items()
            if everything or now_ns - min(received_ns, now_ns) >= wait_ns
        ]
        if not due:
            return
        role = role or _stepping_role(due)
        steps = [number for of, number in due if of == role]
        places = self._known.places
        explained = explain(self._spans, role, steps, places, missed() if steps else {})
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
                explained.append(one)
            if not everything and (one is None or len(explained) >= _STEPS_AT_A_TIME):
                is_over = False
                break
        done = [(explaining.role, one.step) for one in explained]
        for step in [*explaining.over_ns] if is_over else done:
            self._known.waiting.pop(step, None)
            self._known.explained.pop(step, None)
            self._known.explained[step] = explaining.over_ns.pop(step)
        while len(self._known.explained) > _REMEMBERED:
            del self._known.explained[next(iter(self._known.explained))]
        if is_over:
            self._explaining = None
            self._forget(settings)
        return explained

    def take_log(self) -> SpanLog | None:
        """Return the spans since the last call; None if there are none."""
        if not self._fresh:
            return None
        body = b"".join(wire.compress(wire.encode(part)) for part in _parts(self._fresh))
        log = SpanLog(max(span.end_ns for span in self._fresh), body)
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
                if span.end_ns > self.forgotten_ns and span.span_id not in self._spans:
                    self._keep(span)
                    self._heard(span.worker, span.end_ns)
            dropped += self._make_room(settings)
        return dropped

    def _keep(self, span: SpanRecord) -> None:
        self._spans[span.span_id] = span
        self._bytes += _size_bytes(span)

    def _take(self, span: SpanRecord, received_ns: int) -> None:
        self._keep(span)
        if span.name == STEP_SPAN and span.step is not None:
            step = (span.role, span.step)
            # A span that began after the step's end is the same step of another pass.
            if span.start_ns >= self._known.explained.get(step, 0):
                self._known.waiting[step] = received_ns

    def _over_ns(self, steps: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the end of each step, on the last rank."""
        over_ns = dict.fromkeys(steps, 0)
        for span in self._spans.values() if steps else ():
            if span.name == STEP_SPAN and span.step is not None:
                step = span.role, span.step
                if over_ns.get(step, span.end_ns) < span.end_ns:
                    over_ns[step] = span.end_ns
        return over_ns

    def _forget(self, settings: AlignSettings) -> None:
        """Forget spans that ended too long before the oldest waiting step."""
        if not self._spans:
            return
        newest_ns = max(span.end_ns for span in self._spans.values())
        starts = [
            span.start_ns
            for span in self._spans.values()
            if span.step is not None and (span.role, span.step) in self._known.waiting
        ]
        oldest_ns = min(starts, default=newest_ns)
        horizon_ns = oldest_ns - int(settings.spans_horizon_s * _NS_PER_S)
        self._drop_through(horizon_ns)

    def _make_room(self, settings: AlignSettings) -> int:
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
        self._drop_through(oldest[min(before - 1, n)].end_ns)
        return before - len(self._spans)

    def _drop_through(self, horizon_ns: int) -> None:
        if horizon_ns <= self.forgotten_ns:
            return
        self._known.forgotten_ns = horizon_ns
        self._spans = {
            span_id: span for span_id, span in self._spans.items() if span.end_ns > horizon_ns
        }
        self._bytes = sum(map(_size_bytes, self._spans.values()))
        self._fresh = [span for span in self._fresh if span.end_ns > horizon_ns]

    def to_wire(self) -> wire.SpanWindow:
        """Return the state for the journal, without the spans."""
        known = self._known
        return wire.SpanWindow(
            known.waiting,
            known.explained,
            known.places,
            known.looked_ns,
            known.forgotten_ns,
            # The others are read from the spans; mostly there are no more than those.
            {
                worker: end_ns
                for worker, end_ns in self._newest_ns.items()
                if end_ns <= known.forgotten_ns
            },
            self._unnamed_ns,
        )

    @classmethod
    def from_wire(cls, kept: wire.SpanWindow) -> "SpanWindow":
        """Undo ``to_wire``."""
        trail = cls()
        trail._known = _Known(
            dict(kept.waiting), dict(kept.explained), kept.places, kept.looked_ns, kept.forgotten_ns
        )
        trail._newest_ns, trail._unnamed_ns = dict(kept.behind_ns), kept.unnamed_ns
        return trail


def _stepping_role(steps: Sequence[tuple[str, int]]) -> str:
    """Return the role of the run's steps where only spans know: trainers, else those with most."""
    found = Counter(role for role, _ in steps)
    return max(found, key=lambda role: (role == "trainer", found[role], role))


def _size_bytes(span: SpanRecord) -> int:
    """Return the approximate size of a span in memory. Short role, worker and host are shared."""
    texts = getsizeof(span.name) + getsizeof(span.phase) + getsizeof(span.phase_class)
    for shared in span.role, span.worker, span.host:
        if len(shared) > _SHARED_CHARS:
            texts += getsizeof(shared)
    return _SPAN_BYTES + texts + _LINK_BYTES * len(span.links)


def _parts(spans: Iterable[SpanRecord]) -> Iterator[wire.SpanPart]:
    """Yield the spans for the journal, in parts that take little memory each."""
    part = _Part()
    for span in spans:
        part.add(span)
        if part.size_bytes >= _PART_BYTES:
            yield part.to_wire()
            part = _Part()
    if part.size_bytes:
        yield part.to_wire()


class _Part:
    """Part of a log of spans, with each text once.

    Attributes:
        size_bytes: Approximate encoded size.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._places: dict[str, int] = {}
        self._spans: list[wire.Span] = []

    def add(self, span: SpanRecord) -> None:
        """Add a span."""
        place = self._place
        self._spans.append(
            wire.Span(
                span.span_id,
                span.parent_id,
                span.links,
                place(span.role),
                place(span.worker),
                place(span.host),
                span.start_ns,
                span.end_ns,
                place(span.name),
                place(span.phase),
                place(span.phase_class),
                span.step,
                span.failed,
            )
        )
        self.size_bytes += _ENCODED_BYTES + _ENCODED_LINK_BYTES * len(span.links)

    def to_wire(self) -> wire.SpanPart:
        """Return the part for the journal."""
        return wire.SpanPart(wire.VERSION, [*self._places], self._spans)

    def _place(self, text: str) -> int:
        place = self._places.get(text)
        if place is None:
            place = self._places[text] = len(self._places)
            self.size_bytes += getsizeof(text)
        return place


def read_spans(body: bytes) -> Iterator[Sequence[SpanRecord]]:
    """Yield the spans of ``SpanLog.body``, part by part.

    Raises:
        StateRefused: It is something else.
    """
    for raw in wire.decompress_each(body):
        part = wire.decode(raw, wire.SpanPart)
        texts = part.texts
        with wire.refusing():
            spans = [
                SpanRecord(
                    span.span_id,
                    span.parent_id,
                    span.links,
                    texts[span.role],
                    texts[span.worker],
                    texts[span.host],
                    span.start_ns,
                    span.end_ns,
                    texts[span.name],
                    texts[span.phase],
                    texts[span.phase_class],
                    span.step,
                    span.failed,
                )
                for span in part.spans
            ]
        yield spans


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


@dataclass(slots=True)
class _Known:
    """Part of the window that is stored with the state.

    Attributes:
        waiting: Arrival of the last root of a rank, for each step to be explained.
        explained: End of each explained step, so that a late rank does not have it explained again,
            while a repeated pass does.
        places: Roles and phases in the rows so far.
        looked_ns: Time of the last explanation, by the bridge's clock.
        forgotten_ns: As of ``SpanWindow``.
    """

    waiting: dict[tuple[str, int], int]
    explained: dict[tuple[str, int], int]
    places: set[tuple[str, str]]
    looked_ns: int
    forgotten_ns: int
