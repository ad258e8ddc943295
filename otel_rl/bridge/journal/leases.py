"""Several bridges on one database: each run is owned by one of them at a time, by a lease.

    claim -> own -> renew, renew, ... -> release      the run goes on elsewhere, or is finished
                       |
                       v
                     lost                             another has it, or might have it by now

* The database's clock alone decides when a lease has ended. A bridge trusts its own monotonic clock
  for one thing only: it stops working on a run ``_MARGIN`` of a lease before the database can give
  the lease away, counted from before the bridge asked for the lease.
* Each turn of a run has a number, the epoch, which is larger than that of the turn before. An owner
  writes only under its epoch, checked in the same transaction; see ``RunStore``. So an owner that
  was asleep writes nothing after its turn.
* Runs with work are shared out evenly as they come. A run stays with its owner until it has no
  work: then its lease is given back.
* A bridge that was cut off in the middle of a transaction locks records that others need. Any
  bridge that sees the server wait for the lost one ends its transaction.
"""

import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_rl.bridge.journal.deliveries import all_confirmed, lacks_rows
from otel_rl.bridge.journal.interface import WAITS, Connection, Journal
from otel_rl.bridge.journal.schema import APPLICATION
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey

_log = logging.getLogger(__name__)

_MARGIN: Final = 1 / 3
_RENEWALS: Final = 3  # in the time of a lease
_MAX_PAUSE_S: Final = 1.0  # a run without an owner waits at most this long to be looked at

_MIN_SILENCE_S: Final = 5.0  # a bridge that is only slow sends more within it

_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux has it


def _boot_time() -> float:
    return time.clock_gettime(_BOOT_CLOCK)


@dataclass(frozen=True, slots=True)
class _Lease:
    """The lease of a run that this bridge owns.

    Attributes:
        epoch: Number of this turn of the run.
        ends_at: Time of this process's monotonic clock from which on the run may not be touched.
    """

    epoch: int
    ends_at: float


