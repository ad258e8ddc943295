"""Describes the workers of a run in words: alive, missing, failed."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from otel_rl.records import Description, ExperimentStatus, RoleStanding, WorkerFailure

__all__ = ["failures", "in_words", "listed", "troubles"]

_MOST: Final = 8  # failures that are listed

_LAST_INTERVAL: Final = "up to an export interval (1 s unless set) of metrics"


def in_words(roles: Mapping[str, RoleStanding]) -> Iterator[str]:
    """Yield one phrase for each role with expected or failed workers."""
    for role, standing in sorted(roles.items()):
        if standing.expected or standing.failures or standing.silent:
            # Without a total: after the end of a run none is expected.
            there = [f"{standing.alive} of {standing.expected} alive"] * bool(standing.expected)
            yield f"{role}: {', '.join([*there, *_failed(standing), *_silent(standing)])}"


def troubles(
    roles: Mapping[str, RoleStanding], listed: Sequence[WorkerFailure] = ()
) -> Iterator[str]:
    """Yield one phrase for each role with a fault.

    Args:
        roles: By name.
        listed: Failures that are listed one by one.
    """
    named = Counter(map(_role, listed))
    lasting = Counter(_role(one) for one in listed if one.recovery_s is None)
    killed = Counter(_role(one) for one in listed if not one.is_reported)
    for role, standing in sorted(roles.items()):
        missing = standing.expected - standing.alive - lasting[role]
        # Without a total: workers that reported their end are no longer expected.
        words = [f"{missing} missing"] if missing > 0 else []
        if standing.failures > named[role]:
            words += _failed(standing)
        words += _silent(standing)
        if killed[role]:
            words.append(f"{_LAST_INTERVAL} is missing, of {killed[role]} without an exit report")
        if words:
            yield f"{role}: {', '.join(words)}"


def failures(description: Description) -> Iterator[str]:
    """Yield a line for the failure that ended the run, its message, and the last other ones."""
    crash = description.crash
    if crash is not None:
        yield crash.as_crash
        if crash.message:
            yield f"  {crash.message}"
    elif description.status is ExperimentStatus.CRASHED:
        yield "crashed"
    for one in listed(description):
        if one is not crash:
            yield str(one)


def listed(description: Description) -> Sequence[WorkerFailure]:
    """Return the failures that ``failures`` names."""
    last = [*description.failures[-_MOST:]]
    crash = description.crash
    return last if crash is None or crash in last else [crash, *last]


def _role(failure: WorkerFailure) -> str:
    return failure.worker.rpartition("/")[0]


def _failed(standing: RoleStanding) -> Iterator[str]:
    if standing.failures:
        yield f"{standing.failures} failed"
    if standing.recovery_s is not None:
        yield f"replaced after {standing.recovery_s:.1f} s"


def _silent(standing: RoleStanding) -> Iterator[str]:
    if standing.silent:
        yield (
            f"{standing.silent} ended without an exit report, or outlived the command; "
            f"{_LAST_INTERVAL}, or what followed the command, is missing"
        )
