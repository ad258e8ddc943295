"""Unloads finished runs, and removes ended runs from the journal by age or share.

It has a thread of its own, because it may take longer than a bridge lease lasts.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.counters import ArchiveDrop, Counter, Counters, Removal, Where
from otel_rl.bridge.delivery.manager import DeliveryManager, RunState, RunStatus
from otel_rl.bridge.journal.retention import Retention
from otel_rl.bridge.once_a_minute import OnceAMinute
from otel_rl.bridge.rows.scheduler import Scheduler
from otel_rl.bridge.stores import Stores
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey

_log = logging.getLogger(__name__)

# Between two looks for runs that are finished, and for ended runs to remove.
_SETTLE_S: Final = 5.0
_REMOVE_EVERY_S: Final = 60.0

# Runs that are over and still known by what became of them: for who asks, and for one that goes on.
_KEPT_IN_MEMORY: Final = 256


class Cleanup:
    """Thread that removes runs from memory and from the journal, once nothing needs them."""

    def __init__(
        self,
        settings: BridgeSettings,
        stores: Stores,
        retention: Retention,
        *,
        delivery: DeliveryManager,
        rows: Scheduler,
        counters: Counters,
        clock_ns: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._run_store = stores.run_store
        self._deliveries = stores.deliveries
        self._retention = retention
        self._delivery = delivery
        self._rows = rows
        self._counters = counters
        self._clock_ns = clock_ns
        self._log_lines = OnceAMinute()  # a failure is tried again every few seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-rl-settle", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; wait for its end unless it waits for the journal."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_SETTLE_S)

    def note_finished(self, statuses: Sequence[RunStatus]) -> None:
        """Store durably which runs a tracker has finished."""
        for status in statuses:
            deliveries = self._deliveries.of(status.tracker)
            if (
                status.state is RunState.FINISHED
                and self._run_store.is_ours(status.key)
                and deliveries.finished(status.key) != status.next_row
            ):
                deliveries.finish(status.key, status.next_row)

    def prune(self) -> None:
        """Remove rows that all trackers confirmed long enough ago."""
        keep_ns = int(self._settings.tracker.keep_confirmed_s * 1e9)
        self._deliveries.prune_finished(confirmed_before_ns=self._clock_ns() - keep_ns)

    def remove_ended(self) -> None:
        """Remove ended runs from the journal that are too old or beyond their share.

        The thread calls this every minute.

        Raises:
            JournalError: The journal is unreachable.
        """
        removed = self._retention.turn(self._clock_ns())
        self._counters.add(Counter.RUNS_REMOVED, len(removed.too_old), reason=Removal.TOO_OLD)
        self._counters.add(Counter.RUNS_REMOVED, len(removed.over_share), reason=Removal.OVER_SHARE)
        self._counters.add(
            Counter.ARCHIVE_DROPPED, removed.unarchived, reason=ArchiveDrop.RUN_REMOVED
        )
        self._let_go(removed.keys)
        if removed.keys:
            _log.info(
                "Ended runs were removed from the journal: %d by age, %d beyond the share of "
                "ended runs. Their trackers have all rows.",
                len(removed.too_old),
                len(removed.over_share),
            )

    def _run(self) -> None:
        removed_s = -math.inf
        while not self._stopping.wait(_SETTLE_S):
            try:
                self._settle()
                if time.monotonic() - removed_s >= _REMOVE_EVERY_S:
                    removed_s = time.monotonic()
                    self.remove_ended()
            except JournalError as exc:
                _log.debug("The journal is unreachable, finished runs stay in it: %s", exc)
            except Exception:  # noqa: BLE001  # what is finished stays until the next look; counted
                self._counters.add(Counter.EXCEPTIONS, reason=Where.SETTLE)
                if self._log_lines.is_due("settle"):
                    _log.exception("Unloading or removing finished runs failed; retrying.")

    def _settle(self) -> None:
        self.note_finished(self._delivery.status())
        self.prune()
        in_use = {*self._rows.experiments()}
        over = [key for key in self._delivery.over() if key not in in_use]
        self._let_go(over[:-_KEPT_IN_MEMORY])

    def _let_go(self, keys: Sequence[ExperimentKey]) -> None:
        """Forget runs that are over; the journal keeps their state in case they go on."""
        self._delivery.let_go(keys)
        self._rows.let_go(keys)
        for key in keys:
            self._run_store.forget(key)
