"""The thread that makes rows, from the start of a bridge to its end."""

import logging
import math
import threading
import time
from collections.abc import Callable

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.counters import Counter, Counters, Where
from otel_rl.bridge.delivery.manager import DeliveryManager, RunStatus
from otel_rl.bridge.diagnosis.scheduler import DiagnosisScheduler
from otel_rl.bridge.rows.scheduler import Scheduler
from otel_rl.bridge.stores import Stores
from otel_rl.errors import JournalError, JournalGone

_log = logging.getLogger(__name__)

# Rows are also closed by time, so rounds run even when nothing arrives.
_TICK_S = 0.4

# A stopping bridge looks this often whether trackers have made room.
_LEFT_S = 0.2

# Each round costs each run, however little came, so requests are gathered, from the beginning of
# the last rounds, for this many times their CPU time, and for this long at most: rows may be that
# much later.
_GATHERING = 60.0
_MAX_GATHERING_S = 0.15

# While the disk blocks all requests, or this process is starved, no sender can report. Pauses
# longer than this do not count as silence or lateness.
_HELD_UP_S = 1.0

# After a full disk or a bug.
_RETRY_S = 1.0

# Without room for rows, a stopping bridge waits this long for trackers that refuse them.
_NO_ROOM_S = 5.0

# What goes wrong is tried again every second; it is worth one line a minute.
_LOG_EVERY_NS = 60_000_000_000


def stop_timeout_s(settings: BridgeSettings) -> float:
    journal = settings.journal
    # A lease is renewed until the end, but others wait for the runs.
    is_shared = journal.url is not None
    return min(settings.stop_timeout_s, journal.lease_s) if is_shared else settings.stop_timeout_s


class RowThread:
    """Makes rows of the batches in the spool. Other threads call the public methods.

    Args:
        stores: Journal from which rows are made, and in which they are kept.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        stores: Stores,
        rows: Scheduler,
        *,
        delivery: DeliveryManager,
        diagnosis: DiagnosisScheduler,
        counters: Counters,
        clock_ns: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._is_shared = settings.journal.url is not None
        self._rows = rows
        self._journal = stores.journal
        self._spool = stores.spool
        self._delivery = delivery
        self._diagnosis = diagnosis
        self._counters = counters
        self._clock_ns = clock_ns
        self._stopping = threading.Event()
        self._work = threading.Event()
        self._logged_ns = 0
        self._round_s = time.monotonic()
        # Set before ``stopping``, read after it.
        self._stop_begun_s = math.inf
        self._failed: bool | None = None
        self._ended_by: str | None = None
        self._thread = threading.Thread(target=self._run, name="otel-rl-drain", daemon=True)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._work.set()

    def stop(self, *, begun_s: float, failed: bool | None, by: str | None = None) -> None:
        """Make the last rows, and wait for the end of the thread.

        Args:
            begun_s: Time at which the bridge began to stop, see ``time.monotonic``.
            failed: Whether workers that did not report their end have failed; None if they may
                still run.
            by: Signal that ended the workers; None if none is known.
        """
        self._stop_begun_s = begun_s
        self._failed, self._ended_by = failed, by
        self._stopping.set()
        self._work.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            stopping = self._stopping.is_set()
            pause_s = 0.0
            begun_s, used_s = time.monotonic(), time.thread_time()
            try:
                if stopping and not self._is_shared:
                    self._finish()
                    self._look_last()
                else:
                    while self._round() and self._may_go_on():
                        pass
            except JournalGone:
                pause_s = _RETRY_S  # the journal has logged it
            except JournalError as exc:
                pause_s = _RETRY_S
                if self._may_log():
                    _log.warning("Rows cannot be stored, the batches wait: %s", exc)
            except Exception:  # noqa: BLE001  # the thread outlives any single failure; counted
                pause_s = _RETRY_S
                self._counters.add(Counter.EXCEPTIONS, reason=Where.DRAIN)
                if self._may_log():
                    _log.exception("Making rows failed; the batches are kept, retrying.")
            if stopping:
                return
            if pause_s:
                self._stopping.wait(pause_s)
            else:
                used_s = time.thread_time() - used_s
                self._wait_for_work(begun_s + min(_MAX_GATHERING_S, _GATHERING * used_s))

    def _wait_for_work(self, at_least_s: float) -> None:
        """Sleep until there is a request, at least until ``at_least_s``, at most a tick longer."""
        left_s = max(0.0, at_least_s - time.monotonic())
        if self._work.wait(left_s + _TICK_S):
            self._stopping.wait(max(0.0, at_least_s - time.monotonic()))
        self._work.clear()

    def _round(self) -> bool:
        """Run one round of making rows. Returns whether more may be ready at once."""
        if self._journal.busy_s > _HELD_UP_S:
            return False  # the run's rows could not be stored, and may depend on waiting batches
        begun_s, last_s = time.monotonic(), self._round_s
        if begun_s - last_s > _HELD_UP_S:
            self._rows.go_on(self._clock_ns() - int(_HELD_UP_S * 1e9))
        has_more = self._rows.round(self._clock_ns())
        self._round_s = begun_s
        return has_more

    def _may_go_on(self) -> bool:
        """Return whether to begin another round at once; a stopping bridge has a deadline."""
        if not self._stopping.is_set():
            return True
        until_s = self._stop_begun_s + stop_timeout_s(self._settings)
        return self._is_shared and time.monotonic() < until_s

    def _finish(self) -> None:
        """Make rows of everything that was accepted, for at most half of the stop timeout.

        Without room for rows, trackers free some by taking present rows: wait as long as a tracker
        is about to take some, however slow it is.
        """
        taken_s = time.monotonic()
        until_s = self._stop_begun_s + self._settings.stop_timeout_s / 2
        safe_rows = 0
        while True:
            self._rows.finish(
                self._clock_ns(),
                failed=self._failed,
                by=self._ended_by,
                is_over=lambda: time.monotonic() > until_s,
            )
            now_s, runs = time.monotonic(), self._delivery.status()
            safe_rows, before = sum(run.safe_row for run in runs), safe_rows
            if safe_rows > before or any(map(_is_at_work, runs)):
                taken_s = now_s
            if now_s > until_s or now_s - taken_s > _NO_ROOM_S or not self._spool.pending():
                return
            time.sleep(_LEFT_S)

    def _look_last(self) -> None:
        if self._diagnosis.look_last():
            while self._rows.round(self._clock_ns()):
                pass

    def _may_log(self) -> bool:
        now_ns = self._clock_ns()
        if 0 <= now_ns - self._logged_ns < _LOG_EVERY_NS:
            return False
        self._logged_ns = now_ns
        return True


def _is_at_work(run: RunStatus) -> bool:
    return not run.last_error and (run.pending > 0 or run.next_row > run.safe_row)
