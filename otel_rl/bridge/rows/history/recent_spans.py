"""Recent spans of one experiment, bounded by number and bytes."""

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from sys import getsizeof
from typing import Final

from otel_rl.bridge.rows.history.span_log import SpanLog, read_spans, span_log
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import SpanRecord

__all__ = ["RecentSpans"]

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
