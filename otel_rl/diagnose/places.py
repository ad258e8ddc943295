"""Adds where the workers of causes are: host, process, and place in the program."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from otel_rl.diagnose.result import Cause, Diagnosis, Kind

__all__ = ["Place", "with_places"]

_MOST_FRAMES: Final = 5

# Causes of a worker that does not go on: where it stands explains them.
_STANDING: Final = frozenset({Kind.STALL})


class Place(NamedTuple):
    """Place of a worker.

    Attributes:
        host: Its machine; None if it is unknown.
        pid: Its process id there; None if it is unknown.
        stack: Calls of a phase that takes too long, the innermost first; none if it has ended.
        collective: The collective that it waits in, in words; empty without one.
        step: The step of the stack; None without one.
    """

    host: str | None = None
    pid: int | None = None
    stack: Sequence[str] = ()
    collective: str = ""
    step: int | None = None


def with_places(report: Diagnosis, places: Mapping[str, Place]) -> Diagnosis:
    """Return the report with the places of its workers.

    Args:
        report: The diagnosis.
        places: By ``<role>/<index>``.
    """
    return replace(report, causes=[_placed(cause, places) for cause in report.causes])


def _placed(cause: Cause, places: Mapping[str, Place]) -> Cause:
    place = places.get(cause.worker or "")
    if place is None:
        return cause
    cause = replace(cause, host=place.host, pid=place.pid)
    if cause.kind not in _STANDING or not place.stack:
        return cause
    if place.step is not None and cause.since is not None and place.step < cause.since:
        return cause  # it has gone on since
    words = f"{cause.words}, at {place.stack[0]}"
    if place.collective:
        words += f"; {place.collective}"
    return replace(cause, words=words, stack=place.stack[:_MOST_FRAMES])
