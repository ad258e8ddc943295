"""State of one run in memory, between its last commit in the run store and its next.

saved state ─ load_run ─> LoadedRun ─ read, take ─> aligner ─ take_commit ─> Commit
└──── reload: uncommitted changes are forgotten ────┘
"""

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec

from otel_rl.bridge.counters import (
    ArchiveDrop,
    Counter,
    Counters,
    SampleDrop,
    StateFault,
    ValueFold,
)
from otel_rl.bridge.journal.runs import Commit, SavedRun
from otel_rl.bridge.journal.spool import Spooled
from otel_rl.bridge.journal.state import (
    StateRefused,
    decode,
    decode_keys,
    encode,
    encode_keys,
    refusing,
)
from otel_rl.bridge.otlp.decode import decode_parts
from otel_rl.bridge.rows.aligner import Aligner, AlignSettings
from otel_rl.bridge.rows.history.history_writer import HistoryRecords
from otel_rl.bridge.rows.open_run.run_state import RunState, StoredRun
from otel_rl.bridge.rows.reports.bridge_report import BridgeReport
from otel_rl.bridge.rows.reports.run_metadata import RunMetadata
from otel_rl.bridge.rows.reports.sample_counts import SampleCounts
from otel_rl.records import (
    Decoded,
    Description,
    ExperimentKey,
    Measurements,
    Offset,
    Point,
    Row,
    WorkerFailure,
)

__all__ = ["LoadedRun", "Turn", "load_run"]

_log = logging.getLogger(__name__)

_UNRECOGNISED: Final = "repeated samples are not recognised"
_UNJOINED: Final = "late samples make rows of their own"
_UNEXPLAINED: Final = "steps go unexplained"
_UNDESCRIBED: Final = "they are described again"

_POINT_BYTES: Final = 64
"""Fewest bytes of a point in a batch, about: a request of few points costs more for each."""

_LARGE_BYTES: Final = 1 << 20
"""Size of a batch that takes a multiple of it in memory while it is in progress."""


@dataclass(slots=True)
class Turn:
    """One turn of a run: it ends by time, or by parts of batches, whichever is first.

    Attributes:
        clock_s: Monotonic clock, in seconds.
        end_s: End by that clock.
        parts_left: Parts of about a thousand points, see ``decode_parts``.
    """

    clock_s: Callable[[], float]
    end_s: float
    parts_left: float

    def took(self, share: float = 1.0) -> None:
        """Count a part, or the share of one that a small batch is."""
        self.parts_left -= share

    @property
    def is_over(self) -> bool:
        """Return whether the turn is over."""
        return self.parts_left <= 0 or self.clock_s() >= self.end_s


