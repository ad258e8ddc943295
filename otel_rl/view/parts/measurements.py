"""Data of the page *Workers*: how far each worker's measurements are from those of its peers."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, Final, NamedTuple

from otel_rl.view.run_data import Cells, RunData
from otel_rl.view.text import in_order, label

__all__ = ["ID_PREFIX", "deviations", "measurements"]

ID_PREFIX: Final = "="
"""Begins the ids of measurements, which phases do not have."""

_MAX_COLUMNS: Final = 240
_MAX_ROWS: Final = 200
_LOOKED_AT: Final = 512
"""Newest values of a key that decide its place in the list."""

_NOISE: Final = 0.01
"""Part of a key's usual value that counts as no deviation."""


class _Cell(NamedTuple):
    value: float
    deviation: float  # from the median of the workers at the step


def measurements(data: RunData, units: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the keys that several workers measured; that with the oddest worker first.

    Args:
        data: Of the run.
        units: Of keys, in words; those without one may be missing.
    """
    found = [
        (_oddity(cells), key) for key, cells in data.measured.items() if len({*cells.workers}) > 1
    ]
    found.sort(key=lambda one: (-one[0], one[1]))
    return [
        {"id": f"{ID_PREFIX}{key}", "key": label(key), "unit": label(units.get(key, ""))}
        for _, key in found
    ]


def deviations(
    data: RunData, chosen: str, *, first: int | None = None, last: int | None = None
) -> dict[str, Any] | None:
    """Return values of a key by worker and step, and their distances from the step's median.

    Steps that share a column show the value that is farthest from its median. Of many workers those
    that were farthest at any step are shown.

    Args:
        data: Of the run.
        chosen: Id of the measurement.
        first: The first step; None for the first of all.
        last: The last step.

    Returns:
        None if no workers measured it.
    """
    key = chosen.removeprefix(ID_PREFIX)
    cells = data.measured.get(key) if chosen.startswith(ID_PREFIX) else None
    if cells is None:
        return None
    begin = max(min(cells.steps), first if first is not None else min(cells.steps))
    end = min(max(cells.steps), last if last is not None else max(cells.steps))
    width = max(1, -(-(end - begin + 1) // _MAX_COLUMNS))
    rows = _by_worker(
        one for one in zip(cells.workers, cells.steps, cells.seconds, strict=True)
        if begin <= one[1] <= end
    )  # fmt: skip
    names = {place: worker for worker, place in data.workers.items()}
    oddest = sorted(rows, key=lambda worker: -max(abs(c.deviation) for c in rows[worker].values()))
    chosen_rows = sorted((in_order(names[place]), place) for place in oddest[:_MAX_ROWS])
    shown = [_row(rows[place], begin, width, end) for _, place in chosen_rows]
    return {
        "key": label(key),
        "workers": [label(names[place]) for _, place in chosen_rows],
        "steps": [*range(begin, end + 1, width)],
        "width": width,
        "values": [[None if cell is None else cell.value for cell in row] for row in shown],
        "deviations": [[None if cell is None else cell.deviation for cell in row] for row in shown],
        "left_out": len(rows) - len(chosen_rows),
    }


def _row(cells: Mapping[int, _Cell], begin: int, width: int, end: int) -> list[_Cell | None]:
    row: list[_Cell | None] = [None] * len(range(begin, end + 1, width))
    for step, cell in cells.items():
        column = (step - begin) // width
        known = row[column]
        if known is None or abs(cell.deviation) > abs(known.deviation):
            row[column] = cell
    return row


def _by_worker(cells: Iterable[tuple[int, int, float]]) -> Mapping[int, Mapping[int, _Cell]]:
    """Return the last value of each worker at each step, with its distance from the median."""
    steps: dict[int, dict[int, float]] = defaultdict(dict)
    for worker, step, value in cells:
        steps[step][worker] = value
    rows: dict[int, dict[int, _Cell]] = defaultdict(dict)
    for step, values in steps.items():
        usual = median(values.values())
        for worker, value in values.items():
            rows[worker][step] = _Cell(value, value - usual)
    return rows


def _oddity(cells: Cells) -> float:
    """Return how much farther than its peers the oddest worker stays from the median."""
    newest = slice(-_LOOKED_AT, None)
    rows = _by_worker(
        zip(cells.workers[newest], cells.steps[newest], cells.seconds[newest], strict=True)
    )
    far = [abs(median(cell.deviation for cell in row.values())) for row in rows.values()]
    usual = median(abs(value) for value in cells.seconds[newest])
    noise = median(far) + _NOISE * usual
    return max(far) / noise if noise else (math.inf if max(far) else 0.0)
