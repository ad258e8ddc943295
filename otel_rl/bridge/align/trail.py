"""The spans of one experiment, for as long as they may explain a step, and what decided each step.

A step is explained once the spans of every process have had time to arrive: each sends them in
intervals of its own. What comes later is not seen any more.

Spans are too many to be written again with every commit. So they are given out as a log of what is
new, kept in the transaction of the rows, and read again after a restart, as in ``memory.py``.
"""

import itertools
import pickle
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Final, NamedTuple

from otel_rl.bridge.align.explained import Explained, explain
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.unpickle import StateRefused, unpickle
from otel_rl.records import SpanRecord
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["Trail", "TrailLog"]

_NS_PER_S: Final = 1_000_000_000

# Once so often, because each time all spans are put in order. Steps are explained together.
_EVERY_NS: Final = 5 * _NS_PER_S

# A step takes some milliseconds; the rows of others wait meanwhile.
_STEPS_AT_A_TIME: Final = 32

# Of the steps that were explained.
_REMEMBERED: Final = 4_096

# What a span takes without its texts and links: the record, two ids, times, its place in a dict.
_SPAN_BYTES: Final = 480
_LINK_BYTES: Final = 72

# So many bytes of spans stand in one stream of a log, so that a log is read a part at a time.
_STREAM_BYTES: Final = 4 << 20

# Workers whose latest span is remembered; of more, those that came first are forgotten.
_MAX_WORKERS: Final = 4_096


class TrailLog(NamedTuple):
    """Spans, to be kept beside the state and given back to ``restore``.

    Attributes:
        newest_ns: The latest of their ends.
        body: Opaque.
    """

    newest_ns: int
    body: bytes


