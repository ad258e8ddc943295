"""The bridge, top to bottom. This is the only file that knows all stages.

Each part is made after the parts that it needs: from the trackers to the sockets. They start in
that order, and stop from the sockets to the trackers, so that accepted data reaches the end.

receive ─ accept ─> spool ─ rows: decode ─> align ─> run store ─ notify ─> delivery ─> tracker
      (200 after the spool's fsync)       (one transaction)     (one process per run)
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
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
from otel_rl.bridge.journal.places import Beside, RunNaming
from otel_rl.bridge.journal.spool import InboxPositions
from otel_rl.bridge.notifier import Notifier
from otel_rl.bridge.receive.answers import Overflow
from otel_rl.bridge.receive.audit import Audit
from otel_rl.bridge.receive.experiments import Experiments
from otel_rl.bridge.receive.inbox_reader import InboxReader
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.pipeline import IngestPipeline, Storage
from otel_rl.bridge.receive.tls import load_tls
from otel_rl.bridge.receive.tokens import Tokens, TokenShares
from otel_rl.bridge.row_thread import RowThread, stop_timeout_s
from otel_rl.bridge.rows.messages import News
from otel_rl.bridge.rows.scheduler import Around, Pace, Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.stages import Page
from otel_rl.bridge.stores import Stores
from otel_rl.bridge.telemetry import (
    GaugeValue,
    SelfMetrics,
    exposition,
    otlp_reader,
    queue_gauges,
)
from otel_rl.errors import ConfigError, JournalError, JournalGone
from otel_rl.records import Batch, ExperimentKey

# A batch without a row is committed after so long.
_COMMIT_EVERY_S = 1.0

# Without time left, a stopping bridge waits this long for the archive; the rest stays.
_ARCHIVE_S = 5.0

# Shown to anyone who asks for the health: the log has the file and the fault.
_NOT_RELOADED = "A file of tokens or certificates cannot be used: the former stay. See the log."


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the bridge as ``HOST:PORT``; None for one where it does not listen."""

    http: str | None = None
    grpc: str | None = None
    health: str | None = None


class Left(NamedTuple):
    """Amount of work that the bridge has not finished.

    Attributes:
        requests: Number of accepted requests whose rows are not made.
        rows: Number of rows that trackers have not been given, over all trackers.
    """

    requests: int
    rows: int


