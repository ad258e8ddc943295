"""Two sides of runs, compared: measures with intervals, and what else differs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final, NamedTuple

from otel_rl.bridge.journal.places import names_there_are
from otel_rl.bridge.journal.reader import RunOverview
from otel_rl.diagnose.compare import (
    AXES,
    MEAN_TIME,
    Comparison,
    Limit,
    common_measures,
    compared,
    curve,
    measures,
)
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.errors import ConfigError
from otel_rl.view.parts.health import environment
from otel_rl.view.text import label, passage

_DRAWN: Final = 12
"""Measures whose curves are drawn."""

_POINTS: Final = 300
"""Of one curve, at most: each is the mean of as many values."""

_LONGEST: Final = 1_000


class Difference(NamedTuple):
    """What differs, and how it is on each side, in words."""

    name: str
    before: str
    after: str


class Side(NamedTuple):
    """One side.

    Attributes:
        name: As people call it.
        overviews: Of its runs, as the journals have them.
        histories: Of the runs, in the same order.
    """

    name: str
    overviews: Sequence[RunOverview]
    histories: Sequence[RunHistory]


class Sides(NamedTuple):
    """Two sides, compared.

    Attributes:
        before: The first one, A.
        after: The second one, B.
        axis: By which learning and curves are aligned, see ``compared``.
        found: Measures that all runs have.
        differences: What else differs.
    """

    before: Side
    after: Side
    axis: str
    found: Sequence[Comparison]
    differences: Sequence[Difference]

    @classmethod
    def of(cls, before: Side, after: Side, by: str, also: Sequence[str] = ()) -> "Sides":
        """Compare two sides.

        Args:
            before: The first one.
            after: The second one.
            by: ``step``, ``time``, or the name of a total.
            also: Names of further measures.

        Raises:
            ConfigError: Not every run has such a measure, or several are called so.
        """
        names = common_measures([*before.histories, *after.histories])
        axis = by if by in AXES else measure_named(by, names)
        keys = [measure_named(key, names) for key in also]
        found = compared(before.histories, after.histories, axis=axis, also=keys)
        return cls(before, after, axis, found, [*_differences(before, after)])

    def as_json(self, broken: Iterable[Limit] = ()) -> dict[str, Any]:
        """Return all of it but the curves."""
        return {
            "a": [label(str(run.key)) for run in self.before.overviews],
            "b": [label(str(run.key)) for run in self.after.overviews],
            "by": label(self.axis),
            "steps": [
                [len(one.known_steps) for one in side.histories]
                for side in (self.before, self.after)
            ],
            "measures": [_measure_as_json(one) for one in self.found],
            "differences": [
                {"name": label(name), "a": passage(old)[:_LONGEST], "b": passage(new)[:_LONGEST]}
                for name, old, new in self.differences
            ],
            "broken": [str(limit) for limit in broken],
        }

    def curves(self) -> dict[str, list[list[list[tuple[float, float]]]]]:
        """Return the points of the first measures along the axis, for each run of each side."""
        sides = (self.before, self.after)
        return {
            label(one.name): [
                [
                    _thinned(curve(measures(history)[one.name][1], history, self.axis))
                    for history in side.histories
                ]
                for side in sides
            ]
            for one in [one for one in self.found if one.name != MEAN_TIME][:_DRAWN]
        }


def measure_named(name: str, names: Sequence[str]) -> str:
    """Return the measure of a name, which may lack its role.

    Raises:
        ConfigError: Not every run has it, or several are called so.
    """
    found = [one for one in names if one == name] or [
        one for one in names if one.endswith(f"/{name}")
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{name}: several measures.", hint=f"Name one: {', '.join(found)}.")
    raise ConfigError(f"{name}: not every run has this measure.", hint=names_there_are(name, names))


def _measure_as_json(one: Comparison) -> Mapping[str, Any]:
    values = {**one._asdict(), "name": label(one.name), "is_sure": one.is_sure}
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in values.items()
    }


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    every = max(1, -(-len(points) // _POINTS))
    parts = (points[at : at + every] for at in range(0, len(points), every))
    return [
        (part[len(part) // 2][0], float(f"{sum(y for _, y in part) / len(part):.5g}"))
        for part in parts
    ]


def _differences(before: Side, after: Side) -> Iterator[Difference]:
    """Yield what else differs: its name, and both sides in words."""
    sides = [[environment(one.description) for one in side.overviews] for side in (before, after)]
    for name in dict.fromkeys(name for side in sides for one in side for name in one):
        values = [_together(one.get(name, "") for one in side) for side in sides]
        if values[0] != values[1]:
            yield Difference(name, *values)
    packages = [_packages(side) for side in (before, after)]
    for name in sorted({*packages[0], *packages[1]}):
        versions = [of.get(name, "") for of in packages]
        if versions[0] != versions[1]:
            yield Difference(f"package {name}", *versions)
    phases = [
        {str(place) for history in side.histories for place in history.spans}
        for side in (before, after)
    ]
    for phase in sorted(phases[0] ^ phases[1]):
        yield Difference(f"phase {phase}", *("there" if phase in of else "" for of in phases))
    causes = [_causes(side) for side in (before, after)]
    if causes[0] != causes[1]:
        yield Difference("diagnosis", *causes)


def _together(values: Iterator[str]) -> str:
    return " | ".join(dict.fromkeys(values))


def _packages(side: Side) -> Mapping[str, str]:
    found: dict[str, dict[str, None]] = {}
    for one in side.overviews:
        made = one.description.provenance
        for package in made.packages if made is not None else ():
            name, _, version = package.partition("==")
            found.setdefault(name, {})[version] = None
    return {name: " | ".join(versions) for name, versions in found.items()}


def _causes(side: Side) -> str:
    found = (
        f"{cause.kind} {cause.worker or cause.role or ''}".strip()
        for history in side.histories
        for cause in diagnose(history, passed=True).causes
    )
    return ", ".join(dict.fromkeys(found)) or "no cause"
