"""Selects the values of each row that a tracker gets, and their names. ADR 16.

The catalogue of the run defines each key. Every row is passed on, with its number, also if
nothing of it is left: the tracker's rows are counted. The first row of an opening, and each one
with an unknown key, carries the meaning of the keys that are sent from there on.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final, TypeVar

from otel_rl.bridge.counters import ValueFold
from otel_rl.bridge.delivery.selection.key_shapes import DEVICES, KeyShape, Sent
from otel_rl.bridge.delivery.selection.project_keys import ProjectKeys
from otel_rl.bridge.delivery.selection.value_budget import Kind, ValueBudget
from otel_rl.bridge.tracker_keys import MAX_KEY_BYTES
from otel_rl.records import KeySpec, Row
from otel_rl.semconv.spec import Tier

__all__ = ["KeyNames", "KeySelection"]

_T = TypeVar("_T")

_RESERVED: Final = frozenset({"step", "hours", "attempt", "policy_version"})
"""Keys of a tracker's axes."""

_RESERVED_PREFIXES: Final = ("_", "otel_rl/", *DEVICES, "diagnosis/", "step/attempt_")

_OTHER: Final = "/otel_rl"
"""Ends a key whose name a framework's metric has."""

_MAX_SHAPED: Final = 200_000
"""Keys of all known shapes of rows."""


class KeyNames(StrEnum):
    """Names of metrics that a framework logged through its adapter.

    Attributes:
        FRAMEWORK: The framework's own.
        OTEL_RL: The shared ones.
        BOTH: Each value under both.
    """

    FRAMEWORK = "framework"
    OTEL_RL = "otel_rl"
    BOTH = "both"


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
        self._names = names
        self._per_worker = per_worker
        self._keys = keys
        is_all = detail is Tier.EVERYTHING and names is KeyNames.OTEL_RL
        self._is_all = is_all and budget is None
        self._sent: dict[str, Sent] = {}
        self._kinds: dict[str, Kind] = {}
        self._taken: set[str] = set()
        # Keys for which there is no room in the run.
        self._crowded: set[str] = set()
        self._project = project or ProjectKeys()
        # By the keys of rows; what is known of a key never changes.
        self._shapes: dict[tuple[str, ...], KeyShape] = {}
        self._shaped = 0

    def rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows with the values that are sent."""
        known = self._sent.keys()
        new: Sequence[KeySpec] = ()
        if not all(
            known >= part.keys() for row in rows for part in (row.values, row.tables, row.labels)
        ):
            new = self._learn(rows)
        selected = rows if self._is_all else [self._row(row) for row in rows]
        return [replace(selected[0], new_keys=new), *selected[1:]] if new else selected

    def keys(self) -> Sequence[KeySpec]:
        """Return the meaning of the keys that are sent for the first time."""
        return self._learn(())

    def _learn(self, rows: Sequence[Row]) -> Sequence[KeySpec]:
        """Read the catalogue, and return the new keys that are sent, by the names in the tracker.

        A key that it lacks was damaged on the disk, and is sent.
        """
        new: list[KeySpec] = []
        for spec in self._keys():
            if spec.key not in self._sent:
                sent = tuple(self._named(spec))
                self._taken.update(name for name, _ in sent)
                self._sent[spec.key] = sent if self._is_selected(spec) else ()
                self._look_for_room(spec, [name for name, _ in self._sent[spec.key]])
                if spec.key not in self._crowded:
                    new += (
                        replace(spec, key=name, own_scale=divisor)
                        for name, divisor in self._sent[spec.key]
                    )
        for row in rows:
            for key in (*row.values, *row.tables, *row.labels):
                self._sent.setdefault(key, ((key, 1.0),))
        return new

    def _look_for_room(self, spec: KeySpec, names: Sequence[str]) -> None:
        if self._budget is None or not names:
            return
        kind = Kind.BASIC if spec.tier is Tier.BASIC else Kind.FURTHER
        self._kinds[spec.key] = kind = Kind.WORKER if spec.worker else kind
        if not self._project.take(names, is_needed=kind is Kind.BASIC):
            self._crowded.add(spec.key)

    def _is_selected(self, spec: KeySpec) -> bool:
        return self._detail.includes(spec.tier) or (self._per_worker and bool(spec.worker))

    def _named(self, spec: KeySpec) -> Iterator[tuple[str, float]]:
        """Yield the names of a key; those that were given before keep theirs."""
        own = spec.own_name
        has_own = self._names is not KeyNames.OTEL_RL and own and self._is_free(own)
        if has_own:
            yield own, spec.own_scale
        if not has_own or (self._names is KeyNames.BOTH and own != spec.key):
            yield (f"{spec.key}{_OTHER}" if spec.key in self._taken else spec.key), 1.0

    def _is_free(self, own: str) -> bool:
        return (
            own not in self._taken
            and own not in _RESERVED
            and not own.startswith(_RESERVED_PREFIXES)
            and len(own.encode(errors="replace")) <= MAX_KEY_BYTES
        )

    def _row(self, row: Row) -> Row:
        shape = self._shape(tuple(row.values))
        picked = shape.picked(self._last_kind(row.time_ns, shape))
        if picked.is_all and not (row.tables or row.labels or row.devices):
            return row
        values = [*row.values.values()]
        return replace(
            row,
            values=picked.values(values),
            tables=self._of(row.tables),
            labels=self._of(row.labels),
            devices=picked.devices(values),
        )

    def _shape(self, keys: tuple[str, ...]) -> KeyShape:
        """Return the shape of a row, which most others have, too."""
        found = self._shapes.get(keys)
        if found is None:
            self._shaped += len(keys)
            if self._shaped > _MAX_SHAPED:
                self._shapes.clear()
                self._shaped = len(keys)
            found = KeyShape(keys, self._sent, self._kinds, self._crowded)
            self._shapes[keys] = found
        return found

    def _last_kind(self, time_ns: int, shape: KeyShape) -> Kind:
        """Return the last kind of values for which there is room, and count those left out."""
        if self._budget is None:
            return Kind.WORKER
        last = self._budget.last_kind(time_ns, shape.wanted)
        if shape.crowded:
            self.folded[ValueFold.TOO_MANY_KEYS] += shape.crowded
        for kind in shape.folded(last):
            of = ValueFold.WORKER if kind is Kind.WORKER else ValueFold.FURTHER
            self.folded[of] += 1
        return last

    def _of(self, found: Mapping[str, _T]) -> Mapping[str, _T]:
        return {name: of for key, of in found.items() for name, _ in self._sent[key]}
