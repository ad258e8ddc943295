"""The tracker keys of one experiment: what is reduced into which, under a key of its own each."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from otel_rl.bridge.align.series import Group, WorkerState
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.keys import OVERFLOW, tracker_key, variant_key, worker_key
from otel_rl.semconv import names
from otel_rl.semconv.spec import Reduction

__all__ = ["GroupIdentity", "GroupRecord", "GroupTable", "UnitChange", "normal_unit"]

_Attributes = tuple[tuple[str, str], ...]

_ANNOTATION = re.compile(r"\{[^}]*\}")
_NOT_IN_KEY = re.compile(r"[^A-Za-z0-9_.-]+")

_UNSPECIFIC = ("", "1")

# What people write for UCUM's own words.
_SPELLINGS = {
    "second": "s",
    "seconds": "s",
    "sec": "s",
    "secs": "s",
    "millisecond": "ms",
    "milliseconds": "ms",
    "msec": "ms",
    "microsecond": "us",
    "microseconds": "us",
    "nanosecond": "ns",
    "nanoseconds": "ns",
    "byte": "By",
    "bytes": "By",
    "b": "By",
    "percent": "%",
}


class GroupIdentity(NamedTuple):
    """Everything that a key of the run is known by.

    Attributes:
        role: Of the workers; empty for what is of all roles.
        name: Of the metric, with its suffix.
        attributes: Without the step.
        reduction: How values become one.
        unit: Empty for the first unit that the metric was reported in, and for no unit at all.
    """

    role: str
    name: str
    attributes: _Attributes
    reduction: Reduction
    unit: str = ""


class UnitChange(NamedTuple):
    """A metric was reported in a second unit, so it has a second key.

    Attributes:
        key: Of the first unit.
        unit: That unit.
        other_key: Of the second unit.
        other_unit: That unit.
    """

    key: str
    unit: str
    other_key: str
    other_unit: str

    def __str__(self) -> str:
        return (
            f"{self.key} is in {self.unit!r} and was reported in {self.other_unit!r}, too: those "
            f"values are {self.other_key}. Give the instrument one unit, or two names."
        )


GroupRecord = tuple[
    tuple[str, str, _Attributes, Reduction, str],
    tuple[str, str, str, _Attributes, Reduction, tuple[str, ...], tuple[str, ...], bool, str],
]
"""A group without its number and total, in the form that is quickest to pickle."""


class GroupTable:
    """Finds the group of a metric, and makes it when it is new. A group is never forgotten.

    Attributes:
        groups: In the order of their numbers.
    """

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._groups: dict[GroupIdentity, Group] = {}
        self._keys: dict[str, Group] = {}
        # Every key of a row that some group writes.
        self._written: set[str] = set()
        self._own_keys: set[str] = set()
        self._unit_changes: list[UnitChange] = []
        self._overflowed: list[Group] = []

    def identify(
        self, role: str, name: str, attributes: _Attributes, reduction: Reduction, unit: str
    ) -> GroupIdentity:
        """Return the identity of what is reported in ``unit``, which may be empty.

        Seconds and milliseconds have no mean, so the first unit has the key, and another one an
        identity of its own. Who gives no unit means the first one.
        """
        # A step that is no number stands among the attributes.
        attributes = tuple(pair for pair in attributes if pair[0] != names.RL_LOOP_ITERATION)
        identity = GroupIdentity(role, name, attributes, reduction)
        unit = normal_unit(unit)
        group = self._groups.get(identity)
        known = _registered_unit(name) or (group.unit if group is not None else "")
        return identity._replace(unit=unit) if _differ(unit, known) else identity

    def take_unit_changes(self) -> Sequence[UnitChange]:
        """Take out the units that were new beside another one since the last call."""
        changes, self._unit_changes = self._unit_changes, []
        return changes

    def take_overflowed(self) -> Sequence[Group]:
        """Take out, once in a run, the first group of what an SDK had no room for."""
        groups, self._overflowed = self._overflowed, []
        return groups

    def has_room_for(self, identity: GroupIdentity, settings: AlignSettings) -> bool:
        """Whether there is a group of this identity, or may be one more."""
        return len(self.groups) < settings.max_keys or identity in self._groups

    def group(
        self,
        identity: GroupIdentity,
        statistics: tuple[str, ...] = (),
        extra: tuple[str, ...] = (),
        *,
        suffix: str = "",
        key: str = "",
        unit: str = "",
    ) -> Group:
        """The group of these, under ``key`` if given, and one that no other group writes.

        Args:
            identity: See ``identify``.
            statistics: What else is written, as suffixes of the key.
            extra: What else may be written, as further suffixes.
            suffix: The end of the identity's name that is no part of the metric's.
            key: Default: made of the identity.
            unit: As reported.
        """
        group = self._groups.get(identity)
        if group is None:
            role, name, attributes, reduction, other_unit = identity
            name = name.removesuffix(suffix)
            first_key = key = key or tracker_key(role, name, attributes) + suffix
            if other_unit:
                key = f"{key}/{_in_key(other_unit)}"
            key = self._free_key(key, identity, (*statistics, *extra))
            number = len(self.groups)
            group = Group(number, key, role, name, attributes, reduction, statistics, extra)
            if OVERFLOW in attributes and not any(OVERFLOW in of.attributes for of in self.groups):
                self._overflowed.append(group)
            self._keep(identity, group)
            if other_unit:
                first = self._groups.get(identity._replace(unit=""))
                first_unit = _registered_unit(name)
                if first is not None:
                    first_key, first_unit = first.key, first_unit or first.unit
                self._unit_changes.append(UnitChange(first_key, first_unit, key, other_unit))
        if group.unit in _UNSPECIFIC:
            group.unit = normal_unit(unit) or group.unit
        return group

    def own(self, worker: WorkerState, group: Group, settings: AlignSettings) -> Group | None:
        """One worker's own key of what a group reduces; None if there are as many as may be."""
        key = worker_key(worker.role, worker.label, group.key)
        if key not in self._own_keys and len(self._own_keys) >= settings.max_worker_series:
            return None
        self._own_keys.add(key)
        identity = GroupIdentity(key, group.name, group.attributes, group.reduction)
        own = self._groups.get(identity)
        if own is None:
            own = Group(
                len(self.groups),
                self._free_key(key, identity, (*group.statistics, *group.extra)),
                group.role,
                group.name,
                group.attributes,
                group.reduction,
                group.statistics,
                group.extra,
                own=True,
                unit=group.unit,
            )
            self._keep(identity, own)
        return own

    def records(self) -> Sequence[GroupRecord]:
        """Everything but the totals, which change all the time."""
        return [
            (
                (*identity,),
                (
                    g.key,
                    g.role,
                    g.name,
                    g.attributes,
                    g.reduction,
                    g.statistics,
                    g.extra,
                    g.own,
                    g.unit,
                ),
            )
            for identity, g in self._groups.items()
        ]

    def own_keys(self) -> frozenset[str]:
        """The keys of single workers that were given out."""
        return frozenset(self._own_keys)

    @classmethod
    def from_records(
        cls, records: Iterable[GroupRecord], own_keys: Iterable[str], totals: dict[int, float]
    ) -> "GroupTable":
        """The opposite of ``records`` and ``own_keys``; ``totals`` are by the groups' numbers."""
        table = cls()
        for number, (identity, group) in enumerate(records):
            total = totals.get(number, 0)
            table._keep(GroupIdentity(*identity), Group(number, *group, total=total))
        table._own_keys.update(own_keys)
        return table

    def _keep(self, identity: GroupIdentity, group: Group) -> None:
        self.groups.append(group)
        self._groups[identity] = self._keys[group.key] = group
        self._written.update(_written(group.key, (*group.statistics, *group.extra)))

    def _free_key(self, key: str, identity: GroupIdentity, suffixes: Iterable[str]) -> str:
        """``key``, or a variant of it if another metric writes it or a statistic of it.

        ``a.b`` and ``a/b`` look alike, and so do the counter ``a`` with its rate and ``a.rate``.
        """
        candidates = [key]
        taken = self._keys.get(key)
        if taken is not None and (taken.role, taken.name, taken.attributes) == identity[:3]:
            candidates.append(f"{key}/{identity.reduction}")
        for candidate in candidates:
            if self._written.isdisjoint(_written(candidate, suffixes)):
                return candidate
        return variant_key(key, repr(tuple(identity)))


def normal_unit(unit: str) -> str:
    """One spelling for each unit of UCUM that instruments have: annotations say what is counted."""
    unit = _ANNOTATION.sub("", unit).strip()
    return _SPELLINGS.get(unit.lower(), unit)


def _registered_unit(name: str) -> str:
    """The unit that the registry gives a metric; empty if it gives none."""
    spec = names.METRICS.get(name)
    return normal_unit(spec.unit) if spec is not None else ""


def _differ(unit: str, known: str) -> bool:
    """Return whether values of the two units must not be mixed.

    Older SDKs give every instrument the unit "1", so it says no more than none. Beside per cent it
    does: 0.5 is 50 %.
    """
    if unit == known or "" in (unit, known):
        return False
    return "1" not in (unit, known) or "%" in (unit, known)


def _in_key(unit: str) -> str:
    """A unit as one segment of a key: letters, digits and what W&B takes."""
    words = unit.replace("%", "percent").replace("/", "_per_")
    return _NOT_IN_KEY.sub("_", words).strip("_") or "other"


def _written(key: str, suffixes: Iterable[str]) -> Iterator[str]:
    """The keys of a row that a group of this key writes."""
    yield key
    yield from (f"{key}/{suffix}" for suffix in suffixes)
