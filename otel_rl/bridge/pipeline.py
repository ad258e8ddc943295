"""The bridge, top to bottom. The only file that knows all stages.

receive ─ accept ─> spool ─ drain: decode ─> align ─> ledger ─ notify ─> delivery ─> tracker
       (200 after the spool's fsync)        (one transaction)      (one process per run)
"""

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from otel_rl.bridge.config import ENV_PREFIX, BridgeSettings
from otel_rl.bridge.counters import Counter, Counters, Gauge, Where
from otel_rl.bridge.drain import Drain
from otel_rl.bridge.journal import Journal
from otel_rl.bridge.journal.leases import Leases
from otel_rl.bridge.journal.opening import open_journal
from otel_rl.bridge.journal.owners import Owners, SoleOwner
from otel_rl.bridge.ledger import Ledger
from otel_rl.bridge.receive import (
    Experiments,
    GrpcServer,
    HttpServer,
    Intake,
    JournalShares,
    Overflow,
    Shares,
    Tokens,
    load_tls,
)
from otel_rl.bridge.spool import Spool
from otel_rl.bridge.telemetry import Level, Telemetry, otlp_reader
from otel_rl.bridge.track.delivery import Delivery, DeliverySettings, RunState, RunStatus
from otel_rl.bridge.watch import Watch
from otel_rl.errors import JournalError, JournalGone
from otel_rl.records import Batch, ExperimentKey
from otel_rl.semconv import names

__all__ = ["Addresses", "Bridge"]

_log = logging.getLogger(__name__)

# Rows are closed by time too, so the drain looks at the clock even when nothing arrives.
_TICK_S = 0.2

# Nobody can report while the disk keeps all requests waiting, or this process gets no time. More of
# that than this does not count when somebody is silent or late.
_HELD_UP_S = 1.0

# After a full disk or a bug.
_RETRY_S = 1.0

# A stopping bridge that has no room for rows waits so long for a tracker that takes none.
_NO_ROOM_S = 5.0

