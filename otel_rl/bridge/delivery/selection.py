"""Selects the values of each row that a tracker gets. ADR 16.

The catalogue of the run defines each key. Every row is passed on, with its number, also if
nothing of it is left: the tracker's rows are counted. The first row of an opening, and each one
with an unknown key, carries the meaning of the keys that are sent from there on.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Final, TypeVar

from otel_rl.bridge.counters import ValueFold
from otel_rl.bridge.key_names import DEVICES, KeyNames, NamedKeys
from otel_rl.records import KeySpec, Row
from otel_rl.semconv.spec import Tier

__all__ = ["MAX_KEYS", "KeySelection", "Kind", "ProjectKeys", "ValueBudget"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

MAX_KEYS: Final = 100_000
"""Keys of a project, by W&B's guidance."""

_MINUTE_NS: Final = 60_000_000_000

_Sent = Sequence[tuple[str, float]]
"""Names of a key in the tracker, each with the divisor of its values."""


class Kind(IntEnum):
    """Kind of a value, in the order in which they are given up, the last first."""

    BASIC = 0
    FURTHER = 1
    WORKER = 2


class ValueBudget:
    """Decides which kinds of values a row keeps, by the tracker's own guidance for a run. Pure.

    Above the budget the series of single workers are left out first, which are also in their role's
    values, then what is beyond the basic detail; never the basic values. Minutes are of event time,
    so a run that is written anew is not folded for being written fast.

    Args:
        per_minute: Values in a minute; 0 for no bound.
    """

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._minute = -1
        self._kept = 0
        # Values in this minute by kind, folded ones included.
        self._wanted = [0] * len(Kind)
        self._last = Kind.WORKER

    def last_kind(self, time_ns: int, wanted: list[int]) -> Kind:
        """Return the last kind of values that a row keeps.

        Once a kind is left out, it is until a minute in which it would have fitted is over: half a
        minute of a chart is misread.

        Args:
            time_ns: Event time of the row; one of an earlier minute counts as of the present one.
            wanted: Its number of values of each kind.
        """
        if not self._per_minute:
            return Kind.WORKER
        minute = time_ns // _MINUTE_NS
        if minute > self._minute:
            is_next = minute == self._minute + 1
            self._last = self._fitting() if is_next else Kind.WORKER
            self._minute, self._kept, self._wanted = minute, 0, [0] * len(Kind)
        for kind in Kind:
            self._wanted[kind] += wanted[kind]
        while self._last and self._kept + sum(wanted[: self._last + 1]) > self._per_minute:
            self._last = Kind(self._last - 1)
        self._kept += sum(wanted[: self._last + 1])
        return self._last

    def _fitting(self) -> Kind:
        for kind in reversed(Kind):
            if sum(self._wanted[: kind + 1]) <= self._per_minute:
                return kind
        return Kind.BASIC


class ProjectKeys:
    """Decides which keys of a bridge's runs find room in the tracker's project. Any thread.

    It knows the keys of the runs that were opened since the bridge's start.

    Args:
        most: Keys in the project.
    """

    def __init__(self, most: int = MAX_KEYS) -> None:
        self._most = most
        # _lock guards the two below.
        self._lock = threading.Lock()
        self._known: set[int] = set()  # hashes, which are smaller
        self._is_logged = False

    def take(self, names: Collection[str], *, is_needed: bool) -> bool:
        """Return whether there is room for a value's names, which are then the project's."""
        with self._lock:
            new = {hash(name) for name in names} - self._known
            if len(self._known) + len(new) <= self._most:
                self._known |= new
                return True
            is_logged, self._is_logged = self._is_logged, True
        if not is_logged:
            _log.warning(
                "The runs of this bridge have %d keys, the most that W&B advises for a project. "
                "New keys of the basic detail are still sent, others are left out and counted. "
                "Use one project for each kind of run.",
                self._most,
            )
        return is_needed