class BridgeLeases:
    """The runs that one bridge owns. Any thread may ask; threads of its own renew the leases.

    Args:
        journal: The journal that the bridges share. Its two connections should be the leases'
            alone: a lease may run out while it waits for a connection.
        owner: Name of this bridge, which no other bridge has or ever had.
        trackers: Names of the trackers whose deliveries count as work.
        lease_s: Seconds that a run has no owner after its bridge was killed.
        gained: Called with each run that this bridge has begun to own, and whether a tracker lacks
            rows of it.
        lost: Called at once with runs that may not be touched any more, before another bridge can
            own them. It must not wait for the journal.
        monotonic: Clock in seconds that goes on while the machine sleeps.

    Attributes:
        others: Number of other bridges alive, set by ``stop``; None if the database does not
            answer.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        owner: str,
        trackers: Sequence[str],
        lease_s: float,
        gained: Callable[[ExperimentKey, bool], None],
        lost: Callable[[Collection[ExperimentKey]], None],
        monotonic: Callable[[], float] = _boot_time,
    ) -> None:
        self._journal = journal
        self._table = LeaseTable(owner, trackers, lease_ns=int(lease_s * 1e9))
        self._lease_s = lease_s
        self._held_s = lease_s * (1 - _MARGIN)
        self._gained = gained
        self._lost = lost
        self._monotonic = monotonic
        # Replaced as a whole by the thread, read by anybody.
        self._held: Mapping[ExperimentKey, _Lease] = {}
        self._claims = True
        self._renewed_at = -math.inf
        self._is_away = False
        self.others: int | None = None
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep, name="otel-rl-leases", daemon=True),
            # Of its own, because the other one may be waiting for the database.
            threading.Thread(target=self._watch, name="otel-rl-lease-ends", daemon=True),
            # Of its own, because what it ends may be what the first one waits for.
            threading.Thread(target=self._end_silent, name="otel-rl-lease-silent", daemon=True),
        ]
        # _changing guards the replacement of _held.
        self._changing = threading.Lock()

    def epoch(self, key: ExperimentKey, /) -> int | None:
        lease = self._held.get(key)
        return lease.epoch if lease and self._monotonic() < lease.ends_at else None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def claim_no_more(self) -> None:
        """Keep the owned runs, and leave new ones to the other bridges."""
        self._claims = False

    def stop(self) -> None:
        """Give all runs back. The threads that work on them must have ended."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        with self._changing:
            self._held = {}
        try:
            self.others = self._journal.write(self._table.give_all_back)
        except JournalError as exc:
            _log.warning("Leases cannot be given back and expire by themselves: %s", exc)

    # From here on: the thread that keeps the leases.

    def _keep(self) -> None:
        while not self._stopping.is_set():
            try:
                self.turn()
            except JournalError as exc:
                if not self._is_away:
                    self._is_away = True
                    _log.warning("Leases cannot be renewed: %s", exc)
            pause_s = min(_MAX_PAUSE_S, self._lease_s / _RENEWALS / 2)
            self._stopping.wait(pause_s * (0.5 + random.random() / 2))  # noqa: S311  # it spreads

    def turn(self) -> None:
        """Renew the leases that are due, give back those of idle runs, and claim free runs.

        The leases' own thread calls this once they are started.

        Raises:
            JournalError: The database is unreachable; the leases that are held run out by
                themselves.
        """
        if self._monotonic() - self._renewed_at >= self._lease_s / _RENEWALS:
            self._renew()
            self._release(self._without_work())
        if self._claims:
            self._claim()
        self._is_away = False

    def _renew(self) -> None:
        asked_at = self._monotonic()
        renewed = self._journal.write(self._table.renew)
        self._renewed_at = asked_at
        with self._changing:
            before = self._held
            # One that has ended, or is about to, was seen to be lost by those who asked: it stays
            # so until the next turn.
            last = self._monotonic() + self._lease_s / 10
            self._held = {
                key: _Lease(lease.epoch, asked_at + self._held_s)
                for key, lease in before.items()
                if renewed.get(key) == lease.epoch and last < lease.ends_at
            }
            lost = before.keys() - self._held.keys()
        if lost:
            _log.warning(
                "Runs are handed over to other bridges: %s", ", ".join(map(str, sorted(lost)))
            )
            self._lost(lost)
        self._release([key for key in renewed if key not in self._held])

    def _without_work(self) -> Sequence[ExperimentKey]:
        with self._journal.read() as connection:
            return [key for key in self._table.without_work(connection) if key in self._held]

    def _claim(self) -> None:
        asked_at = self._monotonic()
        claimed = self._journal.write(
            lambda connection: self._table.claim(connection, owned=len(self._held))
        )
        if not claimed:
            return
        with self._changing:
            taken = {key: _Lease(epoch, asked_at + self._held_s) for key, epoch, _ in claimed}
            self._held = {**self._held, **taken}
        for key, _, has_rows in claimed:
            self._gained(key, has_rows)

    def _release(self, keys: Collection[ExperimentKey]) -> None:
        if not keys:
            return
        with self._changing:
            released = [key for key in keys if key in self._held]
            self._held = {key: held for key, held in self._held.items() if key not in keys}
        if released:
            self._lost(released)
        self._journal.write(lambda connection: self._table.give_back(connection, keys))

    # Another thread.

    def _watch(self) -> None:
        while not self._stopping.wait(self._lease_s / 30):
            self.let_go()

    def let_go(self) -> None:
        """Give up the leases that were not renewed in time."""
        now = self._monotonic()
        with self._changing:
            ended = [key for key, lease in self._held.items() if now >= lease.ends_at]
            if ended:
                self._held = {k: lease for k, lease in self._held.items() if k not in ended}
        if ended:
            _log.warning("Leases were not renewed in time; %d runs are given up", len(ended))
            self._lost(ended)

    # The third.

    def _end_silent(self) -> None:
        """End transactions whose bridge is silent, so that they do not delay a renewal."""
        silence_s = max(_MIN_SILENCE_S, self._lease_s / _RENEWALS)
        while not self._stopping.wait(silence_s / 2):
            with contextlib.suppress(JournalError), self._journal.read() as connection:
                if ended := self._table.end_silent(connection, silence_s):
                    _log.warning("Transactions of silent bridges were ended: %d", ended)


_NOW_NS: Final = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000000 AS BIGINT)"

FREE: Final = f"expires_ns < {_NOW_NS}"
"""Condition on ``runs``: no bridge works on it."""

_HAS_WORK: Final = (
    f"(is_open = 1 OR archive_bytes > 0 OR {WAITS}"
    " OR {has_rows} OR row_bytes > 0 AND {confirmed})"
)
"""Batches that wait, open steps, rows to write or to remove, or values to archive."""

_WITHOUT_WORK: Final = "SELECT experiment, trial FROM runs WHERE owner = ? AND NOT {has_work}"

_CLAIM: Final = f"""
UPDATE runs SET owner = ?, epoch = epoch + 1, expires_ns = {_NOW_NS} + ? WHERE run_id IN (
  SELECT run_id FROM runs WHERE expires_ns < {_NOW_NS} AND {{has_work}}
  ORDER BY number LIMIT ? FOR NO KEY UPDATE SKIP LOCKED
) RETURNING experiment, trial, epoch, {{has_rows}}
"""  # noqa: S608  # ours

_COUNTS: Final = f"""
SELECT (SELECT COUNT(*) FROM bridges WHERE expires_ns >= {_NOW_NS}),
       (SELECT COUNT(*) FROM runs WHERE expires_ns >= {_NOW_NS}),
       (SELECT COUNT(*) FROM runs WHERE expires_ns < {_NOW_NS} AND {{has_work}})
"""  # noqa: S608  # ours

