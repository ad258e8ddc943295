"""Selects the values of each row that a tracker gets. ADR 16.

The run's catalogue defines each key. Every row is passed on with its number, even if none of its
values is selected: the tracker's rows are counted. The first row of an opening, and each row with
an unknown key, carries the meaning of the keys that are sent from there on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from otel_rl.bridge.keys import DEVICES, KeyNames, NamedKeys
from otel_rl.records import KeySpec, Row
from otel_rl.semconv.spec import Tier

_T = TypeVar("_T")

_Sent = Sequence[tuple[str, float]]
"""Names of a key in the tracker, each with the divisor of its values."""


class KeySelection:
    """Selects what a tracker gets of one run's rows. One thread uses it.

    Args:
        detail: Tiers of the keys that are sent.
        names: Which names of metrics are used: the framework's or the registry's.
        per_worker: Whether every series of a single worker is sent.
        keys: Returns the run's catalogue of keys, in order.
    """

    def __init__(
        self,
        detail: Tier,
        names: KeyNames,
        *,
        per_worker: bool,
        keys: Callable[[], Sequence[KeySpec]],
    ) -> None:
        self._detail = detail
        self._named = NamedKeys(names=names)
        self._per_worker = per_worker
        self._keys = keys
        self._is_all = detail is Tier.EVERYTHING and names is KeyNames.OTEL_RL
        self._sent: dict[str, _Sent] = {}
        self._devices: list[str] = []  # keys of GPUs and hosts

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
        """Read the catalogue, and return its new keys that are sent, by their names in the tracker.

        A key that the catalogue lacks was damaged on the disk; such a key is sent.
        """
        new: list[KeySpec] = []
        for spec in self._keys():
            if spec.key not in self._sent:
                named = self._named.add(spec)
                sent = tuple((one.key, one.own_scale) for one in named)
                self._is_all &= sent == ((spec.key, 1.0),)
                self._sent[spec.key] = sent if self._is_selected(spec) else ()
                self._note_device(spec.key)
                if self._sent[spec.key]:
                    new += named
        for row in rows:
            for key in (*row.values, *row.tables, *row.labels):
                if key not in self._sent:
                    self._sent[key] = ((key, 1.0),)
                    self._note_device(key)
        return new

    def _note_device(self, key: str) -> None:
        if key.startswith(DEVICES):
            self._devices.append(key)

    def _is_selected(self, spec: KeySpec) -> bool:
        return self._detail.includes(spec.tier) or (self._per_worker and bool(spec.worker))

    def _row(self, row: Row) -> Row:
        sent = self._sent
        values = {
            name: value if divisor == 1 else value / divisor
            for key, value in row.values.items()
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

    def _of(self, found: Mapping[str, _T]) -> Mapping[str, _T]:
        return {name: of for key, of in found.items() for name, _ in self._sent[key]}
