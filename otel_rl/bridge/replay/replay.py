"""Writes one stored run to one tracker, from the tracker's own position."""

import threading
import time
from dataclasses import replace
from typing import Final

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.delivery.delivery_interfaces import DeliverySettings, RunState, RunStatus
from otel_rl.bridge.delivery.manager import DeliveryManager
from otel_rl.bridge.replay.stored_run import StoredRun
from otel_rl.records import ExperimentKey

__all__ = ["Replay"]

_FOREVER_S: Final = 1e8  # of a thread's longest wait; a replay ends for other reasons


class _NoRecord:
    """A delivery record that keeps nothing: the tracker's position is all that a replay needs."""

    def confirmed(self, key: ExperimentKey, next_row: int, /) -> None: ...

    def opened(self, key: ExperimentKey, location: str, /) -> None: ...

    def prune(self, key: ExperimentKey, below: int, /) -> None: ...

    def reported(self, key: ExperimentKey, state: str, error: str, /) -> None: ...


class Replay:
    """One run on its way to one tracker. ``run`` works; any thread may ask for ``status``.

    Args:
        source: The run.
        key: Its name in the tracker.
        settings: Of the delivery.
        patience_s: Seconds without progress after which an unavailable tracker is given up.

    Raises:
        ConfigError: The tracker cannot work with its settings.
    """

    def __init__(
        self, source: StoredRun, key: ExperimentKey, settings: DeliverySettings, patience_s: float
    ) -> None:
        self.key = key
        self.source = source
        self._patience_s = patience_s
        self._stopped = threading.Event()
        self._delivery = DeliveryManager(
            source, [(replace(settings, keep_confirmed_s=0), _NoRecord())], Counters().add
        )

    def run(self) -> RunStatus | None:
        """Write every row that the tracker lacks, and close the run; None if it has no rows."""
        if not self.source.end:
            return None
        self._delivery.notify(self.key)
        watch = threading.Thread(target=self._watch, name="otel-rl-replay-watch", daemon=True)
        watch.start()
        try:
            (status,) = self._delivery.stop(timeout_s=_FOREVER_S, exit_code=0)
        finally:
            self._stopped.set()
        return status

    def status(self) -> RunStatus | None:
        """Return how far it is; None before it began."""
        return next(iter(self._delivery.status()), None)

    def kill(self) -> None:
        """End the writer at once. The next replay goes on from the tracker's position."""
        self._stopped.set()
        self._delivery.abandon()

    def _watch(self) -> None:
        """Give up on a tracker that accepts nothing."""
        before, since_s = -1, time.monotonic()
        while not self._stopped.wait(0.2):
            status = self.status()
            position = -1 if status is None else max(status.next_row, status.safe_row)
            is_well = status is None or status.state is RunState.LIVE or not status.last_error
            if position != before or is_well:
                before, since_s = position, time.monotonic()
            elif time.monotonic() - since_s > self._patience_s:
                self._delivery.abandon()
                return