# The server's own idle_in_transaction_session_timeout does not look at a transaction whose
# statements come as a pipeline.
_END_SILENT: Final = f"""
SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user
  AND application_name = '{APPLICATION}' AND wait_event = 'ClientRead'
  AND xact_start IS NOT NULL AND state_change < clock_timestamp() - ? * INTERVAL '1 millisecond'
"""  # noqa: S608  # ours


class LeaseTable:
    """Leases of one owner in the database. The caller runs each method in its transaction.

    Args:
        owner: Name of the bridge, which no other bridge has or ever had.
        trackers: Names of the trackers whose deliveries count as work.
    """

    def __init__(self, owner: str, trackers: Sequence[str], *, lease_ns: int) -> None:
        self._owner = owner
        self._trackers = tuple(trackers)
        n = len(trackers)
        # Rows that a tracker's run has not been closed with.
        has_rows = lacks_rows(n)
        has_work = _HAS_WORK.format(has_rows=has_rows, confirmed=all_confirmed(n))
        self._without_work = _WITHOUT_WORK.format(has_work=has_work)
        self._claim = _CLAIM.format(has_work=has_work, has_rows=has_rows)
        self._counts = _COUNTS.format(has_work=has_work)
        self._lease_ns = lease_ns

    def renew(self, connection: Connection) -> Mapping[ExperimentKey, int]:
        """Renew every lease of the owner, and the owner's own sign of life.

        Returns:
            The epoch of each of the owner's runs.
        """
        connection.execute(
            f"INSERT INTO bridges (owner, expires_ns) VALUES (?, {_NOW_NS} + ?)"  # noqa: S608
            " ON CONFLICT (owner) DO UPDATE SET expires_ns = excluded.expires_ns",
            (self._owner, self._lease_ns),
        )
        connection.execute(f"DELETE FROM bridges WHERE expires_ns < {_NOW_NS}")  # noqa: S608
        renewed = connection.execute(
            # Locked in the order in which commits lock them, so that no two wait for each other.
            f"UPDATE runs SET expires_ns = {_NOW_NS} + ? WHERE run_id IN"  # noqa: S608
            " (SELECT run_id FROM runs WHERE owner = ?"
            ' ORDER BY experiment COLLATE "C", trial COLLATE "C" FOR NO KEY UPDATE)'
            " RETURNING experiment, trial, epoch",
            (self._lease_ns, self._owner),
        ).fetchall()
        return {ExperimentKey(experiment, trial): epoch for experiment, trial, epoch in renewed}

    def without_work(self, connection: Connection) -> Sequence[ExperimentKey]:
        found = connection.execute(
            self._without_work, (self._owner, *self._trackers, *self._trackers)
        ).fetchall()
        return [ExperimentKey(experiment, trial) for experiment, trial in found]

    def claim(
        self, connection: Connection, *, owned: int
    ) -> Sequence[tuple[ExperimentKey, int, bool]]:
        """Claim runs with work, up to an even share of all that are owned or free.

        Returns:
            Each claimed run, its epoch, and whether a tracker lacks rows of the run.
        """
        bridges, held, free = connection.execute(
            self._counts, (*self._trackers, *self._trackers)
        ).fetchone()
        share = -(-(held + free) // max(1, bridges))
        limit = min(free, share - owned)
        if limit <= 0:
            return []
        names = self._trackers
        claimed = connection.execute(
            self._claim, (self._owner, self._lease_ns, *names, *names, limit, *names)
        ).fetchall()
        return [(ExperimentKey(*key), epoch, has_rows) for *key, epoch, has_rows in claimed]

    def give_back(self, connection: Connection, keys: Collection[ExperimentKey]) -> None:
        for key in sorted(keys):
            connection.execute(
                "UPDATE runs SET owner = '', expires_ns = 0"
                " WHERE experiment = ? AND trial = ? AND owner = ?",
                (key.experiment, key.trial, self._owner),
            )

    def give_all_back(self, connection: Connection) -> int:
        """Release every run of the owner, and forget the owner.

        Returns how many other owners live.
        """
        connection.execute(
            "UPDATE runs SET owner = '', expires_ns = 0 WHERE owner = ?", (self._owner,)
        )
        connection.execute("DELETE FROM bridges WHERE owner = ?", (self._owner,))
        (others,) = connection.execute(
            f"SELECT COUNT(*) FROM bridges WHERE expires_ns >= {_NOW_NS}"  # noqa: S608
        ).fetchone()
        return int(others)

    def end_silent(self, connection: Connection, silence_s: float) -> int:
        """End the transactions of bridges that were silent for ``silence_s``. Returns how many."""
        (ended,) = connection.execute(_END_SILENT, (int(silence_s * 1000),)).fetchone()
        return int(ended)
