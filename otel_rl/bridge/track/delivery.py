"""The delivery loop: every row of every run reaches the tracker, in order, however often it fails.

    RowSource  --rows from where the tracker stands-->  one thread per run  -->  one writer process
               <--confirmed: safe below this number--

The tracker says where it stands each time it is opened, so there is no cursor of our own to be
wrong. Any failure ends the writer process; after a pause the run is opened again by a new one and
goes on from there. Rows leave the source only after they are confirmed.

Runs share nothing but the number of writers: one that hangs delays no other.
"""

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from otel_rl.bridge.track.backends import backend
from otel_rl.bridge.track.contract import (
    Count,
    DeliverySettings,
    RowSource,
    RunState,
    RunStatus,
    Writer,
)
from otel_rl.bridge.track.run_delivery import RunDelivery, Shared
from otel_rl.bridge.track.slots import Slots
from otel_rl.bridge.track.writer_process import WriterProcess
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey

__all__ = ["Count", "Delivery", "DeliverySettings", "RowSource", "RunState", "RunStatus"]

_KILL_JOIN_S = 5.0  # a thread whose writer was killed has only to notice it


class Delivery:
    """Delivers the rows of all runs to one tracker. Any thread may call any method."""

    def __init__(
        self,
        source: RowSource,
        settings: DeliverySettings,
        count: Count,
        *,
        writer: Callable[[], Writer] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Check the settings; start nothing.

        Args:
            source: Where the rows are.
            settings: What a user may set.
            count: Adds to the bridge's counters.
            writer: Makes what drives the tracker; a ``WriterProcess`` if not given.
            monotonic: Seconds, for intervals.
            jitter: Number in [0, 1) that spreads retries.

        Raises:
            ConfigError: The tracker cannot work with these settings, or not write to the directory.
        """
        backend(settings.tracker).validate(settings.attributes)
        _check_writable(settings.directory)
        self._shared = Shared(
            source,
            settings,
            count,
            Slots(settings.max_writers),
            writer or partial(WriterProcess, settings.tracker),
            monotonic,
            jitter,
        )
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._runs: dict[ExperimentKey, RunDelivery] = {}
        self._stopping = False

    def notify(self, key: ExperimentKey) -> None:
        """There may be new rows of this run. Returns at once."""
        self._run(key).wake()

    def stop(self, *, timeout_s: float, exit_code: int) -> Sequence[RunStatus]:
        """Write what is left of every run, close it, and end all writers.

        A run that the tracker refuses is tried once more and then given up; one whose tracker is
        away is tried until the time is up. What is not written stays in the source.

        Args:
            timeout_s: For all runs together.
            exit_code: What the runs end with: 0 for success.

        Returns:
            How every run ended.
        """
        deadline = self._shared.monotonic() + timeout_s
        with self._lock:
            self._stopping = True
            runs = list(self._runs.values())
        for run in runs:
            run.stop(exit_code)
        for run in runs:
            run.join(max(0.0, deadline - self._shared.monotonic()))
        for run in runs:
            run.kill()
        for run in runs:
            run.join(_KILL_JOIN_S)
        return self.status()

    def drop(self, keys: Iterable[ExperimentKey]) -> None:
        """Another bridge writes these from now on: end their writers at once, and forget them."""
        with self._lock:
            runs = [run for key in keys if (run := self._runs.pop(key, None))]
        for run in runs:
            run.kill()

    def status(self) -> Sequence[RunStatus]:
        """How every run stands, sorted by key."""
        with self._lock:
            runs = sorted(self._runs.values(), key=lambda run: run.key)
        return [run.status() for run in runs]

    def pending(self, key: ExperimentKey) -> int:
        """Rows of the run that wait to be handed over; 0 for one that nobody has heard of."""
        with self._lock:
            run = self._runs.get(key)
        return run.status().pending if run is not None else 0

    def _run(self, key: ExperimentKey) -> RunDelivery:
        with self._lock:
            run = self._runs.get(key)
            if run is None:
                run = self._runs[key] = RunDelivery(key, self._shared)
                if self._stopping:
                    run.stop(0)
            return run


def _check_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as exc:
        raise ConfigError(
            f"tracker.directory: {str(directory)!r} cannot be written to: {exc.strerror}.",
            hint="Set OTEL_RL_BRIDGE__TRACKER__DIRECTORY, or WANDB_DIR for `otel-rl run`.",
        ) from exc
