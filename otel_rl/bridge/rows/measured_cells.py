"""Measurements of each worker in a step, as a record of the history has them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from otel_rl.bridge.rows.series.streams import Stream, WorkerState
from otel_rl.diagnose.history.records import ALL_RECORDED, MOST_EXTREME, WorkerFields

__all__ = ["MAX_KEYS", "MeasuredCells"]

MAX_KEYS: Final = 4_096
"""Tracker keys of one record."""

# Steps of one worker in one message that are recorded separately.
_MAX_STEPS: Final = 8

# Measurements between two records that are separated by step.
_MAX_CELLS: Final = 4_096

_Place = tuple[WorkerState, int | None]
_Fields = tuple[str, int | None, int, float, int]  # of ``WorkerFacts``


class MeasuredCells:
    """Measurements of each worker in a step, by tracker key: number, sum and odd values."""

    def __init__(self) -> None:
        self._cells: dict[str, dict[_Place, list[float]]] = {}
        self._n_cells = 0

    def __bool__(self) -> bool:
        return bool(self._cells)

    def add(
        self, stream: Stream, values: Sequence[float], steps: Sequence[int | None] = ()
    ) -> None:
        """Record measurements or counts of a worker."""
        of = self._cells.get(stream.group.key)
        if of is None:
            if len(self._cells) >= MAX_KEYS:
                return
            of = self._cells[stream.group.key] = {}
        worker, before = stream.worker, len(of)
        if steps and len(steps) <= _MAX_STEPS and self._n_cells < _MAX_CELLS:
            for value, step in zip(values, steps, strict=True):
                cell = of.get((worker, step))
                if cell is None:
                    cell = of[worker, step] = [0, 0.0, 0]
                if value - value == 0:  # finite
                    cell[0] += 1
                    cell[1] += value
                else:
                    cell[2] += 1
        else:  # too many to separate, or without a step
            place = worker, steps[-1] if steps else None
            cell = of.get(place)
            if cell is None:
                cell = of[place] = [0, 0.0, 0]
            _put(cell, values)
        self._n_cells += len(of) - before

    def add_export(
        self, keys: tuple[str, ...], worker: WorkerState, step: int | None, values: Sequence[float]
    ) -> None:
        """Record a measurement of each of a worker's keys in a step, or without a step."""
        place = worker, step
        for key, value in zip(keys, values, strict=True):
            of = self._cells.get(key)
            if of is None:
                if len(self._cells) >= MAX_KEYS:
                    continue
                of = self._cells[key] = {}
            cell = of.get(place)
            if cell is None:
                cell = of[place] = [0, 0.0, 0]
                self._n_cells += 1
            if value - value == 0:  # finite
                cell[0] += 1
                cell[1] += value
            else:
                cell[2] += 1

    def fields(self) -> WorkerFields:
        """Return the columns of one history record."""
        names = _Names()
        return WorkerFields({key: [*_of_cells(cells, names)] for key, cells in self._cells.items()})


class _Names(dict[WorkerState, str]):
    def __missing__(self, of: WorkerState) -> str:
        name = self[of] = f"{of.role}/{of.label}"
        return name


def _put(cell: list[float], values: Sequence[float]) -> None:
    total = sum(values)
    if math.isfinite(total):
        cell[0] += len(values)
        cell[1] += total
        return
    finite = [value for value in values if math.isfinite(value)]
    cell[0] += len(finite)
    cell[1] += sum(finite)
    cell[2] += len(values) - len(finite)


def _of_cells(cells: Mapping[_Place, Sequence[float]], names: _Names) -> Iterator[_Fields]:
    for (of, step), (count, total, oddities) in _recorded(cells):
        yield names[of], step, int(count), total, int(oddities)


def _recorded(
    cells: Mapping[_Place, Sequence[float]],
) -> Iterable[tuple[_Place, Sequence[float]]]:
    if len({step for _, step in cells}) == 1:  # nearly always
        return _outstanding([*cells.items()])
    of_step: dict[int | None, list[tuple[_Place, Sequence[float]]]] = {}
    for cell in cells.items():
        of_step.setdefault(cell[0][1], []).append(cell)
    return chain.from_iterable(map(_outstanding, of_step.values()))


def _outstanding(
    cells: list[tuple[_Place, Sequence[float]]],
) -> list[tuple[_Place, Sequence[float]]]:
    """Return the cells with the lowest and the highest means, where there are many.

    Before they are made into facts: of 512 workers with 40 keys, that is most of the work.
    """
    if len(cells) <= ALL_RECORDED:
        return cells
    cells.sort(key=_oddities_and_mean)
    return cells[: MOST_EXTREME // 2] + cells[-MOST_EXTREME // 2 :]


def _oddities_and_mean(cell: tuple[_Place, Sequence[float]]) -> tuple[float, float]:
    _, (count, total, oddities) = cell
    return oddities, total / (count or 1)
