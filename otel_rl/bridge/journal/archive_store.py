"""Values in the journal that are not in a file of the archive yet.

The transaction that stores rows of a batch also adds their values, in parts. A file is decided
before it is written: its parts are marked with the file's number, and removed once the file is on
the disk. So a bridge that resumes, or takes over the run, writes the same file with the same values
again, if at all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_rl.bridge.journal.interface import (
    Connection,
    Journal,
    Ownership,
    SoleOwner,
    checksum,
    write_owned,
)
from otel_rl.bridge.journal.state import read_description
from otel_rl.records import Attempt, ExperimentKey
from otel_rl.run_id import run_id

_LATEST_NS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class UnarchivedRun:
    """A run with values that wait to be archived.

    Attributes:
        oldest_ns: Time at which the first waiting part was added.
    """

    key: ExperimentKey
    oldest_ns: int


class StoredPart(NamedTuple):
    """One waiting part of a run's values."""

    samples: int
    body: bytes | None


class ArchiveStore:
    """The waiting values of one journal. Any thread may call any method."""

    def __init__(self, journal: Journal, owners: Ownership | None = None) -> None:
        self._journal = journal
        self._owners = owners or SoleOwner()

    @property
    def identity(self) -> str:
        return self._journal.identity

    def size(self) -> int:
        """Return the bytes of values that wait, over all runs."""
        with self._journal.read() as connection:
            (size,) = connection.execute(
                "SELECT COALESCE(SUM(archive_bytes), 0) FROM runs"
            ).fetchone()
        return int(size)

    def waiting(self) -> Sequence[UnarchivedRun]:
        """Return the runs of this bridge with values that wait, oldest first."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial, (SELECT made_ns FROM archive AS a"
                " WHERE a.run_id = runs.run_id ORDER BY a.number LIMIT 1)"
                " FROM runs WHERE archive_bytes > 0"
            ).fetchall()
        runs = [
            UnarchivedRun(ExperimentKey(experiment, trial), int(oldest_ns))
            for experiment, trial, oldest_ns in found
            if oldest_ns is not None
        ]
        ours = [run for run in runs if self._owners.epoch(run.key) is not None]
        return sorted(ours, key=lambda run: run.oldest_ns)

    def attempts(self, key: ExperimentKey) -> Sequence[Attempt]:
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT body, crc FROM descriptions WHERE run_id = ?",
                (run_id(key.experiment, key.trial),),
            ).fetchone()
        return read_description(key, *found).attempts if found else ()

    def begin_file(
        self, key: ExperimentKey, max_bytes: int, made_through_ns: int = _LATEST_NS
    ) -> int | None:
        """Decide the next file of a run, or return the decided one.

        Args:
            max_bytes: Bytes of parts at which the file ends.
            made_through_ns: Parts that were added after this time wait for a later file.

        Returns:
            The file's number, unique in the journal; None if there is nothing to write.

        Raises:
            LeaseLost: The run belongs to another bridge.
            JournalError: The journal is unreachable or full.
        """
        run = run_id(key.experiment, key.trial)

        def begin(connection: Connection) -> int | None:
            (begun,) = connection.execute(
                "SELECT MIN(file) FROM archive WHERE run_id = ? AND file > 0", (run,)
            ).fetchone()
            if begun is not None:
                return int(begun)
            last, size = None, 0
            cursor = connection.execute(
                "SELECT number, bytes FROM archive WHERE run_id = ? AND made_ns <= ?"
                " ORDER BY number",
                (run, made_through_ns),
            )
            for number, length in cursor:
                last, size = int(number), size + int(length)
                if size >= max_bytes:
                    break
            cursor.close()
            if last is None:
                return None
            connection.execute(
                "UPDATE archive SET file = ? WHERE run_id = ? AND number <= ?", (last, run, last)
            )
            return last

        return write_owned(self._journal, self._owners, key, begin)

    def parts(self, key: ExperimentKey, file: int) -> Iterator[StoredPart]:
        """Yield the parts of a file, one in memory at a time."""
        run = run_id(key.experiment, key.trial)
        with self._journal.read() as connection:
            numbers = connection.execute(
                "SELECT number FROM archive WHERE run_id = ? AND file = ? ORDER BY number",
                (run, file),
            ).fetchall()
        for (number,) in numbers:
            with self._journal.read() as connection:
                found = connection.execute(
                    "SELECT samples, body, crc FROM archive WHERE number = ?", (number,)
                ).fetchone()
            if found is not None:
                samples, body, crc = found
                yield StoredPart(int(samples), body if checksum(body, run) == crc else None)

    def end_file(self, key: ExperimentKey, file: int) -> None:
        """Remove the parts of a file that is on the disk.

        Raises:
            LeaseLost: The run belongs to another bridge.
            JournalError: The journal is unreachable or full.
        """
        run = run_id(key.experiment, key.trial)

        def remove(connection: Connection) -> None:
            connection.execute("DELETE FROM archive WHERE run_id = ? AND file = ?", (run, file))

        write_owned(self._journal, self._owners, key, remove)
