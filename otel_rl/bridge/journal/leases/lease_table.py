"""Bridge leases in the database: who owns a run, in which turn, and until when.

The database's clock alone decides when a lease has ended. PostgreSQL only.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from otel_rl.bridge.journal.formats.delivered import all_confirmed, lacks_rows
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.schema import APPLICATION
from otel_rl.records import ExperimentKey

__all__ = ["FREE", "LeaseTable"]

_NOW_NS: Final = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000000 AS BIGINT)"

FREE: Final = f"expires_ns < {_NOW_NS}"
"""Condition on ``runs``: no bridge works on it."""

_HAS_WORK: Final = """(
  is_open = 1
  OR archive_bytes > 0
  OR EXISTS (SELECT 1 FROM waiting WHERE waiting.run_id = runs.run_id AND bytes <> 0)
  OR {has_rows}
  OR row_bytes > 0 AND {confirmed}
)"""
"""Batches that wait, open steps, rows to write or to remove, or values to archive."""

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
    """Leases of one owner. Each method is part of a transaction of the caller.

    Args:
        owner: Names the bridge, as no other is named, nor was.
        trackers: Whose deliveries count.
        lease_ns: How long a lease lasts.
    """

    def __init__(self, owner: str, trackers: Sequence[str], *, lease_ns: int) -> None:
        self._owner = owner
        self._trackers = tuple(trackers)
        n = len(trackers)
        # Rows that a tracker's run has not been closed with.
        has_rows = lacks_rows(n)
        has_work = _HAS_WORK.format(has_rows=has_rows, confirmed=all_confirmed(n))
        self._claim = _CLAIM.format(has_work=has_work, has_rows=has_rows)
        self._counts = _COUNTS.format(has_work=has_work)
        self._lease_ns = lease_ns

    def renew(self, connection: Connection) -> Mapping[ExperimentKey, int]:
        """Renew every lease of the owner, and its own life sign.

        Returns:
            The turn of each run that is its own.
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

    def claim(
        self, connection: Connection, *, owned: int
    ) -> Sequence[tuple[ExperimentKey, int, bool]]:
        """Claim runs with work, up to an even share of all that are owned or free.

        Args:
            connection: In a transaction.
            owned: Number of runs that the owner believes to have.

        Returns:
            Each run, its turn, and whether a tracker lacks rows of it.
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
        """Release runs, as far as they are the owner's."""
        for key in sorted(keys):
            connection.execute(
                "UPDATE runs SET owner = '', expires_ns = 0"
                " WHERE experiment = ? AND trial = ? AND owner = ?",
                (key.experiment, key.trial, self._owner),
            )

    def give_all_back(self, connection: Connection) -> int:
        """Release every run of the owner, and forget the owner. Returns the other owners alive."""
        connection.execute(
            "UPDATE runs SET owner = '', expires_ns = 0 WHERE owner = ?", (self._owner,)
        )
        connection.execute("DELETE FROM bridges WHERE owner = ?", (self._owner,))
        (others,) = connection.execute(
            f"SELECT COUNT(*) FROM bridges WHERE expires_ns >= {_NOW_NS}"  # noqa: S608
        ).fetchone()
        return int(others)

    def end_silent(self, connection: Connection, silence_s: float) -> int:
        """End transactions of bridges that the server has waited for so long. Returns how many."""
        (ended,) = connection.execute(_END_SILENT, (int(silence_s * 1000),)).fetchone()
        return int(ended)
