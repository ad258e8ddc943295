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

from otel_rl.bridge.counters import Counter, TrackerFailure, Where
from otel_rl.bridge.delivery.delivery_interfaces import RunState, RunStatus
from otel_rl.bridge.delivery.one_run.requests import Requests
from otel_rl.bridge.delivery.one_run.retries import Retries
from otel_rl.bridge.delivery.one_run.run_writing import RunWriting
from otel_rl.bridge.delivery.one_run.shared_objects import Shared
from otel_rl.bridge.delivery.one_run.standing import Standing
from otel_rl.bridge.delivery.tracker_interface import RunInfo
from otel_rl.errors import (
    JournalError,
    JournalGone,
    LeaseLost,
    TrackerError,
    TrackerRejected,
)
from otel_rl.records import ExperimentKey, ExperimentStatus
from otel_rl.run_id import run_id

__all__ = ["RunDelivery"]

_log = logging.getLogger(__name__)

_MAX_STOP_RETRY_S = 2.0  # while a caller waits for the end


class RunDelivery:
    """Thread of one run's delivery, from the first new row until there is no work, over failures.

    Any thread may call the public methods; only ``join`` waits.
    """

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
        # Used by callers only.
        self._numbered = 0
        self._requests = Requests(key)
        self._changed = self._requests.changed  # guards everything below
        self._thread: threading.Thread | None = None
        self._waits = False  # for the tracker to know its run
        self._standing = Standing(self._changed)
        self._writing = RunWriting(
            self._info, shared, self._requests, self._standing, self._retries
        )

    def wake(self) -> None:
        """Look for new rows."""
        with self._changed:
            self._ensure_thread()

    def stop(self, exit_code: int) -> None:
        """Close the run once its rows are written; give up on a refusal, or without a journal."""
        with self._changed:
            self._requests.stop(exit_code)
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
            is_closed = self._standing.state is RunState.FINISHED or not self._writing.is_closed()
            is_idle = self._thread is None and not self._requests.has_news()
            return is_idle and is_closed and not self._waits

    def is_idle(self) -> bool:
        """Return whether there is no work at the moment."""
        with self._changed:
            return self._thread is None

    def kill(self) -> None:
        """End the writer at once, and start no other."""
        self._requests.kill()
        self._writing.kill()

    def status(self) -> RunStatus:
        """Return the status of the delivery."""
        with contextlib.suppress(JournalError):  # otherwise the last known number
            self._numbered = self._shared.source.next_row(self.key)
        with self._changed:
            state = self._standing.state
            next_row, safe_row = self._writing.positions(
                is_held=state in {RunState.RETRYING, RunState.REJECTED}
            )
            return RunStatus(
                key=self.key,
                tracker=self._settings.tracker,
                location=self._standing.location,
                state=state,
                next_row=next_row,
                safe_row=safe_row,
                pending=max(0, self._numbered - next_row),
                last_error=self._standing.error,
            )

    def _ensure_thread(self) -> None:
        self._requests.wake()
        if self._thread is None and not self._requests.is_killed():
            self._thread = threading.Thread(
                target=self._deliver,
                name=f"otel-rl-delivery-{self._settings.tracker}-{self._info.run_id}",
                daemon=True,  # a tracker that hangs does not keep a stopped bridge alive
            )
            self._thread.start()

    # Below: the run's own thread.

    def _deliver(self) -> None:
        requests, writing = self._requests, self._writing
        while True:
            last_try = requests.is_stopping()
            try:
                if not self._has_work():
                    return
                writing.find_pruned_rows()
                with self._shared.slots.hold(
                    requests, requests.make_room, requests.is_killed
                ) as held:
                    if held:
                        writing.write()
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
                self._requests.take_news()
                if self._requests.is_killed():  # before the journal is asked, which may fail
                    self._thread = None
                    return False
            is_ours = self._shared.source.is_ours(self.key)
            numbered = self._shared.source.next_row(self.key)
            exit_code = self._writing.exit_code()
            can_open = self._can_open()
            with self._changed:
                killed = self._requests.is_killed()
                is_due = bool(numbered) and is_ours and not killed
                self._waits = is_due and not can_open
                if is_due and can_open and self._writing.lacks(numbered, exit_code):
                    return True
                if killed or not self._requests.has_news():
                    self._thread = None
                    if exit_code is not None and not killed and is_ours and can_open:
                        self._standing.enter(RunState.FINISHED)
                    return False

    def _can_open(self) -> bool:
        """Return whether the tracker knows its run, or nothing more will be said of it."""
        description = self._shared.source.description(self.key)
        has_ended = description.status is not ExperimentStatus.RUNNING
        is_over = has_ended and self._requests.is_stopping()
        is_told = is_over or self._shared.nothing_follows.is_set()
        return is_told or self._shared.knows_run(description)

    def _failed(
        self, state: RunState, reason: TrackerFailure, exc: Exception, *, give_up: bool = False
    ) -> None:
        """Keep the rows, report the error, and pause; or end for good."""
        with self._changed:
            killed, stopping = self._requests.is_killed(), self._requests.is_stopping()
            self._standing.fail(state, str(exc), keep_first=killed)
            if killed:
                return
            if give_up:
                self._requests.kill()
        self._retries.store(state, str(exc) or type(exc).__name__)
        if give_up:
            return
        self._shared.count(Counter.TRACKER_RETRIES, reason=reason, run=self.key)
        pause_s = min(self._retries.pause_s(state), _MAX_STOP_RETRY_S if stopping else math.inf)
        self._retries.log(exc, pause_s, with_trace=reason is TrackerFailure.UNEXPECTED)
        # A stop during the pause is a reason to retry at once.
        self._requests.pause(pause_s, stopping=stopping)
