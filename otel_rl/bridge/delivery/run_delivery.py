"""Delivery of one run: a thread and a writer, for as long as there is work.

WAITING -> OPENING -> LIVE -> FINISHED     all rows written, run closed, as the experiment ended
   ^          |         |
   |          v         v
   |       RETRYING, REJECTED -> OPENING   after a pause, by a new writer
   +--------------------+                  closed, because another run needs the place
"""

import contextlib
import logging
import math
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from otel_rl.bridge.counters import Counter, TrackerFailure, Where
from otel_rl.bridge.delivery.session import Route, TrackerSession
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import Writer
from otel_rl.bridge.delivery.writer_slots import WriterSlots
from otel_rl.errors import (
    JournalError,
    JournalFull,
    JournalGone,
    LeaseLost,
    RunDiverged,
    TrackerError,
    TrackerRejected,
    TrackerUnavailable,
)
from otel_rl.records import Description, ExperimentKey, ExperimentStatus
from otel_rl.run_id import run_id

_log = logging.getLogger(__name__)

_MAX_STOP_RETRY_S = 2.0  # while a caller waits for the end

_REPORT_INTERVAL_S = 60.0  # an unavailable tracker is worth one line a minute

# Exit code of a run, unless the bridge itself ends it with an error. W&B's own SDK uses 255 for a
# run stopped by its user.
_EXIT_CODES = {
    ExperimentStatus.COMPLETE: 0,
    ExperimentStatus.CRASHED: 1,
    ExperimentStatus.ABORTED: 255,
}


