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
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from otel_rl.bridge.counters import Counter, TrackerFailure, Where
from otel_rl.bridge.delivery.delivery_interfaces import (
    Count,
    DeliveryRecord,
    DeliverySettings,
    RowSource,
    RunState,
    RunStatus,
    Writer,
)
from otel_rl.bridge.delivery.retries import Retries
from otel_rl.bridge.delivery.selection.project_keys import ProjectKeys
from otel_rl.bridge.delivery.session import TrackerSession
from otel_rl.bridge.delivery.tracker_interface import RunInfo
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
from otel_rl.records import ExperimentKey, ExperimentStatus
from otel_rl.run_id import run_id

__all__ = ["RunDelivery", "Shared"]

_log = logging.getLogger(__name__)

_MAX_STOP_RETRY_S = 2.0  # while a caller waits for the end

# Exit code of a run, unless the bridge itself ends it with an error. W&B's own SDK uses 255 for a
# run stopped by its user.
_EXIT_CODES = {
    ExperimentStatus.COMPLETE: 0,
    ExperimentStatus.CRASHED: 1,
    ExperimentStatus.ABORTED: 255,
}


@dataclass(frozen=True, slots=True)
class Shared:
    """Common objects of the deliveries of all runs.

    Attributes:
        source: Store of the rows.
        record: Record of what the tracker has.
        settings: Settings of the delivery.
        count: Adds to the bridge's counters.
        slots: Limits the number of live runs.
        writer: Makes the driver of the tracker, anew for each opening.
        monotonic: Seconds, for intervals.
        jitter: Returns a number in [0, 1) that spreads retries.
        opened: Called with each run and its location, when that is known or another one.
        project: Keys of all runs.
    """

    source: RowSource
    record: DeliveryRecord
    settings: DeliverySettings
    count: Count
    slots: "WriterSlots[RunDelivery]"
    writer: Callable[[], Writer]
    monotonic: Callable[[], float]
    jitter: Callable[[], float]
    opened: Callable[[ExperimentKey, str], None] = lambda *_: None
    project: ProjectKeys = field(default_factory=ProjectKeys)


