"""The bridge, top to bottom. The only file that knows all stages.

receive ─ accept ─> spool ─ drain: decode ─> align ─> ledger ─ notify ─> delivery ─> tracker
           (200 after the spool's fsync)     (one transaction)      (one process per run)
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from otel_rl.bridge.align import Aligner
from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.counters import Counter, Counters, SampleDrop, Where
from otel_rl.bridge.decode import decode
from otel_rl.bridge.journal import Journal
from otel_rl.bridge.ledger import Commit, Ledger
from otel_rl.bridge.receive import GrpcServer, HttpServer, create_app
from otel_rl.bridge.spool import Spool
from otel_rl.bridge.track.delivery import Delivery, DeliverySettings, RunState, RunStatus
from otel_rl.errors import JournalFull
from otel_rl.records import Batch, ExperimentKey, Offset, Signal

__all__ = ["Addresses", "Bridge"]

_log = logging.getLogger(__name__)

# Rows are closed by time too, so the drain looks at the clock even when nothing arrives.
_TICK_S = 0.2

# What one round reads: enough to share a commit, little enough to see rows soon.
_READ_BYTES = 8 << 20

# After a failure that is not a batch's fault: a full disk, a bug.
_RETRY_S = 1.0

# What goes wrong is tried again every second; it is worth one line a minute.
_LOG_EVERY_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the bridge listens, as ``HOST:PORT``; None where it does not."""

    http: str | None
    grpc: str | None


