"""Data of the page *Workers*: time of a phase by worker and step, and each worker's state."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from otel_rl.bridge.rows.series.streams import WorkerStanding
from otel_rl.bridge.rows.stored_run import read_standing
from otel_rl.view.journals import Found
from otel_rl.view.run_data import Cells, RunData
from otel_rl.view.text import in_order, label

__all__ = ["heatmap", "phases", "standing"]

_MAX_COLUMNS: Final = 240
_MAX_ROWS: Final = 200
_MAX_DEVICES: Final = 16  # of a worker

_STANDINGS: Final = {
    WorkerStanding.NEW: "new",
    WorkerStanding.ALIVE: "alive",
    WorkerStanding.LEFT: "ended",
    WorkerStanding.FAILED: "failed",
    WorkerStanding.SILENT: "ended without report",
}


def phases(data: RunData) -> list[dict[str, Any]]:
    """Return the phases of a run, the longest first."""
    found = [
        {
            "id": f"{role}/{phase}",
            "role": label(role),
            "phase": label(phase),
            "waits": (role, phase) in data.waits,
            "seconds": sum(cells.seconds),
        }
        for (role, phase), cells in data.phases.items()
    ]
    found.sort(key=lambda one: (one["waits"], -float(one["seconds"])))
    return found


def heatmap(
    data: RunData, phase: str, *, first: int | None = None, last: int | None = None
) -> dict[str, Any] | None:
    """Return seconds of a phase by worker and step; None if there is no such phase.

    Steps that are too many for the picture share a column, with the longest of them. Of many
    workers those that took longest in any step are shown: of each step the history has the 32
    outstanding ones of a phase.

    Args:
        data: Of the run.
        phase: ``<role>/<phase>``.
        first: The first step; None for the first of all.
        last: The last step.
    """
    role, _, name = phase.rpartition("/")
    cells = next(
        (of for key, of in data.phases.items() if phase == f"{key[0]}/{key[1]}"),
        data.phases.get((role, name)),
    )
    if cells is None or not cells.steps:
        return None
    begin = max(min(cells.steps), first if first is not None else min(cells.steps))
    end = min(max(cells.steps), last if last is not None else max(cells.steps))
    width = max(1, -(-(end - begin + 1) // _MAX_COLUMNS))
    rows = _by_worker(cells, begin, end)
    worst = sorted(rows, key=lambda worker: -max(rows[worker].values()))[:_MAX_ROWS]
    by_place = {place: worker for worker, place in data.workers.items()}
    chosen = sorted((in_order(by_place[place]), place) for place in worst)
    columns = (end - begin) // width + 1
    values = []
    for _, place in chosen:
        row: list[float | None] = [None] * columns
        for step, seconds in rows[place].items():
            column = (step - begin) // width
            row[column] = max(seconds, row[column] or 0.0)
        values.append(row)
    return {
        "phase": label(phase),
        "workers": [label(by_place[place]) for _, place in chosen],
        "steps": [begin + width * column for column in range(columns)],
        "width": width,
        "seconds": values,
        "left_out": len(rows) - len(chosen),
    }


def _by_worker(cells: Cells, first: int, last: int) -> Mapping[int, Mapping[int, float]]:
    rows: dict[int, dict[int, float]] = defaultdict(dict)
    for worker, step, seconds in zip(cells.workers, cells.steps, cells.seconds, strict=True):
        if first <= step <= last:
            row = rows[worker]
            row[step] = row.get(step, 0.0) + seconds
    return rows


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
