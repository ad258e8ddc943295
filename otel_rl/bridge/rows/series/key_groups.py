"""Tracker keys of one experiment: each group of reduced values has a key of its own."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from otel_rl.bridge.keys import OVERFLOW, tracker_key, variant_key, worker_key
from otel_rl.bridge.rows.reduce import OVER_RANKS
from otel_rl.bridge.rows.series.streams import Group, WorkerState
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.semconv import names
from otel_rl.semconv.spec import Reduction

_Attributes = tuple[tuple[str, str], ...]

_ANNOTATION = re.compile(r"\{[^}]*\}")
_NOT_IN_KEY = re.compile(r"[^A-Za-z0-9_.-]+")

_UNSPECIFIC = ("", "1")

# Attributes of groups without role, which name one GPU or host.
_DEVICES = frozenset({"hw.id", "host.name"})

# Common spellings of UCUM units.
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
    """Identity of a group, and so of a key of the run.

    Attributes:
        role: Role of the workers; empty for metrics of all roles.
        name: Name of the metric, with its suffix.
        attributes: Attributes without the step.
        unit: Unit of the values; empty for the metric's first unit, and for no unit.
        extra: Suffixes of further optional values: a level, a counter and a histogram of one name
            have no common value.
    """

    role: str
    name: str
    attributes: _Attributes
    reduction: Reduction
    unit: str = ""
    extra: tuple[str, ...] = ()


class UnitChange(NamedTuple):
    """A metric's second unit, which gets a second key.

    Attributes:
        key: Key of the values in the first unit.
        other_key: Key of the values in the second unit.
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