@dataclass(slots=True)
class LoadedRun:
    """State of one run. One thread.

    Attributes:
        key: The run.
        aligner: Its open steps and windows.
        metadata: From its merged announcements.
        report: The bridge's report in the run.
        counters: Of the bridge.
        counted: The part of the aligner's counts that is in the bridge's counters.
        epoch: The ownership epoch in which it was loaded, see ``Ownership``.
        used_ns: When it last had batches.
        uncommitted: Counts moved from the bridge's counters to the aligner's, since the commit.
        left_out: Announcements over the bounds, since the commit.
        lost_ns: See ``SavedRun``.
        lost: Number of points dropped because they are of that time or before, since the commit.
        unread: Batches that were read and not taken completely, the first perhaps in part.
        reads_on: Whether more may wait behind them.
        parts: The rest of the first of them; None if no part of it was taken.
        cut: That batch, and the position in it; None as before.
        taken: Batches that were taken completely, since the commit.
        taken_bytes: Their size.
        taken_ns: When the first of them was taken, by the bridge's clock.
        state_bytes: Size of its state at the last commit.
        heard_ns: Arrival of the last taken one.
        archive_room: Tells whether the journal has room for values that wait for the archive.
        unarchived: Values that are left out of the archive, since the commit.
        logged_failures: Failures of its workers that are not news for the log.
        logged_failure_ns: Time of the last one in the log.
        told_crash: What ended it, as in the log.
        progress: Time of the newest stored history by the bridge's clock, and the newest step then;
            None before. Any thread may read it.
    """

    key: ExperimentKey
    aligner: Aligner
    metadata: RunMetadata
    report: BridgeReport
    counters: Counters
    counted: SampleCounts
    epoch: int = 0
    used_ns: int = 0
    uncommitted: dict[tuple[str, str], int] = field(default_factory=dict)
    left_out: int = 0
    lost_ns: int = 0
    lost: int = 0
    unread: deque[Spooled] = field(default_factory=deque)
    reads_on: bool = False
    parts: Iterator[Decoded] | None = None
    cut: tuple[Offset, int] | None = None
    taken: dict[Offset, None] = field(default_factory=dict)
    taken_bytes: int = 0
    taken_ns: int = 0
    state_bytes: int = 0
    heard_ns: int = 0
    archive_room: Callable[[], bool] | None = None
    unarchived: int = 0
    logged_failures: Sequence[WorkerFailure] = ()
    logged_failure_ns: int = 0
    told_crash: str = ""
    progress: tuple[int, int] | None = None

    @property
    def next_is_large(self) -> bool:
        """Report whether the next batch takes much memory while it is in progress."""
        return bool(self.unread) and len(self.unread[0].batch.payload) >= _LARGE_BYTES

    def read(self, spooled: Sequence[Spooled], max_bytes: int) -> None:
        """Add batches to take, valid ones or one damaged one.

        Args:
            spooled: The next batches of the run, in order.
            max_bytes: Size at which the read ended; if they have as much, more may wait.
        """
        self.reads_on = sum(len(one.batch.payload) for one in spooled) >= max_bytes
        for place, one in enumerate(spooled):
            if one.is_damaged:
                spooled = spooled[: max(1, place)]
                self.reads_on = True
                break
        self.unread.extend(spooled)

    def take(self, turn: Turn, part_points: int, now_ns: int) -> None:
        """Take read batches, in parts of about ``part_points``, until the turn is over."""
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
                self.aligner.add(known, received_ns=one.batch.received_ns)
                self.left_out += self.metadata.add(part.announcements)
                assert self.cut is not None  # since the batch was begun
                self.cut = one.offset, self.cut[1] + part.items
                turn.took(_share(one, part, part_points))
                if part.has_more and turn.is_over:
                    return
            self.parts = self.cut = None
            self.taken_ns = self.taken_ns if self.taken else now_ns
            self.taken[one.offset] = None
            self.taken_bytes += len(one.batch.payload)
            self.unread.popleft()
            if turn.is_over:
                return

    def report_values(self, gauges: Mapping[str, float]) -> Mapping[str, float]:
        """Return the values of the bridge's report, with the counts of the run so far."""
        counts = self.aligner.counts
        for name, n in self.counters.take_run(self.key).items():
            counts[name] = counts.get(name, 0) + n
            self.uncommitted[name] = self.uncommitted.get(name, 0) + n
        return self.report.values(self.aligner.sample_counts, counts, gauges)

    def describe(self) -> Description:
        """Return the run's description."""
        now = self.aligner.standing
        return self.metadata.describe(now.status, now.devices, now.failures, now.attempts)

    def take_commit(
        self,
        rows: Sequence[Row],
        description: Description | None,
        history: HistoryRecords | None,
    ) -> Commit:
        """Return everything that changed since the last commit, with the present state.

        Args:
            rows: New rows.
            description: If it has changed.
            history: New records.
        """
        aligner, logs, standing = self.aligner, self.aligner.logs, self.aligner.standing
        taken, self.taken, self.taken_bytes = [*self.taken], {}, 0
        # Before the state, which includes what the logs forget.
        dedup, steps = logs.take_dedup(), logs.take_steps()
        state = encode(StoredRun(aligner.state.stored(), self.metadata, self.cut))
        self.state_bytes = len(state)
        keys = aligner.row_maker.keys.take()
        archive = logs.take_archived()
        if archive and self.archive_room is not None and not self.archive_room():
            self.unarchived += sum(samples for samples, _ in archive)
            archive = []
        return Commit(
            self.key,
            rows,
            aligner.row_maker.next_number,
            state,
            taken,
            standing.is_watching,
            dedup,
            logs.dedup_forgotten_ns,
            description,
            logs.take_spans(),
            logs.spans_forgotten_ns,
            history,
            logs.history_forgotten_ns,
            standing.roles,
            self.epoch,
            encode_keys(keys) if keys else None,
            archive,
            standing.step,
            steps,
            logs.steps_forgotten,
        )

    def committed(self) -> None:
        """Add the committed counts to the bridge's counters."""
        now, before, add = self.aligner.sample_counts, self.counted, self.counters.add
        for counter, reason, n in (
            (Counter.SAMPLES_TAKEN, None, now.taken - before.taken),
            (Counter.SAMPLES_LATE, None, now.late - before.late),
            (Counter.SAMPLES_DUPLICATE, None, now.duplicate - before.duplicate),
            (
                Counter.SAMPLES_DROPPED,
                SampleDrop.TOO_MANY_SERIES,
                now.too_many_series - before.too_many_series,
            ),
            (Counter.SAMPLES_DROPPED, SampleDrop.TOO_OLD, now.too_old - before.too_old),
            (Counter.SPANS_TOO_OLD, None, now.spans_too_old - before.spans_too_old),
        ):
            add(counter, n, reason=reason)
        self.counted = msgspec.structs.replace(now)
        self.uncommitted = {}
        add(
            Counter.SAMPLES_DROPPED,
            self.left_out,
            reason=SampleDrop.TOO_MANY_CONFIG_KEYS,
            run=self.key,
        )
        self.left_out = 0
        thinned = self.aligner.row_maker.take_thinned()
        add(Counter.VALUES_FOLDED, thinned, reason=ValueFold.TOO_MANY_ROWS, run=self.key)
        folded = self.aligner.logs.take_folded()
        add(Counter.VALUES_FOLDED, folded, reason=ValueFold.ATTRIBUTES, run=self.key)
        add(Counter.ARCHIVE_DROPPED, self.unarchived, reason=ArchiveDrop.NO_ROOM, run=self.key)
        self.unarchived = 0
        if self.lost:
            add(Counter.SAMPLES_DROPPED, self.lost, reason=SampleDrop.RUN_REMOVED, run=self.key)
            _log.warning(
                "%s was removed from the journal after its end, and %d samples came that may be in "
                "it: they are dropped.",
                self.key,
                self.lost,
            )
            self.lost = 0

    def unload(self) -> None:
        """Give uncommitted counts back to the bridge's counters; the object is of no more use."""
        self.counters.give_back_run(self.key, self.uncommitted)