class Trail:
    """Takes in spans in any order, and explains steps. Can be pickled, without the spans."""

    def __init__(self) -> None:
        self._known = _Known({}, {}, set(), 0, 0)
        self._begin()

    def _begin(self) -> None:
        # In the order of arrival.
        self._spans: dict[bytes, SpanRecord] = {}
        self._bytes = 0  # of those
        self._fresh: list[SpanRecord] = []
        # The latest end of a span, by worker; and of those that are not remembered any more.
        self._newest_ns: dict[str, int] = {}
        self._unnamed_ns = 0
        self._explaining: _Explaining | None = None

    @property
    def forgotten_ns(self) -> int:
        """No log with a ``newest_ns`` up to this time is needed any more."""
        return self._known.forgotten_ns

    @property
    def is_open(self) -> bool:
        """Whether a step waits to be explained."""
        return bool(self._known.waiting)

    @property
    def has_more(self) -> bool:
        """Whether the next ``close`` goes on explaining, whenever it comes."""
        return self._explaining is not None

    def new_of(self, spans: Iterable[SpanRecord]) -> Sequence[SpanRecord]:
        """Returns the spans that were not taken before, each once. To be asked before ``add``.

        A span that ended before what is remembered may be a repetition. It is a new one if it ended
        after all others of its worker, whose clock is then far behind.
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
        # One that is not remembered may have come as far as any other of these.
        newest_ns[worker] = max(end_ns, newest_ns.pop(worker, self._unnamed_ns))
        while len(newest_ns) > _MAX_WORKERS:
            self._unnamed_ns = max(self._unnamed_ns, newest_ns.pop(next(iter(newest_ns))))

    def add(self, spans: Iterable[SpanRecord], settings: AlignSettings, received_ns: int) -> int:
        """Take in spans; those that were taken before make no difference.

        Returns:
            How many are too old to explain anything, or had to make room; and of the steps that
            may wait to be explained, how many did.
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
    ) -> Sequence[Explained]:
        """Explain steps of ``role`` whose spans have had time to arrive, not too many at a time.

        Args:
            role: Whose steps are explained.
            settings: How long spans are waited for.
            now_ns: The bridge's clock.
            missed: Instances of workers whose last spans may never arrive, and from when to when
                they may have made some. Asked for if there is something to explain.
            everything: Whether to explain the steps whose spans are still waited for as well.
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
        """Begin to explain what has waited for long enough."""
        wait_ns = int(settings.spans_wait_s * _NS_PER_S)
        due = [
            step
            for step, received_ns in self._known.waiting.items()
            if everything or now_ns - min(received_ns, now_ns) >= wait_ns
        ]
        if not due:
            return
        steps = [number for of, number in due if of == role]
        places = self._known.places
        explained = explain(self._spans, role, steps, places, missed() if steps else {})
        self._explaining = _Explaining(role, self._over_ns(due), explained)

    def _go_on(self, settings: AlignSettings, *, everything: bool) -> list[Explained]:
        """Explain some of the steps of the last look; the others wait, also over a restart."""
        explaining = self._explaining
        if explaining is None:
            return []
        at_most = None if everything else _STEPS_AT_A_TIME
        explained = [*itertools.islice(explaining.explained, at_most)]
        is_over = at_most is None or len(explained) < at_most
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

    def take_log(self) -> TrailLog | None:
        """Take out the spans that came since the last call; None if none did."""
        if not self._fresh:
            return None
        body = b"".join(map(_stream, _parts(self._fresh)))
        log = TrailLog(max(span.end_ns for span in self._fresh), body)
        self._fresh = []
        return log

    def restore(self, body: bytes, settings: AlignSettings) -> int:
        """Know again what ``take_log`` gave out, in any order.

        Returns:
            How many had to make room.

        Raises:
            StateRefused: It is something else.
        """
        dropped = 0
        for spans in _read(body):
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
            # What began after the step was over is the same step of another pass.
            if span.start_ns >= self._known.explained.get(step, 0):
                self._known.waiting[step] = received_ns

    def _over_ns(self, steps: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """When each step was over, of the rank that was last."""
        over_ns = dict.fromkeys(steps, 0)
        for span in self._spans.values() if steps else ():
            if span.name == STEP_SPAN and span.step is not None:
                step = span.role, span.step
                if over_ns.get(step, span.end_ns) < span.end_ns:
                    over_ns[step] = span.end_ns
        return over_ns

    def _forget(self, settings: AlignSettings) -> None:
        """Forget what has ended too long before the oldest step that waits."""
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
        """Drop the oldest where there are too many, and a tenth more, so as not to do it often."""
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

    def __getstate__(self) -> "tuple[_Known, dict[str, int], int]":
        # The others are read from the spans; most often there are no more than those.
        behind_ns = {
            worker: end_ns
            for worker, end_ns in self._newest_ns.items()
            if end_ns <= self.forgotten_ns
        }
        return self._known, behind_ns, self._unnamed_ns

    def __setstate__(self, state: "_Known | tuple[_Known, dict[str, int], int]") -> None:
        self._begin()
        if isinstance(state, _Known):  # as it was kept before clocks far behind were in it
            self._known = state
        else:
            self._known, self._newest_ns, self._unnamed_ns = state


def _size_bytes(span: SpanRecord) -> int:
    """About what a span takes in memory. Its role, worker and host are those of many."""
    texts = getsizeof(span.name) + getsizeof(span.phase) + getsizeof(span.phase_class)
    return _SPAN_BYTES + texts + _LINK_BYTES * len(span.links)


def _parts(spans: Iterable[SpanRecord]) -> Iterator[Sequence[SpanRecord]]:
    """The spans, cut into some that take little memory each."""
    part: list[SpanRecord] = []
    size = 0
    for span in spans:
        part.append(span)
        size += _size_bytes(span)
        if size >= _STREAM_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _stream(spans: Sequence[SpanRecord]) -> bytes:
    return zlib.compress(pickle.dumps(spans, pickle.HIGHEST_PROTOCOL), level=1)


def _read(body: bytes) -> Iterator[Sequence[SpanRecord]]:
    """What ``_stream`` made, of each stream in turn.

    Raises:
        StateRefused: It is something else.
    """
    while body:
        stream = zlib.decompressobj()
        try:
            spans = unpickle(stream.decompress(body))
        except zlib.error as exc:
            raise StateRefused(f"it cannot be unzipped ({exc})") from exc
        if not isinstance(spans, list) or not all(isinstance(one, SpanRecord) for one in spans):
            raise StateRefused("it is no list of spans")
        yield spans
        body = stream.unused_data


@dataclass(slots=True)
class _Explaining:
    """Steps that are being explained.

    Attributes:
        role: Whose.
        over_ns: When each of those that are left was over, by role and number; also of other roles.
        explained: Explains the next of them.
    """

    role: str
    over_ns: dict[tuple[str, int], int]
    explained: Iterator[Explained]


@dataclass(slots=True)
class _Known:
    """What of a trail is pickled.

    Attributes:
        waiting: When the last root of a rank came, of each step that is to be explained.
        explained: When each step that was explained was over, so that a rank that reports late does
            not let it be explained again, and a loop that makes it again does.
        places: Roles and phases that the rows have named.
        looked_ns: When steps were explained last, by the bridge's clock.
        forgotten_ns: As of ``Trail``.
    """

    waiting: dict[tuple[str, int], int]
    explained: dict[tuple[str, int], int]
    places: set[tuple[str, str]]
    looked_ns: int
    forgotten_ns: int
