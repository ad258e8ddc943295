"""The delivery loop: every row of every run reaches each tracker, in order, despite failures.

    RowSource  --rows from the tracker's position-->  a thread for each run and tracker -->  writer
               <--confirmed: safe below this number--

The tracker reports its position each time it is opened, so the bridge stores no cursor that could
be wrong. Any failure ends the writer; after a pause a new one opens the run again and resumes
there. Rows leave the source only after they are confirmed.

Runs of a tracker share only the number of writers, and trackers share nothing: a tracker that is
unreachable, hangs or refuses a run delays no other. It only keeps rows in the journal.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from otel_rl.bridge.delivery.run_delivery import Openings, RunDelivery, RunState, RunStatus
from otel_rl.bridge.delivery.session import (
    Count,
    DeliveryRecord,
    DeliverySettings,
    Route,
    RowSource,
    filled,
)
from otel_rl.bridge.delivery.tracker import TrackerKind, backend
from otel_rl.bridge.delivery.writer import Writer, WriterInBridge, WriterProcess
from otel_rl.bridge.delivery.writer_slots import WriterSlots
from otel_rl.errors import ConfigError, NoTeam
from otel_rl.inbox import make_private_directory
from otel_rl.records import Description, ExperimentKey, Row

__all__ = ["Count", "DeliveryManager", "DeliverySettings", "RowSource", "RunState", "RunStatus"]

_KILL_JOIN_S = 5.0
"""For the threads of all runs whose writer was killed: they only have to notice it. A disk that
hangs holds its thread, which is left behind."""


class DeliveryManager:
    """Delivers the rows of all runs to all trackers. Any thread may call any method.

    Args:
        trackers: Settings of the delivery to each tracker, with the record of what the tracker has;
            at least one.
        tenant: Returns the name of the tenant that a run belongs to.
        tenants: Names of the tenants that have a token.
        team: Returns the name of the team that a run belongs to; the team may have its own tracker
            options.
        opened: Called with each run and its location when the location becomes known or changes;
            from the run's own thread.
        written: Called with a tracker's name, a run and the rows that were handed to the tracker;
            from the run's own thread.
        writer: Makes the driver of a tracker; by default the driver that its kind asks for.

    Raises:
        ConfigError: A tracker cannot work with its settings, or cannot write to its directory.
    """

    def __init__(
        self,
        source: RowSource,
        trackers: Sequence[tuple[DeliverySettings, DeliveryRecord]],
        count: Count,
        *,
        tenant: Callable[[ExperimentKey], str] = lambda _: "",
        tenants: Collection[str] = (),
        team: Callable[[ExperimentKey], str] = lambda _: "",
        opened: Callable[[ExperimentKey, str], None] = lambda *_: None,
        written: Callable[[str, ExperimentKey, Sequence[Row]], None] = lambda *_: None,
        writer: Callable[[str], Writer] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._team = team
        self._nothing_follows = threading.Event()
        self._routes: dict[str, tuple[Route, Openings]] = {}
        for settings, record in trackers:
            kind = backend(settings.tracker)
            for attributes in settings.of_teams.values() or [settings.attributes]:
                kind.validate(attributes)
            _check_writable(settings.directory)
            self._routes[kind.name] = (
                Route(*(source, record, settings, count, monotonic), partial(written, kind.name)),
                Openings(
                    partial(writer or _writer, kind.name),
                    WriterSlots(
                        settings.max_writers, tenants=tenants, tenant=lambda run: tenant(run.key)
                    ),
                    opened,
                    partial(_knows_run, kind, settings),
                    self._nothing_follows,
                ),
            )
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._runs: dict[ExperimentKey, dict[str, RunDelivery]] = {}  # by the name of the tracker
        self._stopping = False

    def notify(self, key: ExperimentKey, *, tracker: str = "") -> None:
        """Wake the deliveries of a run that may have new rows. Returns at once.

        Args:
            tracker: The only one to wake; empty for all.
        """
        with self._lock:  # so that it is not let go in between
            runs = self._runs.setdefault(key, {})
            for name in [tracker] if tracker else self._routes:
                if name not in runs:
                    runs[name] = RunDelivery(key, *self._route(name, key))
                    if self._stopping:
                        runs[name].stop(0)
                runs[name].wake()

    def expect_nothing(self) -> None:
        """Also open the runs for which a tracker waits for metadata, because none will come."""
        if not self._nothing_follows.is_set():
            self._nothing_follows.set()
            for run in self._all():
                run.wake()

    def stop(self, *, timeout_s: float, exit_code: int) -> Sequence[RunStatus]:
        """Write the remaining rows of every run, close it, and end all writers.

        A run that the tracker refuses, or whose journal is gone, is tried once more; a run whose
        tracker is unavailable is retried until the timeout. Unwritten rows stay in the source.

        Returns:
            Final status of every run.
        """
        deadline = self._monotonic() + timeout_s
        with self._lock:
            self._stopping = True
        runs = self._all()
        for run in runs:
            run.stop(exit_code)
        for run in runs:
            run.join(max(0.0, deadline - self._monotonic()))
        for run in runs:
            run.kill()
        deadline = self._monotonic() + _KILL_JOIN_S
        for run in runs:
            run.join(max(0.0, deadline - self._monotonic()))
        return self.status()

    def abandon(self, *, tracker: str = "") -> None:
        """End all writers, or those of one tracker, at once; ``stop`` returns soon."""
        for run in self._all(tracker):
            run.kill()

    def drop(self, keys: Iterable[ExperimentKey]) -> None:
        """Stop delivering these runs, which another bridge owns now: end their writers at once."""
        with self._lock:
            runs = [run for key in keys for run in self._runs.pop(key, {}).values()]
        for run in runs:
            run.kill()

    def over(self) -> Sequence[ExperimentKey]:
        """Return the runs that every tracker has closed, or had nothing to write of, in order."""
        with self._lock:
            begun = {key: [*runs.values()] for key, runs in self._runs.items()}
        return [key for key, runs in begun.items() if all(run.is_over() for run in runs)]

    def let_go(self, keys: Iterable[ExperimentKey]) -> None:
        """Forget the given runs where their delivery is over; a run with new rows begins again."""
        with self._lock:
            for key in keys:
                going = {
                    name: run for name, run in self._runs.get(key, {}).items() if not run.is_over()
                }
                if going:
                    self._runs[key] = going
                else:
                    self._runs.pop(key, None)

    def busy(self) -> Sequence[ExperimentKey]:
        """Return the runs that are being written to a tracker, or wait for that."""
        return [*dict.fromkeys(run.key for run in self._all() if not run.is_idle())]

    def status(self) -> Sequence[RunStatus]:
        """Return the status of every run with every tracker, sorted by key, then as configured."""
        every = [run.status() for tracker in self._routes for run in self._all(tracker)]
        return sorted(every, key=lambda status: status.key)

    def pending(self, key: ExperimentKey) -> int:
        """Return the number of rows that the slowest tracker lacks; 0 for an unknown run."""
        with self._lock:
            runs = [*self._runs.get(key, {}).values()]
        return max((run.status().pending for run in runs), default=0)

    def _route(self, tracker: str, key: ExperimentKey) -> tuple[Route, Openings]:
        """Return the route of a run to a tracker, with the options of its team if there are any."""
        route, openings = self._routes[tracker]
        if not route.settings.of_teams:
            return route, openings
        own = route.settings.of_teams.get(self._team(key))
        if own is None:
            return route, replace(openings, refusal=NoTeam(key.experiment))
        settings = replace(route.settings, attributes=own)
        knows_run = partial(_knows_run, backend(tracker), settings)
        return replace(route, settings=settings), replace(openings, knows_run=knows_run)

    def _all(self, tracker: str = "") -> Sequence[RunDelivery]:
        with self._lock:
            return [
                run
                for runs in self._runs.values()
                for name, run in runs.items()
                if tracker in ("", name)
            ]


def _writer(tracker: str) -> Writer:
    return WriterInBridge(tracker) if backend(tracker).in_bridge else WriterProcess(tracker)


def _knows_run(kind: TrackerKind, settings: DeliverySettings, run: Description) -> bool:
    return kind.knows_run(dict(filled([*settings.attributes.items()], run)), run)


def _check_writable(directory: Path) -> None:
    try:
        make_private_directory(directory)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as exc:
        raise ConfigError(
            f"tracker.directory: {str(directory)!r} cannot be written to: {exc.strerror}.",
            hint="Set OTEL_RL_BRIDGE__TRACKER__DIRECTORY, or WANDB_DIR for `otel-rl run`.",
        ) from exc
