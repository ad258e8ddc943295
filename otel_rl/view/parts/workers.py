"""Data of the page *Workers*: times and measurements by worker and step, and each one's state."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple, TypeVar

from otel_rl.bridge.rows.series.streams import WorkerStanding
from otel_rl.bridge.rows.stored_run import read_standing
from otel_rl.view.found import Found
from otel_rl.view.run_data import Cells, RunData
from otel_rl.view.text import in_order, label

_ID_PREFIX: Final = "="
"""Begins the ids of measurements, which phases do not have."""

_MAX_COLUMNS: Final = 240
_MAX_ROWS: Final = 200
_MAX_DEVICES: Final = 16  # of a worker

_LOOKED_AT: Final = 512
"""Newest values of a key that decide its place in the list."""

_NOISE: Final = 0.01
"""Part of a key's usual value that counts as no deviation."""

_STANDINGS: Final = {
    WorkerStanding.NEW: "new",
    WorkerStanding.ALIVE: "alive",
    WorkerStanding.LEFT: "ended",
    WorkerStanding.FAILED: "failed",
    WorkerStanding.SILENT: "ended without report",
}


T = TypeVar("T")


def phases(data: RunData) -> list[dict[str, Any]]:
    """Return the phases of a run, the longest first."""
    return [
        {
            "id": f"{role}/{phase}",
            "role": label(role),
            "phase": label(phase),
            "waits": (role, phase) in data.waits,
        }
        for (role, phase), _ in sorted(
            data.phases.items(), key=lambda one: (one[0] in data.waits, -sum(one[1].seconds))
        )
    ]


def heatmap(data: RunData, phase: str) -> dict[str, Any] | None:
    """Return seconds of a phase by worker and step; None if there is no such phase.

    Steps that are too many for the picture share a column, with the longest of them. Of many
    workers those that took longest in any step are shown: of each step the history has the 32
    outstanding ones of a phase.

    Args:
        data: Of the run.
        phase: ``<role>/<phase>``.
    """
    role, _, name = phase.rpartition("/")
    cells = next(
        (of for key, of in data.phases.items() if phase == f"{key[0]}/{key[1]}"),
        data.phases.get((role, name)),
    )
    if cells is None or not cells.steps:
        return None
    rows: dict[int, dict[int, float]] = defaultdict(dict)
    span = _columns(cells)
    for worker, step, seconds in zip(cells.workers, cells.steps, cells.seconds, strict=True):
        rows[worker][step] = rows[worker].get(step, 0.0) + seconds
    drawn, picture = _picture(data, rows, span, lambda seconds: seconds)
    return {"phase": label(phase), **picture, "seconds": drawn}


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
        {"id": f"{_ID_PREFIX}{key}", "key": label(key), "unit": label(units.get(key, ""))}
        for _, key in found
    ]


def deviations(data: RunData, chosen: str) -> dict[str, Any] | None:
    """Return values of a key by worker and step, and their distances from the step's median.

    Steps that share a column show the value that is farthest from its median. Of many workers those
    that were farthest at any step are shown.

    Args:
        data: Of the run.
        chosen: Id of the measurement.

    Returns:
        None if no workers measured it.
    """
    key = chosen.removeprefix(_ID_PREFIX)
    cells = data.measured.get(key) if chosen.startswith(_ID_PREFIX) else None
    if cells is None:
        return None
    rows = _from_median(zip(cells.workers, cells.steps, cells.seconds, strict=True))
    drawn, picture = _picture(data, rows, _columns(cells), lambda cell: abs(cell.deviation))
    return {
        "key": label(key),
        **picture,
        "values": [[None if cell is None else cell.value for cell in row] for row in drawn],
        "deviations": [[None if cell is None else cell.deviation for cell in row] for row in drawn],
    }


def _columns(cells: Cells) -> range:
    """Return the steps, as the first one of each column."""
    begin, end = min(cells.steps), max(cells.steps) + 1
    return range(begin, end, max(1, -(-(end - begin) // _MAX_COLUMNS)))


def _picture(
    data: RunData, rows: Mapping[int, Mapping[int, T]], span: range, size: Callable[[T], float]
) -> tuple[list[list[T | None]], dict[str, Any]]:
    """Return the cells of the workers with the largest ones, and what stands beside them.

    Of the steps of a column the largest cell is shown.
    """
    names = {place: worker for worker, place in data.workers.items()}
    worst = sorted(rows, key=lambda worker: -max(map(size, rows[worker].values())))[:_MAX_ROWS]
    chosen = sorted((in_order(names[place]), place) for place in worst)
    drawn = []
    for _, place in chosen:
        row: list[T | None] = [None] * len(span)
        for step, cell in rows[place].items():
            column = (step - span.start) // span.step
            known = row[column]
            if known is None or size(cell) > size(known):
                row[column] = cell
        drawn.append(row)
    return drawn, {
        "workers": [label(names[place]) for _, place in chosen],
        "steps": [*span],
        "width": span.step,
        "left_out": len(rows) - len(chosen),
    }


def _from_median(cells: Iterable[tuple[int, int, float]]) -> Mapping[int, Mapping[int, _Cell]]:
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
    rows = _from_median(
        zip(cells.workers[newest], cells.steps[newest], cells.seconds[newest], strict=True)
    )
    far = [abs(median(cell.deviation for cell in row.values())) for row in rows.values()]
    usual = median(abs(value) for value in cells.seconds[newest])
    noise = median(far) + _NOISE * usual
    return max(far) / noise if noise else (math.inf if max(far) else 0.0)


def _standing(found: Found, standing: WorkerStanding) -> str:
    if found.run.is_interrupted and _is_there(standing):
        return "unknown"
    return _STANDINGS.get(standing, "")


def _devices(found: Found, data: RunData) -> Mapping[str, list[dict[str, Any]]]:
    """Return the GPUs of each worker, with the last share of the time that each was busy."""
    devices: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for prefix, device in found.run.description.devices.items():
        use = data.series.get(f"{prefix}/utilization")
        told = {
            "name": label(device.name),
            "model": label(device.model),
            "use": use.values[-1] if use and math.isfinite(use.values[-1]) else None,
        }
        for worker in () if device.is_host else device.workers:
            devices[worker].append(told)
    return devices


def _is_there(standing: int) -> bool:
    return standing in (WorkerStanding.NEW, WorkerStanding.ALIVE)


def standing(found: Found, data: RunData, now_ns: int) -> list[dict[str, Any]]:
    """Return the processes of a run, each with its place, its phase and the ages of both."""
    with found.open() as connection:
        known: Sequence[Any] = read_standing(connection, found.id).workers
    result = []
    devices = _devices(found, data)
    newest = {one.name: one.received_ns for one in known}
    for one in sorted(known, key=lambda one: (in_order(one.name), one.first_ns)):
        is_newest = one.received_ns == newest[one.name]
        last = data.last_phases.get(one.name) if is_newest else None
        result.append(
            {
                "worker": label(one.name),
                "standing": _standing(found, WorkerStanding(one.standing)),
                "host": label(data.places.get(one.name, ("", None))[0]),
                "pid": data.places.get(one.name, ("", None))[1],
                "devices": devices.get(one.name, [])[:_MAX_DEVICES],
                "heard_s": (now_ns - one.received_ns) / 1e9 if one.received_ns else None,
                "step": one.newest_step if last is None else last.step,
                "phase": "" if last is None else label(last.phase),
                "phase_s": None if last is None else (now_ns - last.time_ns) / 1e9,
                "in_phase": last is not None and not last.is_over and _is_there(one.standing),
            }
        )
    return result[:2_000]