class Bridge:
    """Everything between OTLP and the tracker, for any number of experiments.

    Args:
        settings: See ``config.py``.
        clock_ns: Nanoseconds since the epoch.

    Raises:
        ConfigError: A port is taken, a directory cannot be used, the tracker is unknown.
        JournalLocked: Another bridge has the data directory.
    """

    def __init__(
        self, settings: BridgeSettings, *, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self.counters = Counters()
        self._settings = settings
        self._clock_ns = clock_ns
        self._journal = Journal(settings.data, max_bytes=settings.journal.max_bytes)
        self._spool = Spool(self._journal)
        self._ledger = Ledger(self._journal)
        self._aligners: dict[ExperimentKey, Aligner] = {}
        self._is_loaded = False
        self._read_through = Offset(0)
        self._read_bytes = _READ_BYTES
        self._logged_ns = 0
        self._waiting = 0
        self._ended: Sequence[RunStatus] | None = None
        self._work = threading.Event()
        self._stopping = threading.Event()
        self._drain_thread = threading.Thread(target=self._drain, name="otel-rl-drain", daemon=True)
        try:
            self._delivery = Delivery(
                self._ledger,
                DeliverySettings(
                    tracker=settings.tracker.name,
                    directory=settings.tracker.directory or settings.data,
                    scratch=settings.data,
                    attributes=settings.tracker.options,
                    max_writers=settings.tracker.max_live_runs,
                ),
                self.counters.add,
            )
            self._servers = self._listen()
        except BaseException:
            self._journal.close()
            raise

    @property
    def addresses(self) -> Addresses:
        """Where the bridge listens."""
        http = next((s.address for s in self._servers if isinstance(s, HttpServer)), None)
        grpc = next((s.address for s in self._servers if isinstance(s, GrpcServer)), None)
        return Addresses(http, grpc)

    @property
    def settings(self) -> BridgeSettings:
        """What it was told."""
        return self._settings

    @property
    def waiting(self) -> int:
        """After ``stop``: acknowledged batches that could not be made into rows."""
        return self._waiting

    @property
    def http(self) -> str:
        """Where the bridge listens for OTLP/HTTP; empty if it does not."""
        return self.addresses.http or ""

    def start(self) -> None:
        """Go on where the last bridge on this directory stopped, then take requests."""
        self._load()
        for key in self._ledger.runs():
            if self._ledger.finished(key, self._settings.tracker.name) < self._ledger.next_row(key):
                self._delivery.notify(key)
        self._drain_thread.start()
        for server in self._servers:
            server.start()

    def accept(self, batch: Batch) -> None:
        """Take responsibility for a batch: it is durable when this returns.

        Raises:
            JournalFull: No room; the sender retries.
            JournalClosed: The bridge is stopping; the sender retries.
        """
        if batch.signal is not Signal.METRICS:
            return  # nothing reads spans yet: they were checked and counted at the door
        self._spool.append(batch)
        self.counters.add(Counter.BATCHES_SPOOLED)
        self._work.set()

    def status(self) -> Sequence[RunStatus]:
        """Every run that was written to since the start."""
        return self._delivery.status()

    def stop(self, *, exit_code: int = 0) -> Sequence[RunStatus]:
        """Take nothing more, make rows of everything that was taken, and finish the runs.

        Args:
            exit_code: What the runs end with: 0 for success.

        Returns:
            How each run stands. Rows that a tracker did not take within ``stop_timeout_s`` stay in
            the journal for the next start. A second call returns what the first did.
        """
        if self._ended is None:
            self._ended = self._stop(exit_code)
        return self._ended

    def _stop(self, exit_code: int) -> Sequence[RunStatus]:
        for server in self._servers:
            server.stop()
        self._stopping.set()
        self._work.set()
        if self._drain_thread.is_alive():
            self._drain_thread.join()
        self._waiting = self._spool.pending()
        statuses = self._delivery.stop(timeout_s=self._settings.stop_timeout_s, exit_code=exit_code)
        for status in statuses:
            if status.state is RunState.FINISHED:
                self._ledger.finish(status.key, status.tracker, status.next_row)
        self._journal.close()
        return statuses

    def _listen(self) -> Sequence[HttpServer | GrpcServer]:
        settings = self._settings
        servers: list[HttpServer | GrpcServer] = []
        try:
            if settings.http.enabled:
                app = create_app(
                    accept=self.accept,
                    limits=settings.receive,
                    counters=self.counters,
                    clock_ns=self._clock_ns,
                )
                servers.append(HttpServer(app, settings.http.host, settings.http.port))
            if settings.grpc.enabled:
                servers.append(
                    GrpcServer(
                        accept=self.accept,
                        limits=settings.receive,
                        counters=self.counters,
                        clock_ns=self._clock_ns,
                        host=settings.grpc.host,
                        port=settings.grpc.port,
                    )
                )
        except BaseException:
            for server in servers:
                server.stop()
            raise
        return servers

    # The drain: one thread, the only one that touches the aligners.

    def _drain(self) -> None:
        while True:
            stopping = self._stopping.is_set()
            try:
                while self._round():
                    pass
                if stopping:
                    self._close_rows(self._clock_ns(), everything=True)
                    return
            except JournalFull as exc:
                self._forget()
                if self._may_log():
                    _log.warning("Rows cannot be kept, the batches wait: %s", exc)
                if stopping:
                    return
                self._stopping.wait(_RETRY_S)
            except Exception:  # noqa: BLE001  # the drain outlives any single failure; counted
                self.counters.add(Counter.EXCEPTIONS, reason=Where.DRAIN)
                if self._may_log():
                    _log.exception("Making rows failed; the batches are kept and tried again.")
                self._forget()
                if stopping:
                    return
                self._stopping.wait(_RETRY_S)
            if not stopping:
                self._work.wait(_TICK_S)
                self._work.clear()

    def _round(self) -> bool:
        """Make rows of what waits in the spool. Returns whether there may be more."""
        self._load()
        batches = self._spool.read(after=self._read_through, max_bytes=self._read_bytes)
        if not batches:
            self._close_rows(self._clock_ns())
            return False
        try:
            touched = self._align(batches)
        except Exception:  # noqa: BLE001  # counted and logged once the bad batch is found
            if len(batches) > 1:
                # One of them is bad. Read them one by one until it is found.
                self._read_bytes = 1  # a read returns at least one batch
                self._forget()
                return True
            self._set_aside(*batches[0])
            return True
        self._read_through = batches[-1][0]
        more = sum(len(batch.payload) for _, batch in batches) >= self._read_bytes
        # In a backlog the bridge's clock is far ahead of the data that it reads.
        now_ns = batches[-1][1].received_ns if more else self._clock_ns()
        self._close_rows(now_ns, touched)
        if not more:
            self._read_bytes = _READ_BYTES
        return more

    def _align(self, batches: Sequence[tuple[Offset, Batch]]) -> set[ExperimentKey]:
        touched: set[ExperimentKey] = set()
        for _, batch in batches:
            for decoded in decode(batch):
                self._aligner(decoded.experiment).add(decoded, received_ns=batch.received_ns)
                touched.add(decoded.experiment)
        return touched

    def _close_rows(
        self, now_ns: int, touched: Iterable[ExperimentKey] = (), *, everything: bool = False
    ) -> None:
        """Commit the rows that are complete, and the state of what was ``touched``."""
        commits: list[Commit] = []
        for key, aligner in self._aligners.items():
            rows = aligner.close(now_ns, everything=everything)
            if rows or key in touched:
                commits.append(Commit(key, rows, aligner.next_number, aligner))
        if not commits:
            return
        self._ledger.commit(commits, read_through=self._read_through)
        for commit in commits:
            self._count(self._aligners[commit.key])
            if commit.rows:
                self.counters.add(Counter.ROWS_CREATED, len(commit.rows))
                self._delivery.notify(commit.key)

    def _count(self, aligner: Aligner) -> None:
        self.counters.add(Counter.SAMPLES_LATE, aligner.late)
        self.counters.add(
            Counter.SAMPLES_DROPPED, aligner.refused_series, reason=SampleDrop.TOO_MANY_SERIES
        )
        aligner.late = aligner.refused_series = 0

    def _aligner(self, key: ExperimentKey) -> Aligner:
        aligner = self._aligners.get(key)
        if aligner is None:
            kept = self._ledger.state(key)
            aligner = kept if isinstance(kept, Aligner) else Aligner()
            aligner.settings = self._settings.align
            self._aligners[key] = aligner
        return aligner

    def _may_log(self) -> bool:
        """Whether the last time that rows could not be made was said a minute ago or earlier."""
        now_ns = self._clock_ns()
        if now_ns - self._logged_ns < _LOG_EVERY_NS:
            return False
        self._logged_ns = now_ns
        return True

    def _forget(self) -> None:
        """Go back to what is committed: the next round begins there."""
        self._aligners.clear()
        self._read_through = Offset(0)
        self._is_loaded = False

    def _load(self) -> None:
        """Take up every run, not only those that report again: a silent one has open steps, too."""
        if not self._is_loaded:
            for key in self._ledger.runs():
                self._aligner(key)
            self._is_loaded = True

    def _set_aside(self, offset: Offset, batch: Batch) -> None:
        """Keep a batch that cannot be read out of everybody's way. It is a bug, not bad input."""
        self._forget()
        self.counters.add(Counter.SAMPLES_DROPPED, reason=SampleDrop.UNDECODABLE)
        _log.exception(
            "A batch cannot be made into rows and was set aside. Please report this.",
            extra={"offset": offset, "bytes": len(batch.payload)},
        )
        self._ledger.set_aside(offset)