class KeySelection:
    """Rows of one run as its tracker gets them. One thread.

    Args:
        detail: Tiers that are sent.
        names: Of metrics of frameworks.
        per_worker: Whether every series of a single worker is sent.
        keys: Returns the catalogue of the run, in its order.
        budget: Of values; None for no bound, of keys neither.
        project: Keys of all runs; default: of this one.

    Attributes:
        folded: Number of values left out because of the budget, by the reason. Its owner may clear
            it.
    """

    def __init__(
        self,
        detail: Tier,
        names: KeyNames,
        *,
        per_worker: bool,
        keys: Callable[[], Sequence[KeySpec]],
        budget: ValueBudget | None = None,
        project: ProjectKeys | None = None,
    ) -> None:
        self.folded: Counter[ValueFold] = Counter()
        self._budget = budget
        self._detail = detail
        self._named = NamedKeys(names=names)
        self._per_worker = per_worker
        self._keys = keys
        is_all = detail is Tier.EVERYTHING and names is KeyNames.OTEL_RL
        self._is_all = is_all and budget is None
        self._sent: dict[str, _Sent] = {}
        self._kinds: dict[str, Kind] = {}
        self._devices: list[str] = []  # keys of GPUs and hosts
        # Keys for which there is no room in the run.
        self._crowded: set[str] = set()
        self._project = project or ProjectKeys()

    def rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        known = self._sent.keys()
        new: Sequence[KeySpec] = ()
        if not all(
            known >= part.keys() for row in rows for part in (row.values, row.tables, row.labels)
        ):
            new = self._learn(rows)
        selected = rows if self._is_all else [self._row(row) for row in rows]
        return [replace(selected[0], new_keys=new), *selected[1:]] if new else selected

    def keys(self) -> Sequence[KeySpec]:
        return self._learn(())

    def _learn(self, rows: Sequence[Row]) -> Sequence[KeySpec]:
        """Read the catalogue, and return the new keys that are sent, by the names in the tracker.

        A key that it lacks was damaged on the disk, and is sent.
        """
        new: list[KeySpec] = []
        for spec in self._keys():
            if spec.key not in self._sent:
                named = self._named.add(spec)
                sent = tuple((one.key, one.own_scale) for one in named)
                self._is_all &= sent == ((spec.key, 1.0),)
                self._sent[spec.key] = sent if self._is_selected(spec) else ()
                self._note_device(spec.key)
                self._look_for_room(spec, [name for name, _ in self._sent[spec.key]])
                if self._sent[spec.key] and spec.key not in self._crowded:
                    new += named
        for row in rows:
            for key in (*row.values, *row.tables, *row.labels):
                if key not in self._sent:
                    self._sent[key] = ((key, 1.0),)
                    self._kinds[key] = Kind.BASIC
                    self._note_device(key)
        return new

    def _note_device(self, key: str) -> None:
        if key.startswith(DEVICES):
            self._devices.append(key)

    def _look_for_room(self, spec: KeySpec, names: Sequence[str]) -> None:
        if self._budget is None or not names:
            return
        kind = Kind.BASIC if spec.tier is Tier.BASIC else Kind.FURTHER
        kind = Kind.WORKER if spec.worker else kind
        if self._project.take(names, is_needed=kind is Kind.BASIC):
            self._kinds[spec.key] = kind
        else:
            self._crowded.add(spec.key)

    def _is_selected(self, spec: KeySpec) -> bool:
        return self._detail.includes(spec.tier) or (self._per_worker and bool(spec.worker))

    def _row(self, row: Row) -> Row:
        sent, left_out = self._sent, self._left_out(row)
        values = {
            name: value if divisor == 1 else value / divisor
            for key, value in row.values.items()
            if key not in left_out
            for name, divisor in sent[key]
        }
        devices = {key: row.values[key] for key in self._devices if key in row.values}
        return replace(
            row,
            values=values,
            tables=self._of(row.tables),
            labels=self._of(row.labels),
            devices={key: value for key, value in devices.items() if key not in values},
        )

    def _left_out(self, row: Row) -> Collection[str]:
        """Return the selected keys of a row for which there is no room, and count them."""
        if self._budget is None:
            return ()
        crowded = row.values.keys() & self._crowded
        known = self._kinds
        kinds = {key: known[key] for key in row.values if key in known}
        wanted = [0] * len(Kind)
        for key, kind in kinds.items():
            wanted[kind] += len(self._sent[key])
        last = self._budget.last_kind(row.time_ns, wanted)
        folded = {key for key, kind in kinds.items() if kind > last}
        if crowded:
            self.folded[ValueFold.TOO_MANY_KEYS] += len(crowded)
        for key in folded:
            of = ValueFold.WORKER if kinds[key] is Kind.WORKER else ValueFold.FURTHER
            self.folded[of] += 1
        return crowded | folded

    def _of(self, found: Mapping[str, _T]) -> Mapping[str, _T]:
        return {name: of for key, of in found.items() for name, _ in self._sent[key]}
