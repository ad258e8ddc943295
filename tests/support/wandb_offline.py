"""Reads the ``.wandb`` file of an offline run, because the SDK ships no reader for it.

The file is a LevelDB log: blocks of 32 KiB, a record split over blocks where need be, each part
behind a header of checksum, length and type. A torn tail ends the reading quietly.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as pb

_FILE_HEADER = 7
_BLOCK = 32 * 1024
_HEADER = struct.Struct("<IHB")
_FULL, _LAST = 1, 4


@dataclass
class OfflineRun:
    """What the file holds.

    Attributes:
        history: One dict per row, ``_step`` included.
        config: Name to value.
        metrics: Name or glob of each ``define_metric`` to the name of its step metric.
        hidden: Names that are defined as hidden.
        display_name: Of the run.
        group: Of the run.
        project: Of the run.
        entity: Of the run.
        run_id: Of the run.
        tags: Of the run.
        notes: Of the run.
        summary: Key to its last value.
        system: Key to its last value, of what the System panels show.
        console: Text of each call of ``write_logs``.
        alerts: Title and text of each.
        exit_code: None while the run is not finished.
    """

    history: list[dict[str, float]] = field(default_factory=list)
    config: dict[str, object] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    display_name: str = ""
    group: str = ""
    project: str = ""
    entity: str = ""
    run_id: str = ""
    tags: list[str] = field(default_factory=list)
    notes: str = ""
    summary: dict[str, object] = field(default_factory=dict)
    system: dict[str, float] = field(default_factory=dict)
    console: list[str] = field(default_factory=list)
    alerts: list[tuple[str, str]] = field(default_factory=list)
    exit_code: int | None = None


def run_directories(directory: Path, run_id: str) -> list[Path]:
    """The offline directories of a run under the directory that W&B was given, oldest first."""
    return sorted((directory / "wandb").glob(f"offline-run-*-{run_id}*"))


def read_offline_run(path: Path) -> OfflineRun:
    """Read a ``.wandb`` file, or the one in a run's directory."""
    if path.is_dir():
        (path,) = path.glob("*.wandb")
    run = OfflineRun()
    for record in _records(path.read_bytes()):
        match record.WhichOneof("record_type"):
            case "history":
                history = record.history
                run.history.append({**_items(history.item), "_step": history.step.num})
            case "run":
                run.run_id = record.run.run_id
                run.display_name = record.run.display_name
                run.group = record.run.run_group
                run.project, run.entity = record.run.project, record.run.entity
                run.tags = [*record.run.tags]
                run.notes = record.run.notes
                run.config.update(_items(record.run.config.update))
            case "config":
                run.config.update(_items(record.config.update))
            case "summary":
                run.summary.update(_items(record.summary.update))
            case "stats":
                run.system.update({i.key: json.loads(i.value_json) for i in record.stats.item})
            case "metric":
                _define(run, record.metric)
            case "output_logger":
                run.console.append(record.output_logger.line)
            case "alert":
                run.alerts.append((record.alert.title, record.alert.text))
            case "exit":
                run.exit_code = record.exit.exit_code
    return run


# Any, here and below: the generated module declares its messages at run time.
def _define(run: OfflineRun, metric: Any) -> None:
    run.metrics[metric.glob_name or metric.name] = metric.step_metric
    if metric.options.hidden:
        run.hidden.add(metric.name)


def _records(content: bytes) -> Iterator[Any]:
    assert content[:4] == b":W&B", "not a .wandb file"
    position, parts = _FILE_HEADER, b""
    while position + _HEADER.size <= len(content):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER.size:
            position += left
            continue
        _, length, kind = _HEADER.unpack_from(content, position)
        position += _HEADER.size
        if kind == 0 or position + length > len(content):
            return
        parts += content[position : position + length]
        position += length
        if kind in {_FULL, _LAST}:
            record = pb.Record()  # type: ignore[attr-defined]  # see above
            record.ParseFromString(parts)
            parts = b""
            yield record


def _items(items: Iterable[Any]) -> dict[str, float]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
