"""Who makes the rows of a run, and writes them: one bridge at a time."""

from typing import Protocol

from otel_rl.records import ExperimentKey

__all__ = ["Owners", "SoleOwner"]


class Owners(Protocol):
    """What one bridge may do. Any thread may ask."""

    def epoch(self, key: ExperimentKey, /) -> int | None:
        """The number of this bridge's turn with the run; None while it may not touch the run.

        A run is owned by one turn at a time, and each has a larger number than the one before. What
        a turn writes is fenced by its number: it happens while the turn lasts, or not at all.
        """
        ...


class SoleOwner:
    """A bridge that shares its journal with no other: every run is its own, for ever."""

    def epoch(self, key: ExperimentKey, /) -> int:  # noqa: ARG002  # all alike
        """Always 0, the only turn."""
        return 0