# Pause after a tracker's first failure; it doubles from there.
_FIRST_RETRY_S = 0.5

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
        ConfigError: A port is taken, a file or directory cannot be used, the tracker is unknown.
        JournalLocked: Another bridge has the data directory.
    """

    def __init__(
        self, settings: BridgeSettings, *, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self.counters = Counters()
        self._settings = settings
        self._clock_ns = clock_ns
        self._lease_journal: Journal | None = None
        journal = settings.journal
        url = None if journal.url is None else journal.url.get_secret_value()
        self._journal = open_journal(settings.data, url, max_bytes=journal.max_bytes)
        self._leases = None if url is None else self._leases_of(url)
        owners: Owners = self._leases or SoleOwner()
        self._spool = Spool(self._journal, max_share=journal.max_share)
        self._ledger = Ledger(self._journal, max_share=journal.max_share, owners=owners)
        self._overflow = Overflow()
        self._logged_ns = 0
        self._waiting = 0
        self._round_s = time.monotonic()
        self._telemetry: Telemetry | None = None
        self._ended: Sequence[RunStatus] | None = None
        self._failed: bool | None = None
        self._gone: JournalGone | None = None
        self._work = threading.Event()
        self._stopping = threading.Event()
        self._drain_thread = threading.Thread(
            target=self._drain_until_stopped, name="otel-rl-drain", daemon=True
        )
        try:
            self._delivery = Delivery(
                self._ledger,
                DeliverySettings(
                    tracker=settings.tracker.name,
                    directory=settings.tracker.directory or settings.data,
                    # Several bridges that share the tracker's directory share its locks.
                    scratch=settings.data if url is None else settings.tracker.directory,
                    attributes=settings.tracker.options,
                    max_writers=settings.tracker.max_live_runs,
                    confirm_interval_s=settings.tracker.confirm_interval_s,
                    keep_confirmed_s=settings.tracker.keep_confirmed_s,
                    first_retry_s=min(_FIRST_RETRY_S, settings.tracker.max_retry_s),
                    max_retry_s=settings.tracker.max_retry_s,
                    rejected_retry_s=settings.tracker.rejected_retry_s,
                ),
                self.counters.add,
            )
            self._drain = Drain(
                self._spool,
                self._ledger,
                settings=settings.align,
                counters=self.counters,
                notify=self._delivery.notify,
                report_interval_s=settings.telemetry.run_interval_s,
                gauges=self._gauges,
                owners=owners,
                dropped=self._overflow.add,
            )
            self._watch = Watch(
                self._ledger,
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
    def problem(self) -> str:
        """Why nothing is taken until a person does something; empty if all is well."""
        gone = self._gone
        return "" if gone is None else str(gone)

    @property
    def http(self) -> str:
        """Where the bridge listens for OTLP/HTTP; empty if it does not."""
        return self.addresses.http or ""

    def start(self) -> None:
        """Go on where the last bridge on this journal stopped, then take requests."""
        if self._leases is None:
            self._prune()
            tracker = self._settings.tracker.name
            for key in self._ledger.runs():
                if self._ledger.finished(key, tracker) < self._ledger.next_row(key):
                    self._delivery.notify(key)
        else:
            self._leases.start()
            threading.Thread(
                target=self._settle_until_stopped,
                args=(self._leases,),
                name="otel-rl-settle",
                daemon=True,  # it ends at its next look at the database
            ).start()
        self._drain_thread.start()
        self._watch.start()
        if self._settings.telemetry.endpoint is not None:
            reader = otlp_reader(
                self._settings.telemetry.endpoint, self._settings.telemetry.interval_s
            )
            self._telemetry = Telemetry(self.counters, self._levels, [reader])
        for server in self._servers:
            server.start()

    def accept(self, batches: Sequence[Batch]) -> None:
        """Take responsibility for the batches of a request: they are durable when this returns.

        Raises:
            JournalFull: No room; the sender retries.
            JournalClosed: The bridge is stopping; the sender retries.
            JournalGone: Somebody has removed the journal; the sender retries.
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
        """Every run that was written to since the start."""
        return self._delivery.status()

    @property
    def without_metrics(self) -> Collection[ExperimentKey]:
        """Runs that have ended and have no metric of their program, sorted."""
        return self._drain.without_metrics

    def stop(self, *, exit_code: int = 0, is_over: bool = False) -> Sequence[RunStatus]:
        """Take nothing more, make rows of everything that was taken, and finish the runs.

        Where other bridges share the journal, they go on with what is left after ``lease_s``: steps
        stay open for what they will take.

        Args:
            exit_code: What the runs end with: 0 for success.
            is_over: Whether the workers are gone for good. Those that have said no goodbye have
                then failed, unless ``exit_code`` is 0.

        Returns:
            How each run stands. Rows that a tracker did not take within ``stop_timeout_s`` stay in
            the journal for the next start. A second call returns what the first did.
        """
        if self._ended is None:
            self._failed = exit_code != 0 if is_over else None
            self._ended = self._stop(exit_code)
        return self._ended

    def _stop(self, exit_code: int) -> Sequence[RunStatus]:
        for server in self._servers:
            server.stop()
        if self._leases is not None:
            self._leases.claim_no_more()
        self._watch.stop()
        self._stopping.set()
        self._work.set()
        if self._drain_thread.is_alive():
            self._drain_thread.join()
        timeout_s = self._settings.stop_timeout_s
        if self._leases is None:
            try:
                self._waiting = self._spool.pending()
            except JournalGone as exc:
                self._note_gone(exc)
        else:
            timeout_s = min(timeout_s, self._settings.journal.lease_s)
        statuses = self._delivery.stop(timeout_s=timeout_s, exit_code=exit_code)
        # On a full disk the next start opens the runs again, and finds them complete.
        with contextlib.suppress(JournalError):
            self._note_finished(statuses)
        if self._telemetry is not None:
            self._telemetry.stop()
        if self._leases is not None:
            self._leases.stop()
        self._close_journal()
        return statuses

    def _leases_of(self, url: str) -> Leases:
        journal = self._settings.journal
        # Connections of their own, so that they do not wait behind requests.
        self._lease_journal = open_journal(
            self._settings.data, url, max_bytes=journal.max_bytes, connections=2
        )
        return Leases(
            self._lease_journal,
            owner=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
            tracker=self._settings.tracker.name,
            lease_s=journal.lease_s,
            gained=self._gained,
            lost=lambda keys: self._delivery.drop(keys),
        )

    def _close_journal(self) -> None:
        self._journal.close()
        if self._lease_journal is not None:
            self._lease_journal.close()

    def _gained(self, key: ExperimentKey, has_rows: bool) -> None:  # noqa: FBT001  # a callback
        """A run is ours from now on, in whatever state its last owner left it."""
        self._ledger.forget(key)
        self._delivery.drop([key])  # one that was begun while the run was another's
        self._drain.begin(key)
        if has_rows:
            self._delivery.notify(key)
        self._work.set()

    def _settle_until_stopped(self, leases: Leases) -> None:
        """Give back what is finished. In a thread of its own: it may take longer than a lease."""
        while not self._stopping.wait(self._settings.journal.lease_s / 2):
            with contextlib.suppress(JournalError):  # the leases say so
                self._note_finished(self._delivery.status())
                self._prune()
                leases.settle(self._ledger.settled(self._settings.tracker.name))

    def _note_finished(self, statuses: Sequence[RunStatus]) -> None:
        for status in statuses:
            if (
                status.state is RunState.FINISHED
                and self._ledger.is_ours(status.key)
                and self._ledger.finished(status.key, status.tracker) != status.next_row
            ):
                self._ledger.finish(status.key, status.tracker, status.next_row)

    def _prune(self) -> None:
        tracker = self._settings.tracker
        kept_since_ns = self._clock_ns() - int(tracker.keep_confirmed_s * 1e9)
        self._ledger.prune_finished(tracker.name, confirmed_before_ns=kept_since_ns)

    def _listen(self) -> Sequence[HttpServer | GrpcServer]:
        settings = self._settings
        tls = load_tls(settings.tls)
        shares = Shares(settings.auth)
        experiments = Experiments(
            settings.receive.max_experiments, self._drain.experiments, shares=shares
        )
        room = JournalShares(
            shares, settings.journal.max_bytes, self._spool.in_use, experiments.owner_of
        )

        def accept(batches: Sequence[Batch]) -> None:
            room.take(batches)
            self.accept(batches)

        intake = Intake(
            accept=accept,
            limits=settings.receive,
            counters=self.counters,
            clock_ns=self._clock_ns,
            tokens=Tokens(settings.auth),
            experiments=experiments,
            overflow=self._overflow,
            problem=lambda: self.problem,
            shares=shares,
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
        """Run the drain: the one thread that makes rows."""
        while True:
            stopping = self._stopping.is_set()
            pause_s = 0.0
            try:
                if stopping and self._leases is None:
                    self._finish()
                    if self._watch.look_last():
                        self._drain.round(self._clock_ns())
                else:
                    while self._round():
                        pass
            except JournalGone as exc:
                pause_s = _RETRY_S
                self._note_gone(exc)
            except JournalError as exc:
                pause_s = _RETRY_S
                if self._may_log():
                    _log.warning("Rows cannot be kept, the batches wait: %s", exc)
            except Exception:  # noqa: BLE001  # the drain outlives any single failure; counted
                pause_s = _RETRY_S
                self.counters.add(Counter.EXCEPTIONS, reason=Where.DRAIN)
                if self._may_log():
                    _log.exception("Making rows failed; the batches are kept and tried again.")
            if stopping:
                return
            if pause_s:
                self._stopping.wait(pause_s)
            else:
                self._work.wait(_TICK_S)
                self._work.clear()

    def _finish(self) -> None:
        """Make rows of everything that was taken.

        Where rows have no room, the tracker makes some by taking those that are there: it is waited
        for as long as it does, for half of the time that a stop may take.
        """
        begun_s = taken_s = time.monotonic()
        safe_rows = 0
        while True:
            self._drain.finish(self._clock_ns(), failed=self._failed)
            now_s = time.monotonic()
            safe_rows, before = sum(run.safe_row for run in self._delivery.status()), safe_rows
            taken_s = now_s if safe_rows > before else taken_s
            is_over = now_s - begun_s > self._settings.stop_timeout_s / 2
            if is_over or now_s - taken_s > _NO_ROOM_S or not self._spool.pending():
                return
            time.sleep(_TICK_S)

    def _watched(self) -> Sequence[ExperimentKey]:
        return [key for key in self._drain.experiments() if self._ledger.is_ours(key)]

    def _round(self) -> bool:
        """One round of the drain. Returns whether there may be more to do at once."""
        if self._journal.busy_s > _HELD_UP_S:
            return False  # its rows could not be kept, and what belongs in them may be waiting
        begun_s, last_s = time.monotonic(), self._round_s
        if begun_s - last_s > _HELD_UP_S:
            self._drain.go_on(self._clock_ns() - int(_HELD_UP_S * 1e9))
        has_more = self._drain.round(self._clock_ns())
        if self._leases is None:  # a round may not need the one table that is gone
            self._note_there()
        self._round_s = begun_s
        return has_more

    def _note_there(self) -> None:
        if self._gone is not None:
            self._gone = None
            _log.warning("The journal is where it was. Requests are taken again.")

    def _note_gone(self, exc: JournalGone) -> None:
        is_news, self._gone = self._gone is None, exc
        if is_news:
            _log.error("%s", exc)

    def _may_log(self) -> bool:
        """Whether the last time that rows could not be made was said a minute ago or earlier."""
        now_ns = self._clock_ns()
        if 0 <= now_ns - self._logged_ns < _LOG_EVERY_NS:
            return False
        self._logged_ns = now_ns
        return True

    def _gauges(self, key: ExperimentKey) -> Mapping[str, float]:
        """What stands in the run beside the counts."""
        return {Gauge.ROWS_PENDING: self._delivery.pending(key)}

    def _levels(self) -> Iterator[Level]:
        with contextlib.suppress(JournalError):  # those who make rows say so
            yield from self._levels_of_journal()

    def _levels_of_journal(self) -> Iterator[Level]:
        yield Level(Gauge.JOURNAL_SIZE, self._journal.size())
        for key, size in self._ledger.spooled_bytes().items():
            if not self._ledger.is_ours(key):
                continue  # its owner tells
            yield Level(Gauge.SPOOL_SIZE, size, _named(key))
        for status in self._delivery.status():
            yield Level(Gauge.ROWS_PENDING, status.pending, _named(status.key))


def _named(key: ExperimentKey) -> dict[str, str]:
    return {names.RL_EXPERIMENT_NAME: key.experiment, names.RL_TRIAL_NAME: key.trial}
