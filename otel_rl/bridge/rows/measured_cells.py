"""Measurements of each worker in a step, in the form of a history record."""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from otel_rl.bridge.rows.series.streams import Stream, WorkerState
from otel_rl.diagnose.history.records import ALL_RECORDED, MOST_EXTREME, WorkerFields

MAX_KEYS: Final = 4_096
"""Tracker keys of one record."""

_Cell = float | list[float]
"""Measurements of a worker: the value of one that is finite; else number and sum of the finite
ones, and number of the others."""
_Cells = dict[WorkerState, _Cell]
_Fields = tuple[str, int | None, int, float, int]  # of ``WorkerFacts``


class MeasuredCells:
    """Measurements of each worker in a step, by tracker key: number, sum and odd values."""

    def __init__(self) -> None:
        self._of_steps: dict[int | None, dict[str, _Cells]] = {}
        self._keys: dict[str, None] = {}  # in order

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(
        self, stream: Stream, values: Sequence[float], steps: Sequence[int | None] = ()
    ) -> None:
        """Record measurements or counts of one stream's worker, in the last of ``steps``."""
        step = steps[-1] if steps else None
        self.add_export((stream.group.key,) * len(values), stream.worker, step, values)

    def add_export(
        self, keys: Sequence[str], worker: WorkerState, step: int | None, values: Sequence[float]
    ) -> None:
        """Record one measurement for each of a worker's keys, in a step or without one."""
        of_keys = self._of_steps.get(step)
        if of_keys is None:
            of_keys = self._of_steps[step] = {}
        for key, value in zip(keys, values, strict=True):
            cells = of_keys.get(key)
            if cells is None:
                if key not in self._keys:
                    if len(self._keys) >= MAX_KEYS:
                        continue
                    self._keys[key] = None
                cells = of_keys[key] = {}
            if worker in cells:
                cells[worker] = _added(cells[worker], value)
            else:
                # A finite one is nearly all that there is.
                cells[worker] = 0.0 + value if value - value == 0 else [0, 0.0, 1]

    def fields(self) -> WorkerFields:
        names, found = _Names(), {key: list[_Fields]() for key in self._keys}
        for step, of_keys in self._of_steps.items():
            for key, cells in of_keys.items():
                found[key] += [_fields(names[of], step, cell) for of, cell in _outstanding(cells)]
        return WorkerFields(found)


class _Names(dict[WorkerState, str]):
    def __missing__(self, of: WorkerState) -> str:
        name = self[of] = f"{of.role}/{of.label}"
        return name


def _added(cell: _Cell, value: float) -> list[float]:
    added = cell if isinstance(cell, list) else [1, cell, 0]
    if value - value == 0:  # finite
        added[0] += 1
        added[1] += value
    else:
        added[2] += 1
    return added


def _fields(worker: str, step: int | None, cell: _Cell) -> _Fields:
    if not isinstance(cell, list):
        return worker, step, 1, cell, 0
    count, total, oddities = cell
    return worker, step, int(count), total, int(oddities)


def _outstanding(cells: _Cells) -> Iterable[tuple[WorkerState, _Cell]]:
    """Return only the cells with the lowest and the highest means, where there are many cells.

    The choice precedes making facts: for 512 workers with 40 keys, facts are most of the work.
    """
    if len(cells) <= ALL_RECORDED:
        return cells.items()
    has_many = list in {*map(type, cells.values())}  # nearly never
    ordered = sorted(cells.items(), key=_oddities_and_mean if has_many else itemgetter(1))
    return ordered[: MOST_EXTREME // 2] + ordered[-MOST_EXTREME // 2 :]


def _oddities_and_mean(cell: tuple[WorkerState, _Cell]) -> tuple[float, float]:
    made = cell[1]
    if not isinstance(made, list):
        return 0, made
    count, total, oddities = made
    return oddities, total / (count or 1)
