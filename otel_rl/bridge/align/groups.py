"""The tracker keys of one experiment: what is reduced into which, under a key of its own each."""

from collections.abc import Iterable, Iterator, Sequence

from otel_rl.bridge.align.series import Group, WorkerState
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.keys import tracker_key, variant_key, worker_key
from otel_rl.semconv import names
from otel_rl.semconv.spec import Reduction

__all__ = ["GroupIdentity", "GroupRecord", "GroupTable"]

_Attributes = tuple[tuple[str, str], ...]

GroupIdentity = tuple[str, str, _Attributes, Reduction]
"""Role, metric name with suffix, attributes without the step, reduction."""

GroupRecord = tuple[
    GroupIdentity,
    tuple[str, str, str, _Attributes, Reduction, tuple[str, ...], tuple[str, ...], bool],
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

    def has_room_for(self, identity: GroupIdentity, settings: AlignSettings) -> bool:
        """Whether there is a group of this identity, or may be one more."""
        return len(self.groups) < settings.max_keys or identity in self._groups

    def group(
        self,
        role: str,
        name: str,
        attributes: _Attributes,
        reduction: Reduction,
        statistics: tuple[str, ...] = (),
        extra: tuple[str, ...] = (),
        *,
        suffix: str = "",
        key: str = "",
    ) -> Group:
        """The group of these, under ``key`` if given, and one that no other group writes."""
        attributes = tuple(pair for pair in attributes if pair[0] != names.RL_LOOP_ITERATION)
        identity = (role, name + suffix, attributes, reduction)
        group = self._groups.get(identity)
        if group is None:
            suffixes = (*statistics, *extra)
            key = key or tracker_key(role, name, attributes) + suffix
            key = self._free_key(key, identity, suffixes)
            number = len(self.groups)
            group = Group(number, key, role, name, attributes, reduction, statistics, extra)
            self._keep(identity, group)
        return group

    def own(self, worker: WorkerState, group: Group, settings: AlignSettings) -> Group | None:
        """One worker's own key of what a group reduces; None if there are as many as may be."""
        key = worker_key(worker.role, worker.label, group.key)
        if key not in self._own_keys and len(self._own_keys) >= settings.max_worker_series:
            return None
        self._own_keys.add(key)
        identity = (key, group.name, group.attributes, group.reduction)
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
            )
            self._keep(identity, own)
        return own

    def records(self) -> Sequence[GroupRecord]:
        """Everything but the totals, which change all the time."""
        return [
            (
                identity,
                (g.key, g.role, g.name, g.attributes, g.reduction, g.statistics, g.extra, g.own),
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
            table._keep(identity, Group(number, *group, total=totals.get(number, 0)))
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
            candidates.append(f"{key}/{identity[3]}")
        for candidate in candidates:
            if self._written.isdisjoint(_written(candidate, suffixes)):
                return candidate
        return variant_key(key, repr(identity))


def _written(key: str, suffixes: Iterable[str]) -> Iterator[str]:
    """The keys of a row that a group of this key writes."""
    yield key
    yield from (f"{key}/{suffix}" for suffix in suffixes)