class Bridge:
    """The whole path from OTLP to the trackers, for any number of experiments.

    Args:
        settings: See ``config.py``.
        opened: Called with each run and its URL or path at the tracker once that is known; from a
            thread of the bridge.
        told: Called with news of each run, from a thread of the bridge.
        is_one_launch: Whether the bridge serves a single launch of a program.
        beside: Journals beside this one, each of which has other runs; None if no other journal is
            asked.
        inboxes: Directories of inboxes, from which requests are read, too.

    Attributes:
        inbox: Reader of the inboxes; None without inboxes.
        waiting: Number of acknowledged batches that could not be made into rows, set by ``stop``.

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
        told: Callable[[ExperimentKey, News], None] = lambda *_: None,
        page: Page | None = None,
        is_one_launch: bool = False,
        beside: Beside | None = None,
        inboxes: Sequence[Path] = (),
    ) -> None:
        self.settings = settings
        self.counters = Counters()
        self.waiting = 0
        self._clock_ns = clock_ns
        self._is_one_launch = is_one_launch
        self._page = page
        self._telemetry: SelfMetrics | None = None
        self._ended: Sequence[RunStatus] | None = None
        self._tokens = Tokens(settings.team)
        self._tls = load_tls(settings.tls)
        shares, limits = self._tokens.shares, ReceiveLimits.of(settings.receive)
        self._experiments = Experiments(limits.max_experiments, shares=shares)
        # Once the leases are started, they tell of runs that are gained and lost.
        self._stores = Stores(
            settings,
            shares,
            tenant=self._experiments.owner_of,
            gained=self._gained,
            lost=self._lost,
        )
        try:
            self._make_rows(opened, told, shares, is_one_launch=is_one_launch)
            self._make_intake(limits, beside, inboxes)
            # The last: what listens can be used.
            self._servers = stages.servers(
                settings.listen,
                self._intake,
                self._tls,
                page=page,
                counters=self.counters,
                metrics=lambda: exposition(self.counters, self._levels()),
                takes_exports=not inboxes,
            )
        except BaseException:
            self._stores.close()
            raise

    def _make_rows(
        self,
        opened: Callable[[ExperimentKey, str], None],
        told: Callable[[ExperimentKey, News], None],
        shares: TokenShares,
        *,
        is_one_launch: bool,
    ) -> None:
        """Make the stages from stored batches to the trackers, starting with the last."""
        settings, stores, counters = self.settings, self._stores, self.counters
        tenant, clock_ns = self._experiments.owner_of, self._clock_ns
        self._overflow = Overflow()
        self._archive = stages.archiver(settings, stores, counters, clock_ns)
        self._delivery = delivery = stages.delivery(
            *(settings, stores, counters, clock_ns), tenant=tenant, shares=shares, opened=opened
        )
        self._notifier = (
            None if settings.notify.url is None else Notifier(settings.notify, counters)
        )

        def tell(key: ExperimentKey, news: News) -> None:
            told(key, news)
            if self._notifier is not None:
                self._notifier.add(key, news)

        self._rows = rows = Scheduler(
            stores.spool,
            stores.run_store,
            AlignSettings.of(settings.rows, settings.journal.max_bytes),
            counters,
            around=Around(
                notify=delivery.notify,
                dropped=self._overflow.add,
                gauges=lambda key: {Gauge.ROWS_PENDING: delivery.pending(key)},
                tenant=tenant,
                team=shares.owner_of,
                owners=stores.owners,
                archive_room=None if self._archive is None else self._archive.has_room,
                is_one_launch=is_one_launch,
                told=tell,
            ),
            pace=Pace(
                report_interval_s=settings.telemetry.interval_s, commit_every_s=_COMMIT_EVERY_S
            ),
        )
        self._experiments.begin(rows.experiments)
        self._diagnosis = stages.diagnosis(settings, stores, rows, counters, clock_ns)
        self._row_thread = RowThread(
            settings,
            stores,
            rows,
            delivery=delivery,
            diagnosis=self._diagnosis,
            counters=counters,
            clock_ns=clock_ns,
        )
        self.cleanup = Cleanup(
            settings,
            stores,
            stages.retention(
                settings,
                stores,
                shares,
                tenant=tenant,
                busy=lambda: {*rows.experiments(), *delivery.busy()},
            ),
            delivery=delivery,
            rows=rows,
            counters=counters,
            clock_ns=clock_ns,
        )

    def _make_intake(
        self,
        limits: ReceiveLimits,
        beside: Beside | None,
        inboxes: Sequence[Path],
    ) -> None:
        """Make the stages from a request to stored batches, starting with the last."""
        stores, clock_ns = self._stores, self._clock_ns
        self._durable = durable = DurableBatches(
            stores.spool, stores.room, self.counters, kept=self._row_thread.wake
        )
        name: RunNaming | None = None
        if beside is not None:
            name = RunNaming(beside, begin=lambda key: stores.spool.begin(key, clock_ns()))
        self._intake = IngestPipeline(
            Storage(durable.keep, lambda: stores.journal.problem, name),
            limits,
            self.counters,
            clock_ns=clock_ns,
            tokens=self._tokens,
            experiments=self._experiments,
            overflow=self._overflow,
            audit=Audit(is_on=self.settings.audit),
        )
        self.inbox: InboxReader | None = None
        if inboxes:
            positions = InboxPositions(stores.journal)
            self.inbox = InboxReader(
                inboxes,
                self._intake,
                lambda batches, read, removed: durable.keep(
                    batches, lambda connection: positions.write(connection, read, removed)
                ).result(),
                positions.read,
            )

    @property
    def addresses(self) -> Addresses:
        return Addresses(**{name: server.address for name, server in self._servers.items()})

    @property
    def has_page(self) -> bool:
        """Return whether the HTTP address shows the runs to people."""
        return self._page is not None and bool(self.http)

    @property
    def http(self) -> str:
        """Return the OTLP/HTTP address; empty if the bridge does not listen for OTLP/HTTP."""
        return self.addresses.http or ""

    @property
    def is_stopping(self) -> bool:
        return self._row_thread.is_stopping

    @property
    def problem(self) -> str:
        """Return why the bridge accepts nothing until an operator acts; empty if it accepts."""
        return self._stores.journal.problem

    @property
    def other_bridges(self) -> int | None:
        """Return, after ``stop``, how many other bridges share the database; None if not known."""
        leases = self._stores.leases
        return None if leases is None else leases.others

    @property
    def unstored(self) -> UnstoredBatches:
        """Return the batches that could not be stored and that their senders did not repeat."""
        return self._durable.unstored

    @property
    def without_metrics(self) -> Collection[ExperimentKey]:
        """Return ended runs without any metric of their program, sorted."""
        return self._rows.without_metrics

    def began(self, process_id: int) -> None:
        """Name the command whose processes report.

        Call it after ``start``, before their reports.
        """
        self._rows.launched = process_id

    def start(self) -> None:
        """Resume where the last bridge on this journal stopped, then accept requests."""
        collect_rarely()
        return_memory()
        stores, telemetry = self._stores, self.settings.telemetry
        if stores.leases is None:
            self.cleanup.prune()
            for tracker in self.settings.tracker.trackers:
                of_tracker = stores.deliveries.of(tracker)
                for key in of_tracker.unfinished(for_one_launch=self._is_one_launch):
                    self._delivery.notify(key, tracker=tracker)
        else:
            stores.leases.start()
        self.cleanup.start()
        self._row_thread.start()
        self._diagnosis.start()
        if self._notifier is not None:
            self._notifier.start()
        if self._archive is not None:
            self._archive.start()
        if telemetry.endpoint is not None:
            self._telemetry = SelfMetrics(
                self.counters,
                self._levels,
                [otlp_reader(telemetry.endpoint, telemetry.interval_s)],
            )
        for server in self._servers.values():
            server.start()
        if self.inbox is not None:
            self.inbox.start()

    def reload(self) -> None:
        """Read the files of tokens and TLS again. Connections that are open stay open.

        Raises:
            ConfigError: A file cannot be used. All settings stay as they were.
        """
        try:
            files = None if self._tls is None else self._tls.read()
            self._tokens.read_again()
        except ConfigError:
            self.counters.add(Counter.RELOADS, reason=Reload.FAILED)
            self._intake.notice = _NOT_RELOADED
            raise
        if self._tls is not None and files is not None:
            self._tls.use(files)
        self.counters.add(Counter.RELOADS, reason=Reload.OK)
        self._intake.notice = ""

    @property
    def reloadable(self) -> Sequence[Path]:
        """Return the files of tokens and TLS that ``reload`` reads."""
        tls = self.settings.tls
        files = [file for file in (tls.cert, tls.key, tls.client_ca) if file is not None]
        return [*self._tokens.files, *files]

    def accept(self, batches: Sequence[Batch]) -> None:
        """Store the batches of a request: they are durable when this returns.

        Raises:
            JournalFull: There is no room, or none in a tenant's share; the sender retries.
            JournalClosed: The bridge is stopping; the sender retries.
            JournalGone: The journal was removed; the sender retries.
        """
        self._durable.keep(batches).result()

    def status(self) -> Sequence[RunStatus]:
        """Return the status of every run written to since the start; of finished ones, the last."""
        return self._delivery.status()

    def left(self) -> Left:
        """Return the unwritten requests and rows. Any thread may call it, during ``stop`` too.

        Raises:
            JournalError: The journal cannot be read.
        """
        rows = sum(status.pending for status in self._delivery.status())
        return Left(self._stores.spool.pending(), rows)

    def expect_nothing(self) -> None:
        """Also write runs for which a tracker waits for metadata: everything has arrived."""
        self._delivery.expect_nothing()

    def stop(
        self, *, exit_code: int = 0, is_over: bool = False, by: str | None = None
    ) -> Sequence[RunStatus]:
        """Stop accepting, make rows of everything that was accepted, and finish the runs.

        Where other bridges share the journal, they take over the rest after ``lease_s``: steps stay
        open for them.

        Args:
            exit_code: Exit code of the runs: 0 for success.
            is_over: Whether the workers have ended. Workers that did not report their end have then
                failed, unless ``exit_code`` is 0.
            by: Signal that ended the workers, such as ``SIGTERM``; None if none is known.

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
        self._intake.close()
        if leases is not None:
            leases.claim_no_more()
        self._diagnosis.pause()
        self._row_thread.stop(begun_s=begun_s, failed=failed, by=by)
        self._diagnosis.stop()
        if self._notifier is not None:
            self._notifier.stop()
        if self._archive is not None:
            self._archive.finish()
        self.cleanup.stop()
        if leases is None:
            with contextlib.suppress(JournalGone):  # the journal has logged it
                self.waiting = self._stores.spool.pending()
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

    def _levels(self) -> Iterator[GaugeValue]:
        stores, team = self._stores, self._tokens.shares.owner_of
        yield GaugeValue(Gauge.RELOAD_FAILED, float(bool(self._intake.notice)))
        yield from queue_gauges(
            stores.journal, stores.spool, stores.run_store, self._delivery, team=team
        )

    def _lost(self, keys: Collection[ExperimentKey]) -> None:
        self._delivery.drop(keys)

    def _gained(self, key: ExperimentKey, has_rows: bool) -> None:  # noqa: FBT001  # a callback
        """Take over a run, in whatever state its last owner left it."""
        self._stores.run_store.forget(key)
        self._delivery.drop([key])  # left from before another bridge took the run
        self._rows.begin(key)
        if has_rows:
            self._delivery.notify(key)
        self._row_thread.wake()