class RunState(StrEnum):
    """State of a run's delivery.

    Attributes:
        WAITING: The run has no writer: it is new, or made room for another run.
        OPENING: The tracker is opening the run.
        LIVE: Rows are written as they come.
        RETRYING: The tracker is unavailable. The rows are kept.
        REJECTED: The tracker refuses the run. The rows are kept, and it is retried at intervals.
        FINISHED: All rows are written and the tracker's run is closed.
    """

    WAITING = "waiting"
    OPENING = "opening"
    LIVE = "live"
    RETRYING = "retrying"
    REJECTED = "rejected"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Delivery status of one run.

    Attributes:
        location: URL or path at the tracker; empty before the first opening.
        next_row: All rows below it are handed to the tracker; after a failure, all rows below it
            are confirmed.
        safe_row: All rows below it are known to be safe at the tracker.
        pending: Number of rows that wait to be handed over.
        last_error: The last error; empty once the tracker takes rows again.
    """

    key: ExperimentKey
    tracker: str
    location: str
    state: RunState
    next_row: int
    safe_row: int
    pending: int
    last_error: str


@dataclass(frozen=True, slots=True)
class Openings:
    """How the runs of one tracker are opened.

    Attributes:
        writer: Makes a driver of the tracker for each opening.
        slots: Limits the number of live runs.
        opened: Called with each run and its location when the location becomes known or changes.
        knows_run: Tells whether a run with this metadata can be opened, see ``TrackerKind``.
        nothing_follows: Set once no metadata can come any more.
        refusal: Why the run is not to be opened at all while this bridge runs; None if it may be.
    """

    writer: Callable[[], Writer]
    slots: "WriterSlots[RunDelivery]"
    opened: Callable[[ExperimentKey, str], None]
    knows_run: Callable[[Description], bool]
    nothing_follows: threading.Event = field(default_factory=threading.Event)
    refusal: TrackerRejected | None = None


class RunDelivery:
    """Thread of one run's delivery: from the first new row until no work is left, over failures.

    Any thread may call the public methods; only ``join`` waits.
    """

    def __init__(self, key: ExperimentKey, route: Route, openings: Openings) -> None:
        self.key = key
        self._source, self._settings, self._count = route.source, route.settings, route.count
        self._monotonic = route.monotonic
        self._route, self._openings = route, openings
        self._info = RunInfo(
            key,
            run_id(key.experiment, key.trial),
            self._settings.directory,
            tuple(sorted(self._settings.attributes.items())),
            self._settings.scratch,
            self._source.identity,
            tracker=self._settings.tracker,
        )
        # Used by the run's own thread only.
        self._retries = Retries(key, route)
        self._diverged: RunDiverged | None = None
        # Used by callers only.
        self._numbered = 0
        # _changed guards everything below, and is notified of each request.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # What callers have asked for.
        self._news = False
        self._exit_code: int | None = None  # set: the run is closed once its rows are written
        self._room_wanted = False  # by another run, which needs the slot
        self._killed = False
        # How the run stands.
        self._waits = False  # for the tracker to know its run
        self._state = RunState.WAITING
        self._location = ""
        self._error = ""
        self._writer: Writer | None = None
        self._opened: TrackerSession | None = None  # the last one that succeeded
        self._pruned_row = 0  # all rows below were confirmed before this process began
        self._closed_at: tuple[int, int] | None = None  # next row and exit code

    def wake(self) -> None:
        with self._changed:
            self._news = True
            self._changed.notify_all()
            if self._thread is None and not self._killed:
                self._thread = threading.Thread(
                    target=self._deliver,
                    name=f"otel-rl-delivery-{self._settings.tracker}-{self._info.run_id}",
                    daemon=True,  # a tracker that hangs does not keep a stopped bridge alive
                )
                self._thread.start()

    def stop(self, exit_code: int) -> None:
        """Close the run once its rows are written; give up if it is refused or has no journal."""
        with self._changed:
            self._exit_code = exit_code
            self.wake()

    def join(self, timeout_s: float) -> None:
        with self._changed:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def is_over(self) -> bool:
        """Return whether the run is closed because its experiment ended, or had no rows."""
        with self._changed:
            is_closed = self._state is RunState.FINISHED or self._closed_at is None
            is_idle = self._thread is None and not self._news
            return is_idle and is_closed and not self._waits

    def is_idle(self) -> bool:
        with self._changed:
            return self._thread is None

    def kill(self) -> None:
        """End the writer at once, and start no other writer."""
        with self._changed:
            self._killed = True
            self._changed.notify_all()
            writer = self._writer
        if writer is not None:
            writer.kill()

    def status(self) -> RunStatus:
        with contextlib.suppress(JournalError):  # otherwise the last known number
            self._numbered = self._source.next_row(self.key)
        with self._changed:
            next_row, safe_row = self._pruned_row, 0
            if self._opened is not None:
                next_row, safe_row = self._opened.next_row, self._opened.safe_row
                if self._state in {RunState.RETRYING, RunState.REJECTED}:
                    # The writer has failed: unconfirmed rows are handed over again.
                    next_row = max(self._opened.held_row, self._pruned_row)
            return RunStatus(
                key=self.key,
                tracker=self._settings.tracker,
                location=self._location,
                state=self._state,
                next_row=next_row,
                safe_row=safe_row,
                pending=max(0, self._numbered - next_row),
                last_error=self._error,
            )

    def _is_killed(self) -> bool:
        with self._changed:
            return self._killed

    def _make_room(self) -> None:
        with self._changed:
            self._room_wanted = True
            self._changed.notify_all()

    # Below: the run's own thread.

    def _deliver(self) -> None:
        while True:
            with self._changed:
                is_last_try = self._exit_code is not None
            try:
                if not self._has_work():
                    return
                self._find_pruned_rows()
                if self._openings.refusal is not None:
                    raise self._openings.refusal
                with self._openings.slots.hold(self, self._make_room, self._is_killed) as held:
                    if held:
                        self._write()
            except LeaseLost:
                _log.info("%s is written by another bridge from now on", self.key)
            except JournalGone as exc:
                self._failed(RunState.RETRYING, TrackerFailure.JOURNAL, exc, give_up=is_last_try)
            except JournalError as exc:
                self._failed(RunState.RETRYING, TrackerFailure.JOURNAL, exc)
            except TrackerRejected as exc:
                is_final = exc is self._openings.refusal
                if is_final:
                    _log.warning("The rows of %s stay in the journal: %s", self.key, exc)
                give_up = is_last_try or is_final
                self._failed(RunState.REJECTED, TrackerFailure.REJECTED, exc, give_up=give_up)
            except TrackerError as exc:
                self._failed(RunState.RETRYING, TrackerFailure.UNAVAILABLE, exc)
            except Exception as exc:  # noqa: BLE001  # an edge: the rows must reach the tracker
                self._count(Counter.EXCEPTIONS, reason=Where.DELIVERY)
                self._failed(RunState.RETRYING, TrackerFailure.UNEXPECTED, exc)

    def _has_work(self) -> bool:
        """Return whether to open the run. If not, the thread ends until the next ``wake``."""
        while True:
            if not self._take_news():  # before the journal is asked, which may fail
                return False
            is_ours = self._source.is_ours(self.key)
            numbered = self._source.next_row(self.key)
            exit_code = self._run_exit_code()
            can_open = self._can_open()
            with self._changed:
                killed = self._killed
                is_due = bool(numbered) and is_ours and not killed
                self._waits = is_due and not can_open
                if is_due and can_open and self._lacks(numbered, exit_code):
                    return True
                if killed or not self._news:
                    self._thread = None
                    if exit_code is not None and not killed and is_ours and can_open:
                        self._state = RunState.FINISHED
                    return False

    def _take_news(self) -> bool:
        """Clear the request to look for rows. Returns False if the delivery was killed."""
        with self._changed:
            self._news = False
            if self._killed:
                self._thread = None
            return not self._killed

    def _run_exit_code(self) -> int | None:
        ended = _EXIT_CODES.get(self._source.description(self.key).status)
        with self._changed:
            wanted = self._exit_code
        return ended if wanted is None else ended or wanted

    def _can_open(self) -> bool:
        """Return whether the metadata names the run to write, or no more metadata can come."""
        description = self._source.description(self.key)
        has_ended = description.status is not ExperimentStatus.RUNNING
        with self._changed:
            is_over = has_ended and self._exit_code is not None
        is_told = is_over or self._openings.nothing_follows.is_set()
        return is_told or self._openings.knows_run(description)

    def _lacks(self, numbered: int, exit_code: int | None) -> bool:
        if self._closed_at is None:
            return True
        rows, code = self._closed_at
        return rows < numbered or exit_code not in {None, code}

    def _find_pruned_rows(self) -> None:
        if self._opened is None:
            kept = self._source.rows(self.key, start=0, limit=1)
            with self._changed:
                self._pruned_row = kept[0].number if kept else 0

    def _write(self) -> None:
        """Open the run with a new writer and write rows until the run is to be closed."""
        if self._diverged is not None:
            raise self._diverged
        with self._openings.writer() as writer:
            with self._changed:
                if self._killed:
                    return
                self._writer = writer
                self._room_wanted = False
                self._closed_at = None
                self._state = RunState.OPENING
            try:
                self._pump(self._open(writer))
            except RunDiverged as exc:
                self._diverged = exc
                raise
            finally:
                with self._changed:
                    self._writer = None

    def _open(self, writer: Writer) -> TrackerSession:
        opened = TrackerSession(writer, self._info, self._route, before=self._opened)
        opened.open()
        self._openings.slots.started(self)
        location = opened.location
        with self._changed:
            self._state = RunState.LIVE
            is_elsewhere = self._location != location
            self._location = location
            self._opened = opened
        if is_elsewhere:
            with contextlib.suppress(JournalFull):  # the next opening stores it
                self._route.record.opened(self.key, location)
            self._openings.opened(self.key, location)
        return opened

    def _pump(self, opened: TrackerSession) -> None:
        opened_at = wrote_at = self._monotonic()
        while True:
            # Read before the rows, so that rows that preceded the request to close are seen.
            exit_code = self._exit_code_if_drained(opened_at, wrote_at)
            before = opened.next_row
            more = opened.step()
            if opened.next_row > before:
                self._openings.slots.used(self)
                wrote_at = self._monotonic()
            if opened.is_well():
                with self._changed:
                    self._error = ""
                    state = self._state
                self._retries.store(state, "")
            if self._monotonic() - opened_at > self._settings.max_retry_s:
                self._retries.reset()
            if more:
                continue
            if exit_code is not None:
                opened.close(exit_code=exit_code)
                self._closed(opened.next_row, exit_code)
                return
            self._wait(opened.due_in_s(), opened_at, wrote_at)

    def _exit_code_if_drained(self, opened_at: float, wrote_at: float) -> int | None:
        now = self._monotonic()
        exit_code = self._run_exit_code()
        has_ended = exit_code is not None and now - wrote_at >= self._settings.end_grace_s
        with self._changed:
            self._news = False
            is_asked = self._room_wanted and now - opened_at >= self._settings.min_hold_s
            if has_ended or is_asked or self._exit_code is not None:
                return exit_code or 0
        return None

    def _closed(self, position: int, exit_code: int) -> None:
        self._retries.reset()
        has_ended = self._run_exit_code() is not None
        with self._changed:
            self._closed_at = (position, exit_code)
            self._state = RunState.FINISHED if has_ended else RunState.WAITING

    def _wait(self, due_in_s: float, opened_at: float, wrote_at: float) -> None:
        """Wait for a request, or until something is due."""
        now = self._monotonic()
        if self._run_exit_code() is not None:
            due_in_s = min(due_in_s, wrote_at + self._settings.end_grace_s - now)
        with self._changed:
            asked = self._room_wanted
            if asked:
                due_in_s = min(due_in_s, opened_at + self._settings.min_hold_s - now)
            self._changed.wait_for(
                lambda: self._news or self._killed or self._room_wanted is not asked,
                None if due_in_s == math.inf else max(0.0, due_in_s),
            )
            if self._killed:
                raise TrackerUnavailable("The bridge stopped before all rows were written.")

    def _failed(
        self, state: RunState, reason: TrackerFailure, exc: Exception, *, give_up: bool = False
    ) -> None:
        """Keep the rows, report the error, and pause; or end for good."""
        with self._changed:
            killed, stopping = self._killed, self._exit_code is not None
            self._state = state
            if not killed or not self._error:  # of a killed run the first error tells why
                self._error = str(exc)
            if killed:
                return
            self._killed = give_up
        self._retries.store(state, str(exc) or type(exc).__name__)
        if give_up:
            return
        self._count(Counter.TRACKER_RETRIES, reason=reason, run=self.key)
        pause_s = min(self._retries.pause_s(state), _MAX_STOP_RETRY_S if stopping else math.inf)
        self._retries.log(exc, pause_s, with_trace=reason is TrackerFailure.UNEXPECTED)
        with self._changed:  # a stop during the pause is a reason to retry at once
            self._changed.wait_for(
                lambda: self._killed or (self._exit_code is not None) is not stopping,
                timeout=pause_s,
            )


class Retries:
    """Pauses, log lines and stored errors of one run, for the run's own thread.

    Args:
        route: Stores errors for later status queries; the rows do not depend on them.
        jitter: Returns a number in [0, 1) that spreads retries.
    """

    def __init__(
        self, key: ExperimentKey, route: Route, jitter: Callable[[], float] = random.random
    ) -> None:
        self._key = key
        self._settings = route.settings
        self._record, self._count = route.record, route.count
        self._monotonic = route.monotonic
        self._jitter = jitter
        self._failures = 0
        self._logged_at = -math.inf
        self._stored_at = -math.inf
        self._may_be_stored = True  # possibly by the bridge before this one

    def reset(self) -> None:
        self._failures = 0

    def pause_s(self, state: RunState) -> float:
        """Return the seconds until the next attempt after one more failure in ``state``."""
        longest = self._settings.max_retry_s
        if state is not RunState.REJECTED:
            longest = min(longest, self._settings.first_retry_s * (1 << self._failures))
            self._failures = min(self._failures + 1, 30)
        return longest * (0.5 + self._jitter() / 2)

    def log(self, exc: Exception, pause_s: float, *, with_trace: bool) -> None:
        """Log a failure, unless one was logged in the last minute."""
        now = self._monotonic()
        if now - self._logged_at < _REPORT_INTERVAL_S:
            return
        self._logged_at = now
        _log.warning(
            "The tracker does not accept the rows of %s: %s They are kept; retrying in %.1f s.",
            self._key,
            exc,
            pause_s,
            exc_info=exc if with_trace else None,
        )

    def store(self, state: RunState, error: str) -> None:
        """Store an error, at most one a minute; store "" at once if an error may be stored."""
        now = self._monotonic()
        if (now - self._stored_at < _REPORT_INTERVAL_S) if error else not self._may_be_stored:
            return
        self._stored_at = now if error else -math.inf
        self._may_be_stored = bool(error)
        try:
            self._record.reported(self._key, state, error)
        except JournalError as exc:
            _log.debug("Cannot store the delivery error of %s: %s", self._key, exc)
        except Exception:  # noqa: BLE001  # an edge: the delivery goes on, though nobody is told
            self._count(Counter.EXCEPTIONS, reason=Where.DELIVERY)
            _log.exception("Cannot store the delivery error of %s.", self._key)