class GroupTable:
    """Finds the group of a metric, and creates new groups. A group is never forgotten.

    Args:
        groups: Groups from the journal, in the order of their numbers.
        own_keys: Keys of single workers.
        unit_changes: See ``unannounced``.
        overflowed: Numbers of overflow groups, see ``unannounced``.
    """

    def __init__(
        self,
        groups: Iterable[tuple[GroupIdentity, Group]] = (),
        own_keys: set[str] | None = None,
        unit_changes: Sequence[UnitChange] = (),
        overflowed: Sequence[int] = (),
    ) -> None:
        self.groups: list[Group] = []
        self._groups: dict[GroupIdentity, Group] = {}
        self._keys: dict[str, Group] = {}
        # Every key of a row that some group writes.
        self._written: set[str] = set()
        self._own_keys: set[str] = own_keys or set()
        # By each name that a program has logged: the role that did so first.
        self._roles: dict[str, str] = {}
        # Keys of each metric of a role or device, and identities that those beyond a bound share.
        self._sizes: Counter[tuple[str, str, _Attributes]] = Counter()
        self._folds: set[GroupIdentity] = set()
        self._unit_changes = [*unit_changes]
        for identity, group in groups:
            self._keep(identity, group)
        self._overflowed = [self.groups[number] for number in overflowed]

    def identify(
        self,
        role: str,
        name: str,
        attributes: _Attributes,
        reduction: Reduction,
        unit: str,
        *,
        most: int,
        device: _Attributes = (),
        extra: tuple[str, ...] = (),
    ) -> GroupIdentity:
        """Return the identity of values in ``unit``, which may be empty.

        Seconds and milliseconds have no common mean, so the first unit has the key, and another
        unit gets an identity of its own. No unit means the first one. If a metric of a role, or of
        a ``device``, has ``most`` keys already, all further attributes share one identity: that of
        the attributes for which an SDK has no room.
        """
        # A step that is not a number is left among the attributes.
        attributes = tuple(pair for pair in attributes if pair[0] != names.RL_LOOP_ITERATION)
        own = GroupIdentity(role, name, (*attributes, *device), reduction, extra=extra)
        identity = self._in_unit(own, unit)
        is_full = attributes and self._sizes[role, name, device] >= most
        if is_full and identity not in self._groups:
            of_others = own._replace(attributes=(OVERFLOW, *device))
            identity = self._in_unit(of_others, unit)
            self._folds.add(identity)
        return identity

    def _in_unit(self, identity: GroupIdentity, unit: str) -> GroupIdentity:
        """Return the identity, or a separate one for values in another unit than the first."""
        unit = normal_unit(unit)
        group = self._groups.get(identity)
        known = _registered_unit(identity.name) or (group.unit if group is not None else "")
        return identity._replace(unit=unit) if _differ(unit, known) else identity

    def take_unit_changes(self) -> Sequence[UnitChange]:
        changes, self._unit_changes = self._unit_changes, []
        return changes

    def take_overflowed(self) -> Sequence[Group]:
        """Return new overflow groups: the first one that an SDK reports, and those made here."""
        groups, self._overflowed = self._overflowed, []
        return groups

    def has_room_for(self, identity: GroupIdentity, settings: AlignSettings) -> bool:
        return len(self.groups) < settings.max_keys or identity in self._groups

    def group(
        self,
        identity: GroupIdentity,
        statistics: tuple[str, ...] = (),
        *,
        suffix: str = "",
        key: str = "",
        unit: str = "",
    ) -> Group:
        """Return the group of an identity; a new group gets ``key``, or else an unused key.

        Args:
            identity: See ``identify``.
            statistics: Further statistics, as suffixes of the key.
            suffix: End of the identity's name that is not part of the metric's name.
            key: Key of a new group; by default it is made from the identity.
        """
        group = self._groups.get(identity)
        if group is None:
            role, name, attributes, reduction, other_unit, extra = identity
            name = name.removesuffix(suffix)
            first_key = key = key or tracker_key(role, name, attributes) + suffix
            if other_unit:
                key = f"{key}/{_in_key(other_unit)}"
            key = self._free_key(key, identity, (*statistics, *extra))
            number = len(self.groups)
            group = Group(number, key, role, name, attributes, reduction, statistics, extra)
            if OVERFLOW in attributes and not self._is_told(identity):
                self._overflowed.append(group)
            self._keep(identity, group)
            if other_unit:
                first = self._groups.get(identity._replace(unit=""))
                first_unit = _registered_unit(name)
                if first is not None:
                    first_key, first_unit = first.own_name or first.key, first_unit or first.unit
                self._unit_changes.append(UnitChange(first_key, first_unit, key, other_unit))
        if group.unit in _UNSPECIFIC:
            group.unit = normal_unit(unit) or group.unit
        return group

    def name_as_written(self, group: Group, own_name: str, scale: float) -> None:
        """Give a new group the metric's name in the program, unless another role has that name.

        If a role logs a name that another role has, all keys of the later role start with the role.
        """
        if own_name:
            group.own_name, group.own_scale = own_name, scale
            if self._roles.setdefault(_written_name(group), group.role) != group.role:
                group.own_name, group.own_scale = "", 1.0

    def own(self, worker: WorkerState, group: Group, settings: AlignSettings) -> Group | None:
        """Return one worker's own key in a group; None if the group has as many as allowed."""
        key = worker_key(worker.role, worker.label, group.key)
        if key not in self._own_keys and len(self._own_keys) >= settings.max_worker_series:
            return None
        self._own_keys.add(key)
        identity = GroupIdentity(
            key, group.name, group.attributes, group.reduction, extra=group.extra
        )
        own = self._groups.get(identity)
        if own is None:
            statistics = tuple(one.removeprefix(OVER_RANKS) for one in group.statistics)
            own = Group(
                len(self.groups),
                self._free_key(key, identity, (*statistics, *group.extra)),
                group.role,
                group.name,
                group.attributes,
                group.reduction,
                statistics,
                group.extra,
                own=True,
                unit=group.unit,
            )
            self._keep(identity, own)
        return own

    def find(self, key: str) -> tuple[Group, str] | None:
        """Return the group that writes a row's key, and the suffix of the key's statistic."""
        group = self._keys.get(key)
        if group is not None:
            return group, ""
        path, _, suffix = key.rpartition("/")
        group = self._keys.get(path)
        return None if group is None else (group, suffix)

    @property
    def own_keys(self) -> set[str]:
        return self._own_keys

    def unannounced(self) -> tuple[Sequence[UnitChange], Sequence[Group]]:
        """Return what ``take_unit_changes`` and ``take_overflowed`` will return next."""
        return self._unit_changes, self._overflowed

    def stored(self) -> Sequence[tuple[GroupIdentity, Group]]:
        return [*self._groups.items()]

    def _is_told(self, identity: GroupIdentity) -> bool:
        """Return whether an overflow was announced: once for SDKs, and per metric and role."""
        is_fold, role = identity in self._folds, identity.role
        return any(
            OVERFLOW in of.attributes and (not is_fold or (not role and of.name == identity.name))
            for of in self.groups
        )

    def _keep(self, identity: GroupIdentity, group: Group) -> None:
        self.groups.append(group)
        if not group.own:
            self._sizes[group.role, group.name, device_of(group)] += 1
        if group.own_name and group.role:
            self._roles.setdefault(_written_name(group), group.role)
        self._groups[identity] = self._keys[group.key] = group
        self._written.update(_written(group.key, (*group.statistics, *group.extra)))

    def _free_key(self, key: str, identity: GroupIdentity, suffixes: Iterable[str]) -> str:
        """Return ``key``, or a variant if another metric writes this key or one of its statistics.

        ``a.b`` and ``a/b`` have one key, and so do the rate of the counter ``a`` and ``a.rate``.
        """
        candidates = [key]
        taken = self._keys.get(key)
        if taken is not None and (taken.role, taken.name, taken.attributes) == identity[:3]:
            candidates.append(f"{key}/{identity.reduction}")
        for candidate in candidates:
            if self._written.isdisjoint(_written(candidate, suffixes)):
                return candidate
        return variant_key(key, repr(tuple(identity)))


def _written_name(group: Group) -> str:
    """Return the name of a group's metric in its program, without the values of attributes."""
    return group.own_name if group.name in names.METRICS else group.name


def device_of(group: Group) -> _Attributes:
    """Return the attribute that names the one device of a group; empty for other groups."""
    return () if group.role else tuple(pair for pair in group.attributes if pair[0] in _DEVICES)


def normal_unit(unit: str) -> str:
    """Return one spelling for each UCUM unit; annotations only name the counted things."""
    unit = _ANNOTATION.sub("", unit).strip()
    return _SPELLINGS.get(unit.lower(), unit)


def _registered_unit(name: str) -> str:
    spec = names.METRICS.get(name)
    return normal_unit(spec.unit) if spec is not None else ""


def _differ(unit: str, known: str) -> bool:
    """Return whether values of two units must not be mixed.

    Older SDKs give every instrument the unit "1", so "1" matches any unit, except per cent: 0.5 is
    50 %.
    """
    if unit == known or "" in (unit, known):
        return False
    return "1" not in (unit, known) or "%" in (unit, known)


def _in_key(unit: str) -> str:
    """Return a unit as one segment of a key: letters, digits and characters that W&B accepts."""
    words = unit.replace("%", "percent").replace("/", "_per_")
    return _NOT_IN_KEY.sub("_", words).strip("_") or "other"


def _written(key: str, suffixes: Iterable[str]) -> Iterator[str]:
    yield key
    yield from (f"{key}/{suffix}" for suffix in suffixes)
