"""Ownership of runs: one bridge at a time makes the rows of a run and writes them."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from otel_rl.bridge.journal.interface import Connection, Journal
from otel_rl.errors import LeaseLost
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

__all__ = ["Ownership", "SoleOwner", "write_owned"]

_T = TypeVar("_T")


class Ownership(Protocol):
    """Runs that one bridge owns. Any thread may ask."""

    def epoch(self, key: ExperimentKey, /) -> int | None:
        """The number of this bridge's turn with the run; None while it may not touch the run.

        A run is owned by one turn at a time, and each has a larger number than the one before. What
        a turn writes is fenced by its number: it happens while the turn lasts, or not at all.
        """
        ...


class SoleOwner:
    """Ownership without sharing: every run is this bridge's own, always."""

    def epoch(self, key: ExperimentKey, /) -> int:  # noqa: ARG002  # all alike
        """Always 0, the only turn."""
        return 0


def write_owned(
    journal: Journal, owners: Ownership, key: ExperimentKey, function: Callable[[Connection], _T]
) -> _T:
    """Change something of a run in a transaction, if it is ours at that moment.

    Raises:
        LeaseLost: It is not. Nothing was written.
        JournalError: As of ``Journal.write``.
    """
    epoch = owners.epoch(key)
    if epoch is None:
        raise LeaseLost(f"{key} belongs to another bridge.")

    def fenced(connection: Connection) -> _T:
        if epoch:
            locked = connection.execute(
                "UPDATE runs SET epoch = epoch WHERE run_id = ? AND epoch = ? RETURNING number",
                (run_id(key.experiment, key.trial), epoch),
            ).fetchone()
            if locked is None:
                raise LeaseLost(f"{key} belongs to another bridge now.")
        return function(connection)

    return journal.write(fenced)
