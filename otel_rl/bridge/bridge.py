"""The bridge, top to bottom. The only file that knows all stages.

ingest ─ accept ─> spool ─ rows: decode ─> align ─> run store ─ notify ─> delivery ─> tracker
      (200 after the spool's fsync)       (one transaction)     (one process per run)
"""

import contextlib
import importlib.util
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from otel_rl.bridge.archive.archiver import Archiver
from otel_rl.bridge.cleanup import Cleanup
from otel_rl.bridge.config import ENV_PREFIX, BridgeSettings
from otel_rl.bridge.counters import Counter, Counters, Gauge, Where
from otel_rl.bridge.delivery.manager import DeliveryManager, DeliverySettings, RunStatus
from otel_rl.bridge.ingest import (
    Experiments,
    GrpcServer,
    HttpServer,
    IngestPipeline,
    JournalShares,
    Overflow,
    Tokens,
    TokenShares,
    load_tls,
)
from otel_rl.bridge.journal.archive_store import ArchiveStore
from otel_rl.bridge.journal.bridge_lease import FREE, BridgeLeases
from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.opening import open_journal
from otel_rl.bridge.journal.ownership import Ownership, SoleOwner
from otel_rl.bridge.journal.retention import EVERY_RUN, Retention
from otel_rl.bridge.journal.run_store import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.live_diagnosis.scheduler import DiagnosisScheduler
from otel_rl.bridge.rows.processor import RowProcessor
from otel_rl.bridge.self_metrics import GaugeValue, SelfMetrics, otlp_reader
from otel_rl.errors import JournalError, JournalGone, MissingExtra
from otel_rl.records import Batch, ExperimentKey
from otel_rl.semconv import names

__all__ = ["Addresses", "Bridge", "Left"]

_log = logging.getLogger(__name__)

# Rows are also closed by time, so rounds run even when nothing arrives.
_TICK_S = 0.2

# Each round commits the whole state of its runs, so requests are gathered for this many times the
# CPU time of the last rounds, and for this long at most: rows may be that much later.
_GATHERING = 4.0
_MAX_GATHERING_S = 0.2

# While the disk blocks all requests, or this process is starved, no sender can report. Pauses
# longer than this do not count as silence or lateness.
_HELD_UP_S = 1.0

# After a full disk or a bug.
_RETRY_S = 1.0

# Without room for rows, a stopping bridge waits this long for a tracker that takes none.
_NO_ROOM_S = 5.0

# Without time left, a stopping bridge waits this long for the archive; the rest stays.
_ARCHIVE_S = 5.0

# Pause after a tracker's first failure; it doubles from there.
_FIRST_RETRY_S = 0.5

_DAY_NS = 86_400_000_000_000

