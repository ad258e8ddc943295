"""The last failures of workers of a run, each with its cause and its recovery."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from msgspec import field

from otel_rl.bridge.journal.state import Int64, Stored
from otel_rl.bridge.rows.series.streams import WorkerState
from otel_rl.records import Departure, WorkerFailure

__all__ = ["FailureLog", "failure_of", "last_error"]

_NS_PER_S: Final = 1_000_000_000

_MAX_FAILURES: Final = 32
"""Failures of a run that are kept with their causes; all are counted."""


class FailureLog(Stored):
    """Last failures of a run, in order, each with the last sign of its worker.

    That time identifies the vacancy that the failure has left.
    """

    _failures: list[tuple[Int64, WorkerFailure]] = field(default_factory=list)

    def add(self, since_ns: int, failure: WorkerFailure) -> None:
        """Add a failure of a worker whose last sign was at ``since_ns``."""
        self._failures.append((since_ns, failure))
        del self._failures[:-_MAX_FAILURES]

    def made_good(
        self,
        role: str,
        since_ns: int,
        now_ns: int,
        *,
        by_same: bool = False,
        gone_ns: int | None = None,
    ) -> None:
        """Record that the place of a failed worker is taken, by another or the same process.

        Args:
            role: Of the worker.
            since_ns: Its last sign before the failure.
            now_ns: When its place was taken.
            by_same: Whether the same process has taken it.
            gone_ns: Last progress of the process that has taken it, if that was called failed: if
                the failure has this time, it is the same one, whatever it sent since.
        """
        for place, (failed_ns, failure) in enumerate(self._failures):
            is_it = failed_ns == since_ns and failure.worker.rpartition("/")[0] == role
            if is_it and failure.recovery_s is None:
                recovery_s = (now_ns - since_ns) / _NS_PER_S
                self._failures[place] = (
                    failed_ns,
                    replace(
                        failure,
                        recovery_s=recovery_s,
                        is_same=by_same or failure.time_ns == gone_ns,
                    ),
                )
                return

    def withdraw(self, worker: str) -> None:
        """Remove the lasting failure of a worker, ``<role>/<index>``, that reports again."""
        self._failures = [
            (since_ns, failure)
            for since_ns, failure in self._failures
            if failure.worker != worker or failure.recovery_s is not None
        ]

    def at_steps(self, step_at: Callable[[int], int | None]) -> Sequence[WorkerFailure]:
        """Return the failures, with the steps in progress where workers reported none."""
        for place, (since_ns, failure) in enumerate(self._failures):
            if failure.step is None and (step := step_at(failure.time_ns)) is not None:
                self._failures[place] = since_ns, replace(failure, step=step)
        return tuple(failure for _, failure in self._failures)


def failure_of(departure: Departure, state: WorkerState) -> WorkerFailure:
    """Return the failure that an exit report or an error in a step reports."""
    is_in_step = departure.step is not None
    return WorkerFailure(
        f"{state.role}/{state.label}",
        departure.time_ns,
        departure.error,
        departure.message,
        departure.step if is_in_step else state.newest_step,
        is_in_step,
    )


def last_error(state: WorkerState) -> WorkerFailure | None:
    """Return the error that has left the worker's last step; None if it has made another since."""
    error = state.error
    if error is None or error.step is None:
        return None
    goes_on = state.newest_step is not None and state.newest_step > error.step
    return None if goes_on else error