class RunDelivery:
    """Delivers one run. Any thread may call the public methods; only ``join`` waits."""

    def __init__(self, key: ExperimentKey, shared: Shared) -> None:
        self.key = key
        self._shared = shared
        self._settings = shared.settings
        self._info = RunInfo(
            key,
            run_id(key.experiment, key.trial),
            self._settings.directory,
            tuple(sorted(self._settings.attributes.items())),
            self._settings.scratch,
            shared.source.identity,
            tracker=shared.settings.tracker,
        )
        # Used by the run's own thread only.
        self._retries = Retries(
            key,
            shared.settings,
            shared.record,
            monotonic=shared.monotonic,
            jitter=shared.jitter,
        )
        self._diverged: RunDiverged | None = None
        # Used by callers only.
        self._numbered = 0
        # _changed guards everything below, and is notified of every request.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._writer: Writer | None = None
        self._opened: TrackerSession | None = None  # the last one that succeeded
        self._pruned_row = 0  # all rows below were confirmed before this process began
        self._news = False
        self._wanted_exit_code: int | None = None
        self._stopping = False
        self._killed = False
        self._room_wanted = False
        self._closed_at: tuple[int, int] | None = None  # next row and exit code
        self._state = RunState.WAITING
        self._location = ""
        self._error = ""

    def wake(self) -> None:
        """Look for new rows."""
        with self._changed:
            self._ensure_thread()

    def stop(self, exit_code: int) -> None:
        """Close the run once its rows are written; give up on a refusal, or without a journal."""
        with self._changed:
            self._stopping = True
            self._wanted_exit_code = exit_code
            self._ensure_thread()

    def join(self, timeout_s: float) -> None:
        """Wait until there is nothing left to do."""
        with self._changed:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def is_over(self) -> bool:
        """Return whether the run is closed as the experiment ended, or had no rows."""
        with self._changed:
            is_closed = self._state is RunState.FINISHED or self._closed_at is None
            return self._thread is None and not self._news and is_closed

    def is_idle(self) -> bool:
        """Return whether there is no work at the moment."""
        with self._changed:
            return self._thread is None

    def kill(self) -> None:
        """End the writer at once, and start no other."""
        with self._changed:
            self._killed = True
            self._changed.notify_all()
            writer = self._writer
        if writer is not None:
            writer.kill()

    def status(self) -> RunStatus:
        """Return the status of the delivery."""
        with contextlib.suppress(JournalError):  # otherwise the last known number
            self._numbered = self._shared.source.next_row(self.key)
        with self._changed:
            next_row = self._opened.next_row if self._opened else self._pruned_row
            if self._opened and self._state in {RunState.RETRYING, RunState.REJECTED}:
                # Unconfirmed rows are handed over again.
                next_row = max(self._opened.held_row, self._pruned_row)
            return RunStatus(
                key=self.key,
                tracker=self._settings.tracker,
                location=self._location,
                state=self._state,
                next_row=next_row,
                safe_row=self._opened.safe_row if self._opened else 0,
                pending=max(0, self._numbered - next_row),
                last_error=self._error,
            )

    def _ensure_thread(self) -> None:
        self._news = True
        self._changed.notify_all()
        if self._thread is None and not self._killed:
            self._thread = threading.Thread(
                target=self._deliver,
                name=f"otel-rl-delivery-{self._settings.tracker}-{self._info.run_id}",
                daemon=True,  # a tracker that hangs does not keep a stopped bridge alive
            )
            self._thread.start()

    def _make_room(self) -> None:
        with self._changed:
            self._room_wanted = True
            self._changed.notify_all()

    # Below: the run's own thread.

    def _deliver(self) -> None:
        while True:
            last_try = self._is_stopping()
            try:
                if not self._has_work():
                    return
                self._find_pruned_rows()
                with self._shared.slots.hold(self, self._make_room, self._is_killed) as held:
                    if held:
                        self._write_run()
            except LeaseLost:
                _log.info("%s is written by another bridge from now on", self.key)
            except JournalGone as exc:
                self._failed(RunState.RETRYING, TrackerFailure.JOURNAL, exc, give_up=last_try)
            except JournalError as exc:
                self._failed(RunState.RETRYING, TrackerFailure.JOURNAL, exc)
            except TrackerRejected as exc:
                self._failed(RunState.REJECTED, TrackerFailure.REJECTED, exc, give_up=last_try)
            except TrackerError as exc:
                self._failed(RunState.RETRYING, TrackerFailure.UNAVAILABLE, exc)
            except Exception as exc:  # noqa: BLE001  # an edge: the rows must reach the tracker
                self._shared.count(Counter.EXCEPTIONS, reason=Where.DELIVERY)
                self._failed(RunState.RETRYING, TrackerFailure.UNEXPECTED, exc)

    def _has_work(self) -> bool:
        """Return whether to go on. If not, the thread ends, and the next request starts another."""
        while True:
            with self._changed:
                self._news, killed = False, self._killed
                if killed:  # before the journal is asked, which may fail
                    self._thread = None
                    return False
            is_ours = self._shared.source.is_ours(self.key)
            numbered = self._shared.source.next_row(self.key)
            exit_code = self._exit_code()
            with self._changed:
                if self._killed or not numbered or not is_ours:
                    work = False
                elif self._closed_at is None:
                    work = True
                else:
                    rows, code = self._closed_at
                    work = rows < numbered or exit_code not in {None, code}
                if work:
                    return True
                if not self._news or self._killed:
                    self._thread = None
                    if exit_code is not None and not self._killed and is_ours:
                        self._state = RunState.FINISHED
                    return False

    def _find_pruned_rows(self) -> None:
        if self._opened is None:
            kept = self._shared.source.rows(self.key, start=0, limit=1)
            with self._changed:
                self._pruned_row = kept[0].number if kept else 0

    def _write_run(self) -> None:
        if self._diverged is not None:
            raise self._diverged
        with self._shared.writer() as writer:
            with self._changed:
                if self._killed:
                    return
                self._writer = writer
                self._room_wanted = False
                self._closed_at = None
                self._state = RunState.OPENING
            try:
                opened = TrackerSession(
                    writer,
                    self._info,
                    self._shared.source,
                    self._shared.record,
                    self._settings,
                    self._shared.count,
                    self._shared.monotonic,
                    before=self._opened,
                    project=self._shared.project,
                )
                opened.open()
                self._shared.slots.started(self)
                with self._changed:
                    self._state = RunState.LIVE
                    is_elsewhere = self._location != opened.location
                    self._location = opened.location
                    self._opened = opened
                if is_elsewhere:
                    with contextlib.suppress(JournalFull):  # the next opening stores it
                        self._shared.record.opened(self.key, opened.location)
                    self._shared.opened(self.key, opened.location)
                self._pump(opened)
            except RunDiverged as exc:
                self._diverged = exc
                raise
            finally:
                with self._changed:
                    self._writer = None

    def _pump(self, opened: TrackerSession) -> None:
        """Write rows as they come, until the run is to be closed."""
        opened_at = wrote_at = self._shared.monotonic()
        while True:
            # Read before the rows, so that rows that preceded the request to close are seen.
            exit_code = self._exit_code_if_drained(opened_at, wrote_at)
            before = opened.next_row
            more = opened.step()
            if opened.next_row > before:
                self._shared.slots.used(self)
                wrote_at = self._shared.monotonic()
            if opened.is_well():
                self._recovered()
            if self._shared.monotonic() - opened_at > self._settings.max_retry_s:
                self._retries.reset()
            if more:
                continue
            if exit_code is not None:
                opened.close(exit_code=exit_code)
                self._closed(opened.next_row, exit_code)
                return
            self._wait_for_news(opened.due_in_s(), opened_at, wrote_at)

    def _exit_code(self) -> int | None:
        """Return the run's exit code; None while neither the experiment nor the bridge ends."""
        ended = _EXIT_CODES.get(self._shared.source.description(self.key).status)
        with self._changed:
            wanted = self._wanted_exit_code
        return ended if wanted is None else ended or wanted

    def _exit_code_if_drained(self, opened_at: float, wrote_at: float) -> int | None:
        now = self._shared.monotonic()
        exit_code = self._exit_code()
        has_ended = exit_code is not None and now - wrote_at >= self._settings.end_grace_s
        with self._changed:
            self._news = False
            is_asked = self._room_wanted and now - opened_at >= self._settings.min_hold_s
            if has_ended or is_asked or self._wanted_exit_code is not None:
                return exit_code or 0
        return None

    def _closed(self, position: int, exit_code: int) -> None:
        self._retries.reset()
        with self._changed:
            self._closed_at = (position, exit_code)
        has_ended = self._exit_code() is not None
        with self._changed:
            self._state = RunState.FINISHED if has_ended else RunState.WAITING

    def _wait_for_news(self, due_in_s: float, opened_at: float, wrote_at: float) -> None:
        now = self._shared.monotonic()
        if self._exit_code() is not None:
            due_in_s = min(due_in_s, wrote_at + self._settings.end_grace_s - now)
        hold_s = opened_at + self._settings.min_hold_s - now
        with self._changed:
            asked = self._room_wanted
            timeout_s = min(due_in_s, hold_s) if asked else due_in_s
            self._changed.wait_for(
                lambda: self._news or self._killed or self._room_wanted is not asked,
                None if timeout_s == math.inf else max(0.0, timeout_s),
            )
            if self._killed:
                raise TrackerUnavailable("The bridge stopped before all rows were written.")

    def _recovered(self) -> None:
        """Clear the error: the tracker takes rows."""
        with self._changed:
            self._error = ""
            state = self._state
        self._retries.store(state, "")

    def _failed(
        self, state: RunState, reason: TrackerFailure, exc: Exception, *, give_up: bool = False
    ) -> None:
        """Keep the rows, report the error, and pause; or end for good."""
        with self._changed:
            self._state = state
            self._error = self._error if self._killed and self._error else str(exc)
            stopping = self._stopping
            if self._killed:
                return
            self._killed = give_up
        self._retries.store(state, str(exc) or type(exc).__name__)
        if give_up:
            return
        self._shared.count(Counter.TRACKER_RETRIES, reason=reason, run=self.key)
        pause_s = min(self._retries.pause_s(state), _MAX_STOP_RETRY_S if stopping else math.inf)
        self._retries.log(exc, pause_s, with_trace=reason is TrackerFailure.UNEXPECTED)
        with self._changed:
            # A stop during the pause is a reason to retry at once.
            self._changed.wait_for(
                lambda: self._killed or self._stopping is not stopping, timeout=pause_s
            )

    def _is_stopping(self) -> bool:
        with self._changed:
            return self._stopping

    def _is_killed(self) -> bool:
        with self._changed:
            return self._killed
