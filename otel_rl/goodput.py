"""Time of an allocation, divided into the four parts of goodput (ADR 23)."""

from collections.abc import Mapping
from math import fsum
from typing import Final, NamedTuple

_UNITS: Final = ((7_200.0, 3_600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))


class Spent(NamedTuple):
    """Worker seconds by part. The parts add up to the wall time of the allocation.

    Attributes:
        productive_s: Seconds of work whose result was kept.
        overhead_s: Seconds for weights, copies, checkpoints, loading and start-up.
        idle_s: Seconds of waiting, of being down, or without any report.
        wasted_s: Seconds of work whose result was thrown away, and the time that work took beyond
            the pace of the run's best window.
    """

    productive_s: float
    overhead_s: float
    idle_s: float
    wasted_s: float

    @property
    def wall_s(self) -> float:
        """Return the sum of all parts."""
        return fsum(self)

    @property
    def ratio(self) -> float | None:
        """Return the productive share; None before any time has passed."""
        return self.productive_s / self.wall_s if self.wall_s > 0 else None


def in_words(spent: Mapping[str, Spent]) -> str:
    """Return the goodput of a run as one line; empty if no goodput is known.

    Args:
        spent: Time of each role with work, and of the run, whose role is empty.
    """
    run = spent.get("")
    if run is None or run.ratio is None:
        return ""
    parts = ", ".join(
        f"{name.removesuffix('_s')} {duration(seconds)}" for name, seconds in run._asdict().items()
    )
    roles = ", ".join(
        f"{role} {of.ratio:.0%}" for role, of in spent.items() if role and of.ratio is not None
    )
    of_roles = f" of worker time ({roles})" if roles else " of worker time"
    return f"goodput {run.ratio:.0%}: {parts}{of_roles}"


def as_json(spent: Mapping[str, Spent]) -> Mapping[str, Mapping[str, float]]:
    """Return the seconds by role and part; the run's role is empty."""
    return {
        role: {name: round(seconds, 3) for name, seconds in of._asdict().items()}
        for role, of in spent.items()
    }


def duration(seconds: float) -> str:
    """Return a duration in words, in hours, minutes or seconds."""
    for at_least_s, unit_s, name in _UNITS:
        if seconds >= at_least_s:
            return f"{seconds / unit_s:.3g} {name}"
    return f"{seconds:.3g} s"
