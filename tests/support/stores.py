"""A journal of either kind for a test, and the same one again, as after a restart."""

from collections.abc import Callable, Sequence

from otel_rl.bridge.journal.interface import Journal
from otel_rl.records import ExperimentKey


class Store:
    """One place for a journal.

    Args:
        make: Opens what is there, or makes it, with a bound in bytes.
    """

    def __init__(self, make: Callable[[int], Journal]) -> None:
        self._make = make
        self._opened: list[Journal] = []

    def open(self, *, max_bytes: int = 1 << 30) -> Journal:
        """Open it once more. It is closed at the end of the test."""
        journal = self._make(max_bytes)
        self._opened.append(journal)
        return journal

    def close(self) -> None:
        """Close what was opened."""
        for journal in self._opened:
            journal.close()


def runs_of(journal: Journal) -> Sequence[ExperimentKey]:
    """Return every run of a journal, in the order in which they came up."""
    with journal.read() as connection:
        found = connection.execute("SELECT experiment, trial FROM runs ORDER BY number").fetchall()
    return [ExperimentKey(experiment, trial) for experiment, trial in found]