# What goes wrong is tried again every second; it is worth one line a minute.
_LOG_EVERY_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the bridge, as ``HOST:PORT``; None where it does not listen."""

    http: str | None
    grpc: str | None


class Left(NamedTuple):
    """Work of the bridge that is not written yet.

    Attributes:
        requests: Accepted requests of which no rows are made.
        rows: Rows that the tracker has not been given.
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
    ) -> None:
        self.counters = Counters()
        self._settings = settings
        self._clock_ns = clock_ns
        self._lease_journal: Journal | None = None
        journal = settings.journal
        url = None if journal.url is None else journal.url.get_secret_value()
        self._journal = open_journal(settings.data, url, max_bytes=journal.max_bytes)
        self._leases = None if url is None else self._leases_of(url)
        owners: Ownership = self._leases or SoleOwner()
        self._shares = TokenShares(settings.auth)
        self._spool = Spool(
            self._journal, max_share=journal.max_share, is_shared=self._shares.are_needed
        )
        self._room = JournalShares(
            self._shares,
            journal.max_bytes,
            self._spool.in_use,
            self._tenant,
        )
        self._run_store = RunStore(
            self._journal, max_share=journal.max_share, owners=owners, room=self._room
        )
        self._overflow = Overflow()
        self._logged_ns = 0
        self._waiting = 0
        self._stop_begun_s = 0.0
        self._round_s = time.monotonic()
        self._telemetry: SelfMetrics | None = None
        self._ended: Sequence[RunStatus] | None = None
        self._failed: bool | None = None
        self._gone: JournalGone | None = None
        self._work = threading.Event()
        self._stopping = threading.Event()
        self._drain_thread = threading.Thread(
            target=self._drain_until_stopped, name="otel-rl-drain", daemon=True
        )
        try:
            self._archive = self._archive_of(owners)
            self._delivery = DeliveryManager(
                self._run_store,
                DeliverySettings(
                    tracker=settings.tracker.name,
                    directory=settings.tracker.directory or settings.data,
                    # Bridges that share the tracker's directory share its locks.
                    scratch=settings.data if url is None else settings.tracker.directory,
                    attributes=settings.tracker.options,
                    max_writers=settings.tracker.max_live_runs,
                    confirm_interval_s=settings.tracker.confirm_interval_s,
                    keep_confirmed_s=settings.tracker.keep_confirmed_s,
                    first_retry_s=min(_FIRST_RETRY_S, settings.tracker.max_retry_s),
                    max_retry_s=settings.tracker.max_retry_s,
                    rejected_retry_s=settings.tracker.rejected_retry_s,
                    detail=settings.tracker.detail,
                    names=settings.tracker.names,
                    per_worker=settings.align.per_worker,
                    max_values_per_minute=(
                        settings.tracker.max_values_per_minute
                        if settings.tracker.name == "wandb"
                        else 0
                    ),
                ),
                self.counters.add,
                tenant=self._tenant,
                tenants=self._shares.tokens,
                opened=opened,
            )
            self._drain = RowProcessor(
                self._spool,
                self._run_store,
                settings=settings.align,
                counters=self.counters,
                notify=self._delivery.notify,
                report_interval_s=settings.telemetry.run_interval_s,
                gauges=self._gauges,
                owners=owners,
                dropped=self._overflow.add,
                tenant=self._tenant,
                archive_room=None if self._archive is None else self._archive.has_room,
            )
            self._experiments = Experiments(
                settings.receive.max_experiments, self._drain.experiments, shares=self._shares
            )
            retention = Retention(
                self._journal,
                tracker=settings.tracker.name,
                keep_ns=int(journal.keep_ended_days * _DAY_NS),
                share_of=self._share_of_ended,
                late_ns=int(settings.receive.max_future_s * 1e9),
                busy=lambda: {*self._drain.experiments(), *self._delivery.busy()},
                free=EVERY_RUN if url is None else FREE,
            )
            self.cleanup = Cleanup(
                settings,
                self._run_store,
                retention,
                delivery=self._delivery,
                rows=self._drain,
                leases=self._leases,
                counters=self.counters,
                clock_ns=clock_ns,
                stopping=self._stopping,
            )
            self._watch = DiagnosisScheduler(
                self._run_store,
                environment={} if url is None else {f"{ENV_PREFIX}JOURNAL__URL": url},
                arguments=["--data", str(settings.data)],
                every_s=settings.diagnose.every_s if settings.align.max_history_bytes else 0,
                experiments=self._watched,
                tell=self._drain.tell,
                counters=self.counters,
                clock_ns=clock_ns,
            )
            self._servers = self._listen()
        except BaseException:
            self._close_journal()
            raise

    @property
    def addresses(self) -> Addresses:
        """Return the addresses of the bridge."""
        http = next((s.address for s in self._servers if isinstance(s, HttpServer)), None)
        grpc = next((s.address for s in self._servers if isinstance(s, GrpcServer)), None)
        return Addresses(http, grpc)

    @property
    def settings(self) -> BridgeSettings:
        """Return its settings."""
        return self._settings

    @property
    def waiting(self) -> int:
        """After ``stop``: number of acknowledged batches that could not be made into rows."""
        return self._waiting

    def left(self) -> Left:
        """Return what is not written yet. Any thread may call it, during ``stop`` too.

        Raises:
            JournalError: It cannot be read.
        """
        rows = sum(status.pending for status in self._delivery.status())
        return Left(self._spool.pending(), rows)

    @property
    def problem(self) -> str:
        """Return why the bridge accepts nothing until an operator acts; empty if it does."""
        gone = self._gone
        return "" if gone is None else str(gone)

    @property
    def http(self) -> str:
        """Return the OTLP/HTTP address; empty if it does not listen for it."""
        return self.addresses.http or ""

    def start(self) -> None:
        """Resume where the last bridge on this journal stopped, then accept requests."""
        if self._leases is None:
            self.cleanup.prune()
            for key in self._run_store.unfinished(self._settings.tracker.name):
                self._delivery.notify(key)
        else:
            self._leases.start()
        self.cleanup.start()
        self._drain_thread.start()
        self._watch.start()
        if self._archive is not None:
            self._archive.start()
        if self._settings.telemetry.endpoint is not None:
            reader = otlp_reader(
                self._settings.telemetry.endpoint, self._settings.telemetry.interval_s
            )
            self._telemetry = SelfMetrics(self.counters, self._levels, [reader])
        for server in self._servers:
            server.start()

    def accept(self, batches: Sequence[Batch]) -> None:
        """Store the batches of a request: they are durable when this returns.

        Raises:
            JournalFull: No room; the sender retries.
            JournalClosed: The bridge is stopping; the sender retries.
            JournalGone: The journal was removed; the sender retries.
        """
        try:
            self._spool.append(batches)
        except JournalGone as exc:
            self._note_gone(exc)
            raise
        self._note_there()
        self.counters.add(Counter.BATCHES_SPOOLED, len(batches))
        self._work.set()

    def status(self) -> Sequence[RunStatus]:
        """Every run that was written to since the start; of those that are over, some hundreds."""
        return self._delivery.status()

    @property
    def without_metrics(self) -> Collection[ExperimentKey]:
        """Return ended runs without any metric of their program, sorted."""
        return self._drain.without_metrics

    def stop(self, *, exit_code: int = 0, is_over: bool = False) -> Sequence[RunStatus]:
        """Stop accepting, make rows of all that was accepted, and finish the runs.

        Where other bridges share the journal, they take over the rest after ``lease_s``: steps stay
        open for them.

        Args:
            exit_code: Exit code of the runs: 0 for success.
            is_over: Whether the workers have ended. Those that did not report their end have then
                failed, unless ``exit_code`` is 0.

        Returns:
            The status of each run. Rows that a tracker did not take within ``stop_timeout_s`` stay
            in the journal for the next start. A second call returns the same.
        """
        if self._ended is None:
            self._failed = exit_code != 0 if is_over else None
            self._ended = self._stop(exit_code)
        return self._ended

    def _stop(self, exit_code: int) -> Sequence[RunStatus]:
        self._stop_begun_s = time.monotonic()
        for server in self._servers:
            server.stop()
        if self._leases is not None:
            self._leases.claim_no_more()
        self._watch.stop()
        self._stopping.set()
        self._work.set()
        if self._drain_thread.is_alive():
            self._drain_thread.join()
        if self._archive is not None:
            self._archive.finish()
        self.cleanup.join()
        if self._leases is None:
            try:
                self._waiting = self._spool.pending()
            except JournalGone as exc:
                self._note_gone(exc)
        used_s = time.monotonic() - self._stop_begun_s
        left_s = max(0.0, self._stop_timeout_s() - used_s)
        statuses = self._delivery.stop(timeout_s=left_s, exit_code=exit_code)
        if self._archive is not None:
            used_s = time.monotonic() - self._stop_begun_s
            self._archive.join(max(_ARCHIVE_S, self._stop_timeout_s() - used_s))
        # On a full disk the next start opens the runs again, and finds them complete.
        with contextlib.suppress(JournalError):
            self.cleanup.note_finished(statuses)
        if self._telemetry is not None:
            self._telemetry.stop()
        if self._leases is not None:
            self._leases.stop()
        self._close_journal()
        return statuses

    def _tenant(self, key: ExperimentKey) -> str:
        return self._experiments.owner_of(key) if self._shares.are_needed else ""

    def _leases_of(self, url: str) -> BridgeLeases:
        journal = self._settings.journal
        # Connections of their own, so that they do not wait behind requests.
        self._lease_journal = open_journal(
            self._settings.data, url, max_bytes=journal.max_bytes, connections=2
        )
        return BridgeLeases(
            self._lease_journal,
            owner=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
            tracker=self._settings.tracker.name,
            lease_s=journal.lease_s,
            gained=self._gained,
            lost=lambda keys: self._delivery.drop(keys),
        )

    def _archive_of(self, owners: Ownership) -> Archiver | None:
        settings, journal = self._settings.archive, self._settings.journal
        if settings.enabled is False:
            return None
        if importlib.util.find_spec("pyarrow") is None:
            if settings.enabled:
                raise MissingExtra("archive.enabled: the archive", "pyarrow", "archive")
            return None
        return Archiver(
            ArchiveStore(self._journal, owners),
            settings.directory or self._settings.data / "archive",
            every_s=settings.every_s,
            max_waiting_bytes=int(settings.max_share * journal.max_bytes),
            counters=self.counters,
            clock_ns=self._clock_ns,
        )

    def _close_journal(self) -> None:
        self._journal.close()
        if self._lease_journal is not None:
            self._lease_journal.close()

    def _gained(self, key: ExperimentKey, has_rows: bool) -> None:  # noqa: FBT001  # a callback
        """Take over a run, in whatever state its last owner left it."""
        self._run_store.forget(key)
        self._delivery.drop([key])  # left from before another bridge took the run
        self._drain.begin(key)
        if has_rows:
            self._delivery.notify(key)
        self._work.set()

    def _share_of_ended(self, key: ExperimentKey) -> tuple[str, int]:
        tenant, journal = self._tenant(key), self._settings.journal
        return tenant, self._shares.of(tenant, int(journal.max_ended_share * journal.max_bytes))

    def _listen(self) -> Sequence[HttpServer | GrpcServer]:
        settings = self._settings
        tls = load_tls(settings.tls)

        def accept(batches: Sequence[Batch]) -> None:
            self._room.take(batches)
            self.accept(batches)

        intake = IngestPipeline(
            accept=accept,
            limits=settings.receive,
            counters=self.counters,
            clock_ns=self._clock_ns,
            tokens=Tokens(settings.auth),
            experiments=self._experiments,
            overflow=self._overflow,
            problem=lambda: self.problem,
            shares=self._shares,
        )
        servers: list[HttpServer | GrpcServer] = []
        try:
            if settings.grpc.enabled:
                servers.append(GrpcServer(intake, settings.grpc.host, settings.grpc.port, tls))
            if settings.http.enabled:
                grpc = servers[0].address if servers else None
                http = HttpServer(intake, settings.http.host, settings.http.port, tls, grpc=grpc)
                servers.insert(0, http)
        except BaseException:
            for server in servers:
                server.stop()
            raise
        return servers

    def _drain_until_stopped(self) -> None:
        """Make rows until stopped: the body of the only thread that makes them."""
        while True:
            stopping = self._stopping.is_set()
            pause_s = 0.0
            begun_s = time.thread_time()
            try:
                if stopping and self._leases is None:
                    self._finish()
                    self._look_last()
                else:
                    while self._round() and self._may_go_on():
                        pass
            except JournalGone as exc:
                pause_s = _RETRY_S
                self._note_gone(exc)
            except JournalError as exc:
                pause_s = _RETRY_S
                if self._may_log():
                    _log.warning("Rows cannot be kept, the batches wait: %s", exc)
            except Exception:  # noqa: BLE001  # the thread outlives any single failure; counted
                pause_s = _RETRY_S
                self.counters.add(Counter.EXCEPTIONS, reason=Where.DRAIN)
                if self._may_log():
                    _log.exception("Making rows failed; the batches are kept and tried again.")
            if stopping:
                return
            if pause_s:
                self._stopping.wait(pause_s)
            else:
                used_s = time.thread_time() - begun_s
                self._stopping.wait(min(_MAX_GATHERING_S, _GATHERING * used_s))
                self._work.wait(_TICK_S)
                self._work.clear()

    def _look_last(self) -> None:
        """Tell the runs that have ended what is found out about them."""
        if self._watch.look_last():
            while self._drain.round(self._clock_ns()):
                pass

    def _finish(self) -> None:
        """Make rows of everything that was accepted, for at most half of the stop timeout.

        Without room for rows, the tracker frees some by taking those that are there: wait as long
        as it does.
        """
        taken_s = time.monotonic()
        until_s = self._stop_begun_s + self._settings.stop_timeout_s / 2
        safe_rows = 0
        while True:
            self._drain.finish(
                self._clock_ns(),
                failed=self._failed,
                is_over=lambda: time.monotonic() > until_s,
            )
            now_s = time.monotonic()
            safe_rows, before = sum(run.safe_row for run in self._delivery.status()), safe_rows
            taken_s = now_s if safe_rows > before else taken_s
            if now_s > until_s or now_s - taken_s > _NO_ROOM_S or not self._spool.pending():
                return
            time.sleep(_TICK_S)

    def _watched(self) -> Sequence[ExperimentKey]:
        return [key for key in self._drain.experiments() if self._run_store.is_ours(key)]

    def _round(self) -> bool:
        """Run one round of row making. Returns whether more may be ready at once."""
        if self._journal.busy_s > _HELD_UP_S:
            return False  # the run's rows could not be stored, and may depend on waiting batches
        begun_s, last_s = time.monotonic(), self._round_s
        if begun_s - last_s > _HELD_UP_S:
            self._drain.go_on(self._clock_ns() - int(_HELD_UP_S * 1e9))
        gone = self._gone
        has_more = self._drain.round(self._clock_ns())
        # A round may not need the table that is missing, or have read the journal before it went.
        if self._leases is None and self._gone is gone:
            self._note_there()
        self._round_s = begun_s
        return has_more

    def _may_go_on(self) -> bool:
        """Return whether to make more rows at once: a stopping bridge has until it is to end."""
        if not self._stopping.is_set():
            return True
        until_s = self._stop_begun_s + self._stop_timeout_s()
        return self._leases is not None and time.monotonic() < until_s

    def _stop_timeout_s(self) -> float:
        timeout_s = self._settings.stop_timeout_s
        # A lease is renewed until the end, but others wait for the runs.
        return timeout_s if self._leases is None else min(timeout_s, self._settings.journal.lease_s)

    def _note_there(self) -> None:
        if self._gone is not None:
            self._gone = None
            _log.warning("The journal is where it was. Requests are taken again.")

    def _note_gone(self, exc: JournalGone) -> None:
        is_news, self._gone = self._gone is None, exc
        if is_news:
            _log.error("%s", exc)

    def _may_log(self) -> bool:
        """Return whether the last such log line is at least a minute old."""
        now_ns = self._clock_ns()
        if 0 <= now_ns - self._logged_ns < _LOG_EVERY_NS:
            return False
        self._logged_ns = now_ns
        return True

    def _gauges(self, key: ExperimentKey) -> Mapping[str, float]:
        """Return the gauges of a run, reported beside its counters."""
        return {Gauge.ROWS_PENDING: self._delivery.pending(key)}

    def _levels(self) -> Iterator[GaugeValue]:
        with contextlib.suppress(JournalError):  # the row thread reports it
            yield from self._levels_of_journal()

    def _levels_of_journal(self) -> Iterator[GaugeValue]:
        yield GaugeValue(Gauge.JOURNAL_SIZE, self._journal.size())
        for key, size in self._run_store.spooled_bytes().items():
            if not self._run_store.is_ours(key):
                continue  # its owner reports it
            yield GaugeValue(Gauge.SPOOL_SIZE, size, _named(key))
        for status in self._delivery.status():
            yield GaugeValue(Gauge.ROWS_PENDING, status.pending, _named(status.key))


def _named(key: ExperimentKey) -> dict[str, str]:
    return {names.RL_EXPERIMENT_NAME: key.experiment, names.RL_TRIAL_NAME: key.trial}