def load_run(
    key: ExperimentKey,
    saved: SavedRun,
    settings: AlignSettings,
    counters: Counters,
    report: BridgeReport,
    *,
    epoch: int,
    now_ns: int,
    archive_room: Callable[[], bool] | None = None,
    is_one_launch: bool = False,
) -> LoadedRun:
    """Resume a run from the run store; damaged or refused state is counted and left out.

    Args:
        key: The run.
        saved: From the run store.
        settings: Of the alignment.
        counters: Of the bridge.
        report: Of the bridge in the run.
        epoch: The ownership epoch, from before ``saved`` was read.
        now_ns: The bridge's clock.
        archive_room: See ``LoadedRun``; None without an archive.
        is_one_launch: See ``RunState``.
    """
    if saved.fault is not None:
        counters.add(Counter.STATES_LOST, reason=saved.fault, run=key)
    aligner, metadata, cut = Aligner(settings), RunMetadata(), None
    is_resumed = False
    if saved.state is not None:
        what = f"The state of {key} in the journal is"
        lost = f"open steps are lost, and {_UNRECOGNISED}"
        with _counting_refusals(counters, key, what, lost), refusing():
            aligner, metadata, cut = _restored(saved.state, settings)
            is_resumed = True
    aligner.state.is_one_launch = is_one_launch
    aligner.row_maker.begin_at(saved.next_row)
    aligner.go_on(now_ns)
    for body in saved.dedup:
        what = f"Points of {key} in the journal are"
        with _counting_refusals(counters, key, what, _UNRECOGNISED):
            aligner.logs.restore_dedup(body)
    for body in saved.steps if is_resumed else ():
        what = f"Steps of {key} in the journal are"
        with _counting_refusals(counters, key, what, _UNJOINED):
            aligner.logs.restore_steps(body)
    aligner.logs.steps_are_restored()
    for body in saved.spans:
        what = f"Spans of {key} in the journal are"
        with _counting_refusals(counters, key, what, _UNEXPLAINED):
            aligner.logs.restore_spans(body)
    for body in saved.keys:
        what = f"Keys of {key} in the journal are"
        with _counting_refusals(counters, key, what, _UNDESCRIBED):
            aligner.row_maker.keys.restore(decode_keys(body))
    counted = msgspec.structs.replace(aligner.sample_counts)
    run = LoadedRun(key, aligner, metadata, report, counters, counted, epoch, now_ns)
    run.lost_ns = saved.lost_ns
    run.logged_failures = aligner.standing.failures
    run.cut = cut
    if archive_room is not None:
        aligner.logs.begin_archive()
        run.archive_room = archive_room
    return run


def _restored(
    state: bytes, settings: AlignSettings
) -> tuple[Aligner, RunMetadata, tuple[Offset, int] | None]:
    kept = decode(state, StoredRun)
    cut = None if kept.cut is None else (Offset(kept.cut[0]), kept.cut[1])
    aligner = Aligner(state=RunState.restored(kept.state, settings))
    return aligner, kept.metadata, cut


@contextmanager
def _counting_refusals(
    counters: Counters, key: ExperimentKey, what: str, lost: str
) -> Iterator[None]:
    """Count and log a refused state in the block, and go on without it."""
    try:
        yield
    except StateRefused as exc:
        counters.add(Counter.STATES_LOST, reason=StateFault.REFUSED, run=key)
        _log.error(  # the error's message holds the remedy
            "%s refused: %s. No bridge of this version has written that; %s. Find out who else "
            "can write to the journal.",
            what,
            exc,
            lost,
        )


def _share(one: Spooled, part: Decoded, part_points: int) -> float:
    """Return the work of a part beside one of ``part_points``; a small batch is less than one."""
    if part.has_more:
        return 1.0
    return min(1.0, len(one.batch.payload) / (part_points * _POINT_BYTES))


def _after(part: Decoded, lost_ns: int) -> Decoded:
    """Return the part after a time. Announcements may be repeated anyway."""
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
