"""The delivery loop: every row of every run reaches the tracker, in order, despite failures.

    RowSource  --rows from the tracker's position-->  one thread per run  -->  its writer process
               <--confirmed: safe below this number--

The tracker reports its position each time it is opened, so the bridge stores no cursor that could
be wrong. Any failure ends the writer process; after a pause a new one opens the run again and
resumes there. Rows leave the source only after they are confirmed.

Runs share nothing but the number of writers, and with some trackers processes: one that hangs
delays no other (``shared_writers.py``).
"""

import random
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from otel_rl.bridge.delivery.delivery_interfaces import (
    Count,
    DeliveryRecord,
    DeliverySettings,
    RowSource,
    RunState,
    RunStatus,
    Writer,
)
from otel_rl.bridge.delivery.one_run.program_options import filled
from otel_rl.bridge.delivery.one_run.run_delivery import RunDelivery
from otel_rl.bridge.delivery.one_run.shared_objects import Shared
from otel_rl.bridge.delivery.shared_writers import SharedWriters
from otel_rl.bridge.delivery.trackers import backend
from otel_rl.bridge.delivery.writer_client import WriterProcess
from otel_rl.bridge.delivery.writer_slots import WriterSlots
from otel_rl.bridge.private_files import make_private_directory
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey

__all__ = ["Count", "DeliveryManager", "DeliverySettings", "RowSource", "RunState", "RunStatus"]

_KILL_JOIN_S = 5.0  # a thread whose writer was killed only has to notice it


class DeliveryManager:
    """Delivers the rows of all runs to one tracker. Any thread may call any method."""

    def __init__(
        self,
        source: RowSource,
        record: DeliveryRecord,
        settings: DeliverySettings,
        count: Count,
        *,
        tenant: Callable[[ExperimentKey], str] = lambda _: "",
        tenants: Collection[str] = (),
        writer: Callable[[], Writer] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        opened: Callable[[ExperimentKey, str], None] = lambda *_: None,
    ) -> None:
        """Check the settings; start nothing.

        Args:
            source: Store of the rows.
            record: Record of what the tracker has.
            settings: Settings of the delivery.
            count: Adds to the bridge's counters.
            tenant: Name of the tenant whose a run is.
            tenants: Those that are known to come.
            writer: Makes what drives the tracker; a ``WriterProcess`` if not given.
            monotonic: Seconds, for intervals.
            jitter: Returns a number in [0, 1) that spreads retries.
            opened: Called with each run and its location, when that is known or another one; from
                the run's own thread.

        Raises:
            ConfigError: The tracker cannot work with these settings, or not write to the directory.
        """
        kind = backend(settings.tracker)
        kind.validate(settings.attributes)
        attributes = tuple(settings.attributes.items())
        _check_writable(settings.directory)
        self._shared = Shared(
            source,
            record,
            settings,
            count,
            WriterSlots(
                settings.max_writers, tenants=tenants, tenant=lambda held: tenant(held.key)
            ),
            writer or _writers(settings),
            monotonic,
            jitter,
            opened,
            lambda run: kind.knows_run(dict(filled(attributes, run)), run),
        )
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._runs: dict[ExperimentKey, RunDelivery] = {}
        self._stopping = False

    def notify(self, key: ExperimentKey) -> None:
        """Wake the delivery of a run that may have new rows. Returns at once."""
        with self._lock:  # so that it is not let go in between
            run = self._runs.get(key)
            if run is None:
                run = self._runs[key] = RunDelivery(key, self._shared)
                if self._stopping:
                    run.stop(0)
            run.wake()

    def expect_nothing(self) -> None:
        """Open also the runs of which the tracker waits to hear more: no metadata will come."""
        with self._lock:
            runs = [] if self._shared.nothing_follows.is_set() else [*self._runs.values()]
            self._shared.nothing_follows.set()
        for run in runs:
            run.wake()

    def stop(self, *, timeout_s: float, exit_code: int) -> Sequence[RunStatus]:
        """Write the remaining rows of every run, close it, and end all writers.

        A run that the tracker refuses, or whose journal is gone, is tried once more; one whose
        tracker is unavailable is retried until the timeout. Unwritten rows stay in the source.

        Args:
            timeout_s: For all runs together.
            exit_code: Exit code of the runs: 0 for success.

        Returns:
            Final status of every run.
        """
        deadline = self._shared.monotonic() + timeout_s
        with self._lock:
            self._stopping = True
            runs = list(self._runs.values())
        self._shared.slots.hurry()
        for run in runs:
            run.stop(exit_code)
        for run in runs:
            run.join(max(0.0, deadline - self._shared.monotonic()))
        for run in runs:
            run.kill()
        for run in runs:
            run.join(_KILL_JOIN_S)
        return self.status()

    def abandon(self) -> None:
        """End all writers at once; ``stop`` returns soon."""
        with self._lock:
            runs = [*self._runs.values()]
        for run in runs:
            run.kill()

    def drop(self, keys: Iterable[ExperimentKey]) -> None:
        """Stop delivering these runs, which another bridge owns now: end their writers at once."""
        with self._lock:
            runs = [run for key in keys if (run := self._runs.pop(key, None))]
        for run in runs:
            run.kill()

    def over(self) -> Sequence[ExperimentKey]:
        """Runs that are closed, or that had nothing to write; as they were begun."""
        with self._lock:
            runs = [*self._runs.values()]
        return [run.key for run in runs if run.is_over()]

    def known(self) -> set[ExperimentKey]:
        """Return the runs that were begun and not forgotten."""
        with self._lock:
            return set(self._runs)

    def let_go(self, keys: Iterable[ExperimentKey]) -> None:
        """Forget the given runs that are over; a run with new rows begins again."""
        with self._lock:
            for key in keys:
                run = self._runs.get(key)
                if run is not None and run.is_over():
                    del self._runs[key]

    def busy(self) -> Sequence[ExperimentKey]:
        """Return the runs that are being written, or wait for that."""
        with self._lock:
            runs = [*self._runs.values()]
        return [run.key for run in runs if not run.is_idle()]

    def status(self) -> Sequence[RunStatus]:
        """Return the status of every run that was not released, sorted by key."""
        with self._lock:
            runs = sorted(self._runs.values(), key=lambda run: run.key)
        return [run.status() for run in runs]

    def pending(self, key: ExperimentKey) -> int:
        """Return the number of rows that wait to be handed over; 0 for an unknown run."""
        with self._lock:
            run = self._runs.get(key)
        return run.status().pending if run is not None else 0


def _writers(settings: DeliverySettings) -> Callable[[], Writer]:
    tracker, n = settings.tracker, settings.runs_per_writer
    if n == 1 or not backend(tracker).shares_process:
        return partial(WriterProcess, tracker)
    shared = SharedWriters(tracker, n)
    return lambda: WriterProcess(tracker, shared.host())


def _check_writable(directory: Path) -> None:
    try:
        make_private_directory(directory)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as exc:
        raise ConfigError(
            f"tracker.directory: {str(directory)!r} cannot be written to: {exc.strerror}.",
            hint="Set OTEL_RL_BRIDGE__TRACKER__DIRECTORY, or WANDB_DIR for `otel-rl run`.",
        ) from exc
