"""Logs that trackers write: TensorBoard's event files, W&B's runs, offline and of its server."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from otel_rl.cli.logs.log import Log
from otel_rl.errors import ConfigError, MissingExtra
from otel_rl.records import ExperimentStatus

ADDRESS: Final = "wandb://"
HEAD: Final = b":W&B"

_AROUND: Final = 16  # bytes of an event's length, and of the checksums of both


def read_offline_run(path: Path, log: Log) -> None:
    """Read the file of a run that is offline, or is going on.

    Raises:
        MissingExtra: W&B is not installed.
        OSError: The file cannot be read.
    """
    try:
        import wandb.proto.wandb_internal_pb2  # noqa: F401  # whether it is there
        from google.protobuf.message import DecodeError
    except ImportError as exc:
        raise MissingExtra("Reading a W&B run", "wandb", "wandb") from exc
    from otel_rl.bridge.delivery.wandb.offline import parsed, records

    def taken(file: BinaryIO) -> Iterator[bytes]:
        is_whole = yield from records(file)
        log.is_cut = log.is_cut or not is_whole

    with path.open("rb") as file:
        for record in taken(file):
            try:
                _take(parsed(record), log)
            except (DecodeError, ValueError, RecursionError):
                log.broken += 1


def _take(record: Any, log: Log) -> None:
    match record.WhichOneof("record_type"):
        case "history":
            log.add_row(_items(record.history.item), record.history.step.num)
        case "run":
            log.name = record.run.project or log.name
            log.trial = record.run.display_name or record.run.run_id or log.trial
            log.config.update(_items(record.run.config.update))
        case "config":
            log.config.update(_items(record.config.update))
        case "exit":
            is_right = record.exit.exit_code == 0
            log.status = ExperimentStatus.COMPLETE if is_right else ExperimentStatus.CRASHED


def _items(items: Iterable[Any]) -> dict[str, object]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def read_server_run(address: str, log: Log) -> None:
    """Read a run of the server by W&B's public interface, with the key of ``wandb login``.

    Raises:
        ConfigError: The run does not exist, or W&B refuses.
        MissingExtra: W&B is not installed.
    """
    try:
        import wandb
    except ImportError as exc:
        raise MissingExtra("Reading a W&B run", "wandb", "wandb") from exc
    path = address.removeprefix(ADDRESS)
    try:
        run = wandb.Api().run(path)
        log.name, log.trial = run.project, run.name or log.trial
        config: Mapping[str, object] = run.config
        log.config.update(config)
        for row in run.scan_history():
            log.add_row(row, row.get("_step"))
    except Exception as exc:  # of requests, wandb and their parts: there is no common class
        said = str(exc).strip().splitlines() or [type(exc).__name__]
        raise ConfigError(
            f"W&B does not give the run {path!r}: {said[0]}",
            hint="Write wandb://ENTITY/PROJECT/RUN, with the id of the run, after `wandb login`.",
        ) from exc
    if run.state in {"finished", "crashed", "failed"}:
        is_right = run.state == "finished"
        log.status = ExperimentStatus.COMPLETE if is_right else ExperimentStatus.CRASHED


def read_event_files(paths: Sequence[Path], log: Log) -> None:
    """Read the scalars of the event files of one TensorBoard run, oldest first, by its own loader.

    Raises:
        MissingExtra: TensorBoard is not installed.
        OSError: A file cannot be read.
    """
    try:
        # mypy: without types.
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as exc:
        raise MissingExtra("Reading event files", "tensorboard", "tensorboard") from exc
    for path in paths:
        with path.open("rb"):  # the loader of a file that may not be read only logs
            pass
        events = 0
        for event in EventFileLoader(str(path)).Load():
            events += 1
            for value in event.summary.value:
                if (number := _scalar(value, make_ndarray)) is not None:
                    log.add(event.step, event.wall_time, {value.tag: number})
        # The loader ends at damage, and tells nobody.
        log.is_cut = log.is_cut or events != _count_events(path)


def _count_events(path: Path) -> int | None:
    """Return how many records a file has by their lengths; None if the last one is torn."""
    found, position, size = 0, 0, path.stat().st_size
    with path.open("rb") as file:
        while position < size:
            file.seek(position)
            head = file.read(8)
            position += int.from_bytes(head, "little") + _AROUND
            found += 1
    return found if position == size else None


def _scalar(value: Any, make_ndarray: Any) -> float | None:
    """Return the number of a scalar; None of what is none, such as text and images."""
    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    if not value.HasField("tensor") or value.metadata.plugin_data.plugin_name != "scalars":
        return None
    if any(dim.size != 1 for dim in value.tensor.tensor_shape.dim) or value.tensor.string_val:
        return None  # no scalar; a shape may also ask for any amount of memory
    array = make_ndarray(value.tensor)
    return float(array.item()) if array.size == 1 else math.nan
