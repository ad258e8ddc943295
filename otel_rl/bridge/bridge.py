"""The bridge, top to bottom. The only file that knows all stages.

receive ─ accept ─> spool ─ rows: decode ─> align ─> run store ─ notify ─> delivery ─> tracker
      (200 after the spool's fsync)       (one transaction)     (one process per run)
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from otel_rl.bridge import stages
from otel_rl.bridge.cleanup import Cleanup
from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.counters import Counter, Counters, Gauge, Reload
from otel_rl.bridge.delivery.manager import RunStatus
from otel_rl.bridge.durable_batches import DurableBatches, UnstoredBatches
from otel_rl.bridge.garbage import collect_rarely, return_memory
from otel_rl.bridge.journal.places import Beside, JournalPresence, RunNaming
from otel_rl.bridge.journal.spool import InboxPositions
from otel_rl.bridge.page import Page
from otel_rl.bridge.receive.answers import Overflow
from otel_rl.bridge.receive.experiments import Experiments
from otel_rl.bridge.receive.inbox_reader import InboxReader
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.pipeline import IngestPipeline
from otel_rl.bridge.receive.tls import load_tls
from otel_rl.bridge.receive.tokens import Tokens, TokenShares
from otel_rl.bridge.row_thread import RowThread, stop_timeout_s
from otel_rl.bridge.rows.scheduler import Around, Pace, Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.stores import Stores
from otel_rl.bridge.telemetry import SelfMetrics, otlp_reader, queue_gauges
from otel_rl.errors import ConfigError, JournalError, JournalGone
from otel_rl.records import Batch, ExperimentKey

__all__ = ["Addresses", "Bridge", "Left"]

# A batch without a row is committed after so long.
_COMMIT_EVERY_S = 1.0

# Without time left, a stopping bridge waits this long for the archive; the rest stays.
_ARCHIVE_S = 5.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the bridge, as ``HOST:PORT``; None where it does not listen."""

    http: str | None = None
    grpc: str | None = None
    health: str | None = None


class Left(NamedTuple):
    """Work of the bridge that is not written yet.

    Attributes:
        requests: Accepted requests of which no rows are made.
        rows: Rows that trackers have not been given, of all trackers.
    """

    requests: int
    rows: int


