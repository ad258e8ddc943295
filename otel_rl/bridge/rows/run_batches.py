"""Batches of one run in progress, read from the spool and taken in by parts in the run's turns."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from otel_rl.bridge.journal.spool import Spooled
from otel_rl.bridge.otlp.decode import decode_parts
from otel_rl.records import Decoded, Measurements, Offset, Point

_LARGE_BYTES: Final = 1 << 20
"""Size of a batch that takes a multiple of it in memory while it is in progress."""


class RunBatches:
    """Batches of one run that are not committed yet.

    Attributes:
        unread: Batches that were read and not taken completely; the first may be taken in part.
        reads_on: Whether more batches may wait behind the unread ones.
        parts: Remaining parts of the first unread batch; None before its first part.
        cut: Offset of the first unread batch, and the position in that batch; None before its first
            part.
        begun: Whether that batch had points so far, and new points; None before its first part.
        taken: Batches that were taken completely since the commit.
        taken_ns: Time at which the first taken batch was taken, by the bridge's clock.
        heard_ns: Arrival of the last batch of which a part was taken.
        lost_ns: Time up to which nobody knows which points are in the run; 0 if that is known.
        lost: Number of points dropped for that reason since the commit.
    """

    def __init__(self) -> None:
        self.unread: deque[Spooled] = deque()
        self.reads_on = False
        self.parts: Iterator[Decoded] | None = None
        self.cut: tuple[Offset, int] | None = None
        self.begun: tuple[bool, bool] | None = None
        self.taken: dict[Offset, None] = {}
        self.taken_bytes = self.taken_ns = self.heard_ns = 0
        self.lost_ns = self.lost = 0

    @property
    def has_more(self) -> bool:
        return self.reads_on or bool(self.unread)

    @property
    def next_is_large(self) -> bool:
        """Return whether the next batch takes much memory while it is in progress."""
        return bool(self.unread) and len(self.unread[0].batch.payload) >= _LARGE_BYTES

    def read(self, spooled: Sequence[Spooled], max_bytes: int) -> None:
        """Add batches that are to be taken: valid ones, or one damaged one.

        Args:
            spooled: The next batches of the run, in order.
            max_bytes: Size at which the read ended; if the batches reach it, more may wait.
        """
        self.reads_on = sum(len(one.batch.payload) for one in spooled) >= max_bytes
        for place, one in enumerate(spooled):
            if one.is_damaged:
                spooled = spooled[: max(1, place)]
                self.reads_on = True
                break
        self.unread.extend(spooled)

    def leave_begun(self) -> None:
        self.cut = self.begun = None

    def take(
        self, is_over: Callable[[], bool], part_points: int, now_ns: int
    ) -> Iterator[tuple[Decoded, int]]:
        """Yield the next parts, of about ``part_points``, with their arrival, within the turn.

        At least one part is yielded. A part counts as taken when the next one is asked for.
        """
        while self.unread:
            one = self.unread[0]
            self.heard_ns = one.batch.received_ns
            if self.parts is None:
                self.parts = decode_parts(one.batch, part_points)
                is_known = self.cut is not None and self.cut[0] == one.offset
                # The part taken before a restart is in the state.
                left = self.cut[1] if self.cut is not None and is_known else 0
                while left > 0:
                    left -= next(self.parts).items
                self.cut = self.cut if is_known else (one.offset, 0)
            for part in self.parts:
                known = part if not self.lost_ns else _after(part, self.lost_ns)
                self.lost += part.items - known.items
                yield known, one.batch.received_ns
                assert self.cut is not None  # since the batch was begun
                self.cut = one.offset, self.cut[1] + part.items
                if part.has_more and is_over():
                    return
            self.parts = self.cut = None
            self.taken_ns = self.taken_ns if self.taken else now_ns
            self.taken[one.offset] = None
            self.taken_bytes += len(one.batch.payload)
            self.unread.popleft()
            if is_over():
                return

    def commit(self) -> Sequence[Offset]:
        """Return the batches that were taken completely, and forget them."""
        taken, self.taken, self.taken_bytes = [*self.taken], {}, 0
        return taken


def _after(part: Decoded, lost_ns: int) -> Decoded:
    """Return a part's points after a time. Announcements may be repeated, so all stay."""
    return dataclasses.replace(
        part,
        points=[point for point in part.points if _latest_ns(point) > lost_ns],
        exports=[one for one in part.exports if not 0 < one.time_ns <= lost_ns],
        samples=[sample for sample in part.samples if sample.time_ns > lost_ns],
        spans=[span for span in part.spans if span.end_ns > lost_ns],
        departures=[one for one in part.departures if one.time_ns > lost_ns],
    )


def _latest_ns(point: Point) -> int:
    return max(point.times_ns) if isinstance(point, Measurements) else point.time_ns
