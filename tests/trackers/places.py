"""Where each tracker of the contract suite writes, and how its own reader shows what is there."""

import json
import math
import os
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from otel_rl.bridge.delivery.mlflow import MARK, RUN_TAG, mlflow_name
from otel_rl.bridge.delivery.tensorboard import run_directory
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.records import Row
from tests.trackers.programs import TrackioServer

_AXES = {"attempt", "policy_version", "otel_rl/time", MARK}
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_FLOAT_MAX = sys.float_info.max


@dataclass(frozen=True)
class Place:
    """A tracker, set up to write somewhere, and a way to read what it wrote.

    Attributes:
        history: Reads the run's rows in the order in which the tracker has them.
        hold: A value as the tracker has it.
    """

    name: str
    tracker: str
    run: RunInfo
    history: Callable[[RunInfo], list[Row]]
    hold: Callable[[str, float], tuple[str, float]] = lambda key, value: (key, value)

    def held(self, rows: Sequence[Row]) -> list[Row]:
        """The rows as the tracker should have them."""
        return [
            replace(row, values=dict(self.hold(key, value) for key, value in row.values.items()))
            for row in rows
        ]


def hold_mlflow(key: str, value: float) -> tuple[str, float]:
    finite = math.copysign(_FLOAT_MAX, value) if math.isinf(value) else value
    return mlflow_name(key), finite


def hold_tensorboard(key: str, value: float) -> tuple[str, float]:
    (single,) = struct.unpack("f", struct.pack("f", value))
    return key, single


def read_mlflow(uri: str, run: RunInfo) -> list[Row]:
    """From every value of the run's metrics. The rows must have times of their own."""
    by_time: dict[int, list[tuple[str, float, int]]] = defaultdict(list)
    for key, value, step, time_ms in mlflow_values(uri, run):
        by_time[time_ms].append((key, value, step))
    return sorted(
        (_row_of(values, time_ms * 1_000_000) for time_ms, values in by_time.items()),
        key=lambda row: row.number,
    )


def mlflow_values(uri: str, run: RunInfo) -> list[tuple[str, float, int, int]]:
    """Every metric, value, step and time (ms) of the run, as often as MLflow has it."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(run.key.experiment)
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id], f"tags.`{RUN_TAG}` = '{run.run_id}'")
    return [
        (key, metric.value, metric.step, metric.timestamp)
        for key in found.data.metrics
        for metric in client.get_metric_history(found.info.run_id, key)
    ]


def _row_of(values: Sequence[tuple[str, float, int]], time_ns: int) -> Row:
    assert len({key for key, *_ in values}) == len(values), "a value is there twice"
    found = {key: value for key, value, _ in values}
    (step,) = {step for key, _, step in values if key != MARK}
    return Row(
        number=int(found[MARK]),
        step=step,
        time_ns=time_ns,
        values={key: value for key, value in found.items() if key not in _AXES},
        policy_version=int(found["policy_version"]) if "policy_version" in found else None,
        attempt=int(found["attempt"]),
    )


def read_trackio(query: Callable[[str], Sequence[Mapping[str, Any]]], run: RunInfo) -> list[Row]:
    """From the table of entries, in the order of their insertion."""
    entries = query(
        "SELECT log_id, step, timestamp, run_name, metrics FROM metrics"
        f" WHERE run_id = '{run.run_id}' ORDER BY id"
    )
    return [_row_of_entry(entry) for entry in entries]


def _row_of_entry(entry: Mapping[str, Any]) -> Row:
    metrics = json.loads(entry["metrics"])
    return Row(
        number=int(entry["log_id"].partition(":")[2]),
        step=entry["step"],
        time_ns=round(metrics["otel_rl/time"] * 1e3) * 1_000_000,
        values={
            key: float(value)
            for key, value in metrics.items()
            if key not in _AXES and (isinstance(value, int | float) or value in _NOT_FINITE)
        },
        policy_version=metrics.get("policy_version"),
        attempt=metrics["attempt"],
    )


_LOCAL_QUERY = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
print(json.dumps(SQLiteStorage.query_project("otel_rl", sys.argv[1])["rows"]))
"""


def trackio_query(
    place: TrackioServer | Path, project: str = "otel_rl"
) -> Callable[[str], Sequence[Mapping[str, Any]]]:
    """A query of a server's project, or of the database in a directory."""

    def remote(sql: str) -> Sequence[Mapping[str, Any]]:
        assert isinstance(place, TrackioServer)
        answer = httpx.post(
            f"{place.url}/api/query_project",
            json={"args": [], "kwargs": {"project": project, "query": sql}},
            timeout=60,
        )
        found: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["rows"]
        return found

    def local(sql: str) -> Sequence[Mapping[str, Any]]:
        printed = subprocess.run(
            [sys.executable, "-c", _LOCAL_QUERY, sql],
            env={**os.environ, "TRACKIO_DIR": str(place)},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        found: list[dict[str, Any]] = json.loads(printed.splitlines()[-1])
        return found

    return remote if isinstance(place, TrackioServer) else local


_LOGS = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
print(json.dumps(SQLiteStorage.get_logs("otel_rl", run_id=sys.argv[1])))
"""


def trackio_logs(directory: Path, run_id: str) -> Sequence[Mapping[str, Any]]:
    """The rows of a run in the database in a directory, as Trackio's own reader shows them."""
    printed = subprocess.run(
        [sys.executable, "-c", _LOGS, run_id],
        env={**os.environ, "TRACKIO_DIR": str(directory)},
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout
    found: list[dict[str, Any]] = json.loads(printed.splitlines()[-1])
    return found


def read_tensorboard(run: RunInfo) -> list[Row]:
    """From the events as TensorBoard loads them; its reader of scalars must show as many."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    (path,) = run_directory(run).glob("*tfevents*")
    events = [Event.FromString(raw) for raw in RawEventFileLoader(str(path)).Load()]
    rows = [
        (int(writer.rpartition(" ")[2]), event)
        for event in events
        if (writer := event.source_metadata.writer).startswith("otel_rl row")
    ]
    reader = EventAccumulator(str(path.parent), size_guidance={"scalars": 0})
    reader.Reload()
    shown = sum(len(reader.Scalars(tag)) for tag in reader.Tags()["scalars"])
    assert shown == sum(len(_scalars(event)) for _, event in rows)
    return [_row_of_event(number, event) for number, event in rows]


def _scalars(event: Any) -> dict[str, float]:  # a protobuf message
    values = event.summary.value
    return {one.tag: one.simple_value for one in values if one.HasField("simple_value")}


def _row_of_event(number: int, event: Any) -> Row:
    found = _scalars(event)
    return Row(
        number=number,
        step=event.step,
        time_ns=round(event.wall_time * 1e3) * 1_000_000,
        values={key: value for key, value in found.items() if key not in _AXES},
        policy_version=int(found["policy_version"]) if "policy_version" in found else None,
        attempt=int(found["attempt"]),
    )