class Bridge:
    """The whole path from OTLP to the tracker, for any number of experiments.

    Args:
        settings: See ``config.py``.
        clock_ns: Nanoseconds since the epoch.
        opened: Called with each run and its URL or path at the tracker, once that is known; from a
            thread of the bridge.
        page: What is served beside OTLP over HTTP.
        is_one_launch: Whether it is for a single launch of a program.
        beside: Journals beside this one, each of which has other runs; None where that is settled.
        inboxes: Directories from which requests are read, too.

    Attributes:
        settings: As given.
        inbox: Reads the inboxes; None without one.
        counters: What happened, in numbers.
        cleanup: Removes ended runs.
        launched: Process id of the one command whose processes report, if they have one.
        waiting: After ``stop``: number of acknowledged batches that could not be made into rows.

    Raises:
        ConfigError: A port is taken, a file or directory cannot be used, the tracker is unknown.
        JournalLocked: Another bridge has the data directory.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        opened: Callable[[ExperimentKey, str], None] = lambda *_: None,
        page: Page | None = None,
        is_one_launch: bool = False,
        beside: Beside | None = None,
        inboxes: Sequence[Path] = (),
    ) -> None:
        self.settings = settings
        self.inbox: InboxReader | None = None
        self._inboxes = inboxes
        self.launched: int | None = None
        self.counters = Counters()
        self.waiting = 0
        self._page = page
        self._clock_ns = clock_ns
        self._opened = opened
        self._is_one_launch = is_one_launch
        self._beside = beside
        self._shares = TokenShares(settings.auth)
        self._stores = Stores(
            settings,
            self._shares,
            tenant=lambda key: self._experiments.owner_of(key),
            gained=self._gained,
            lost=lambda keys: self._delivery.drop(keys),
        )
        self._presence = JournalPresence()
        self._overflow = Overflow()
        self._telemetry: SelfMetrics | None = None
        self._ended: Sequence[RunStatus] | None = None
        self._stopping = threading.Event()
        try:
            self._make_stages()
            self._make_threads()
            self._tls = load_tls(settings.tls)
            # The last: what listens can be used.
            self._servers = stages.servers(
                settings.listen,
                self._intake,
                self._tls,
                page=page,
                counters=self.counters,
                takes_exports=not inboxes,
            )
        except BaseException:
            self._stores.close()
            raise

    @property
    def addresses(self) -> Addresses:
        """Return the addresses of the bridge."""
        return Addresses(**{name: server.address for name, server in self._servers.items()})

    @property
    def has_page(self) -> bool:
        """Return whether the HTTP address shows the runs to people."""
        return self._page is not None and bool(self.http)

    @property
    def http(self) -> str:
        """Return the OTLP/HTTP address; empty if it does not listen for it."""
        return self.addresses.http or ""

    @property
    def is_stopping(self) -> bool:
        """Return whether ``stop`` was called."""
        return self._stopping.is_set()

    @property
    def problem(self) -> str:
        """Return why the bridge accepts nothing until an operator acts; empty if it does."""
        return self._presence.problem

    @property
    def other_bridges(self) -> int | None:
        """Return, after ``stop``, how many others share the database; None if it is not known."""
        leases = self._stores.leases
        return None if leases is None else leases.others

    @property
    def unstored(self) -> UnstoredBatches:
        """Return the batches that could not be stored, and that their senders did not repeat."""
        return self._durable.unstored

    @property
    def without_metrics(self) -> Collection[ExperimentKey]:
        """Return ended runs without any metric of their program, sorted."""
        return self._rows.without_metrics

    def start(self) -> None:
        """Resume where the last bridge on this journal stopped, then accept requests."""
        collect_rarely()
        return_memory()
        stores, telemetry = self._stores, self.settings.telemetry
        if stores.leases is None:
            self.cleanup.prune()
            for tracker in self.settings.tracker.trackers:
                for key in stores.deliveries.of(tracker).unfinished():
                    self._delivery.notify(key, tracker=tracker)
        else:
            stores.leases.start()
        self.cleanup.start()
        self._row_thread.start()
        self._diagnosis.start()
        if self._archive is not None:
            self._archive.start()
        if telemetry.endpoint is not None:
            self._telemetry = SelfMetrics(
                self.counters,
                lambda: queue_gauges(
                    stores.journal, stores.spool, stores.run_store, self._delivery
                ),
                [otlp_reader(telemetry.endpoint, telemetry.interval_s)],
            )
        for server in self._servers.values():
            server.start()
        if self.inbox is not None:
            self.inbox.start()

    def reload(self) -> None:
        """Read the files of tokens and TLS again. Connections that are open stay open.

        Raises:
            ConfigError: A file cannot be used. All stays as it was.
        """
        try:
            files = None if self._tls is None else self._tls.read()
            self._tokens.read_again()
        except ConfigError:
            self.counters.add(Counter.RELOADS, reason=Reload.FAILED)
            raise
        if self._tls is not None and files is not None:
            self._tls.use(files)
        self.counters.add(Counter.RELOADS, reason=Reload.OK)

    def accept(self, batches: Sequence[Batch]) -> None:
        """Store the batches of a request: they are durable when this returns.

        Raises:
            JournalFull: No room, or none in a tenant's share; the sender retries.
            JournalClosed: The bridge is stopping; the sender retries.
            JournalGone: The journal was removed; the sender retries.
        """
        self._durable.keep(batches)

    def status(self) -> Sequence[RunStatus]:
        """Every run written to since the start; of finished ones, the last hundreds."""
        return self._delivery.status()

    def left(self) -> Left:
        """Return the unwritten requests and rows. Any thread may call it, during ``stop`` too.

        Raises:
            JournalError: It cannot be read.
        """
        rows = sum(status.pending for status in self._delivery.status())
        return Left(self._stores.spool.pending(), rows)

    def expect_nothing(self) -> None:
        """Write also the runs of which a tracker waits to hear more: all that will come is here."""
        self._delivery.expect_nothing()

    def stop(
        self, *, exit_code: int = 0, is_over: bool = False, by: str | None = None
    ) -> Sequence[RunStatus]:
        """Stop accepting, make rows of all that was accepted, and finish the runs.

        Where other bridges share the journal, they take over the rest after ``lease_s``: steps stay
        open for them.

        Args:
            exit_code: Exit code of the runs: 0 for success.
            is_over: Whether the workers have ended. Those that did not report their end have then
                failed, unless ``exit_code`` is 0.
            by: Signal that ended them, such as ``SIGTERM``; None if none is known.

        Returns:
            The status of each run. Rows that a tracker did not take within ``stop_timeout`` stay
            in the journal for the next start. A second call returns the same.
        """
        if self._ended is None:
            self._ended = self._stop(exit_code, failed=exit_code != 0 if is_over else None, by=by)
        return self._ended

    def _stop(self, exit_code: int, *, failed: bool | None, by: str | None) -> Sequence[RunStatus]:
        begun_s, leases = time.monotonic(), self._stores.leases
        until_s = begun_s + stop_timeout_s(self.settings)
        if self._page is not None:
            self._page.stop()
        for server in self._servers.values():
            server.stop()
        if self.inbox is not None:
            self.inbox.stop()
        if leases is not None:
            leases.claim_no_more()
        self._diagnosis.pause()
        self._row_thread.stop(begun_s=begun_s, failed=failed, by=by)
        self._diagnosis.stop()
        if self._archive is not None:
            self._archive.finish()
        self.cleanup.join()
        if leases is None:
            try:
                self.waiting = self._stores.spool.pending()
            except JournalGone as exc:
                self._presence.gone(exc)
        left_s = max(0.0, until_s - time.monotonic())
        statuses = self._delivery.stop(timeout_s=left_s, exit_code=exit_code)
        if self._archive is not None:
            self._archive.join(max(_ARCHIVE_S, until_s - time.monotonic()))
        # On a full disk the next start opens the runs again, and finds them complete.
        with contextlib.suppress(JournalError):
            self.cleanup.note_finished(statuses)
        if self._telemetry is not None:
            self._telemetry.stop()
        if leases is not None:
            leases.stop()
        self._stores.close()
        return statuses

    def _make_stages(self) -> None:
        settings, stores = self.settings, self._stores
        self._tokens = Tokens(settings.auth)
        self._archive = stages.archiver(settings, stores, self.counters, self._clock_ns)
        self._delivery = stages.delivery(
            settings,
            stores,
            self.counters,
            tenant=lambda key: self._experiments.owner_of(key),
            tenants=self._shares.tokens,
            opened=self._opened,
        )
        self._rows = Scheduler(
            stores.spool,
            stores.run_store,
            AlignSettings.of(settings.rows, settings.journal.max_bytes),
            self.counters,
            around=Around(
                notify=self._delivery.notify,
                dropped=self._overflow.add,
                gauges=lambda key: {Gauge.ROWS_PENDING: self._delivery.pending(key)},
                tenant=lambda key: self._experiments.owner_of(key),
                owners=stores.owners,
                archive_room=None if self._archive is None else self._archive.has_room,
                launched=lambda: self.launched,
                is_one_launch=self._is_one_launch,
            ),
            pace=Pace(
                report_interval_s=settings.telemetry.interval_s,
                commit_every_s=_COMMIT_EVERY_S,
            ),
        )
        self._durable = DurableBatches(
            stores.spool,
            stores.room,
            self._presence,
            self.counters,
            kept=lambda: self._row_thread.wake(),
        )
        limits = ReceiveLimits.of(settings.receive)
        self._experiments = Experiments(
            limits.max_experiments, self._rows.experiments, shares=self._shares
        )
        self._intake = IngestPipeline(
            accept=self._durable.keep,
            limits=limits,
            counters=self.counters,
            clock_ns=self._clock_ns,
            tokens=self._tokens,
            experiments=self._experiments,
            overflow=self._overflow,
            problem=lambda: self.problem,
            shares=self._shares,
            name=self._naming(),
        )
        if self._inboxes:
            positions = InboxPositions(stores.journal)
            self.inbox = InboxReader(
                self._inboxes,
                self._intake,
                lambda batches, read, removed: self._durable.keep(
                    batches, lambda connection: positions.write(connection, read, removed)
                ),
                positions.read,
            )

    def _naming(self) -> RunNaming | None:
        if self._beside is None:
            return None
        spool = self._stores.spool
        return RunNaming(self._beside, begin=lambda key: spool.begin(key, self._clock_ns()))

    def _make_threads(self) -> None:
        settings, stores = self.settings, self._stores
        self.cleanup = Cleanup(
            settings,
            stores.run_store,
            stores.deliveries,
            stages.retention(
                settings,
                stores,
                self._shares,
                tenant=self._experiments.owner_of,
                busy=lambda: {*self._rows.experiments(), *self._delivery.busy()},
            ),
            delivery=self._delivery,
            rows=self._rows,
            leases=stores.leases,
            counters=self.counters,
            clock_ns=self._clock_ns,
            stopping=self._stopping,
        )
        self._diagnosis = stages.diagnosis(
            settings, stores, self._rows, self.counters, self._clock_ns
        )
        self._row_thread = RowThread(
            settings,
            self._rows,
            journal=stores.journal,
            spool=stores.spool,
            delivery=self._delivery,
            diagnosis=self._diagnosis,
            presence=self._presence,
            counters=self.counters,
            clock_ns=self._clock_ns,
            stopping=self._stopping,
        )

    def _gained(self, key: ExperimentKey, has_rows: bool) -> None:  # noqa: FBT001  # a callback
        """Take over a run, in whatever state its last owner left it."""
        self._stores.run_store.forget(key)
        self._delivery.drop([key])  # left from before another bridge took the run
        self._rows.begin(key)
        if has_rows:
            self._delivery.notify(key)
        self._row_thread.wake()
