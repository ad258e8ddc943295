"""A journal of either kind for a test, and the same one again, as after a restart."""

from collections.abc import Callable

from otel_rl.bridge.journal.interface import Journal

__all__ = ["Store"]


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
