"""A tracker's own server with the same values, sent by its own client or through otel_rl.

    python -m bench.contenders.trackers mlflow client

``bench.trackers`` measures the whole family of processes, the server included.
"""

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.contenders.today import (
    PAUSE_S,
    STEPS,
    Target,
    join,
    log_to_otel_rl,
    metrics_of,
    start_workers,
)
from tests.trackers.programs import MlflowServer, TrackerServer, TrackioServer

SERVERS: Mapping[str, type[TrackerServer]] = {"mlflow": MlflowServer, "trackio": TrackioServer}


def log_to_mlflow(worker: int, _: str, __: object) -> None:
    import mlflow

    mlflow.set_experiment("bench")
    with mlflow.start_run(run_name=f"worker-{worker}"):
        for step in range(STEPS):
            time.sleep(PAUSE_S)
            mlflow.log_metrics(metrics_of(worker, step), step=step)


def log_to_trackio(worker: int, url: str, _: object) -> None:
    import trackio

    run = trackio.init(project="bench", name=f"worker-{worker}", server_url=url, embed=False)
    for step in range(STEPS):
        time.sleep(PAUSE_S)
        run.log(metrics_of(worker, step), step=step)
    run.finish()  # type: ignore[no-untyped-call]


CLIENTS: Mapping[str, Target] = {"mlflow": log_to_mlflow, "trackio": log_to_trackio}


def through_otel_rl(tracker: str, directory: Path, options: Mapping[str, Any]) -> None:
    from otel_rl.bridge.bridge import Bridge
    from otel_rl.bridge.config import BridgeSettings, ListenSettings, TrackerSettings
    from otel_rl.bridge.rows.settings import AlignSettings
    from otel_rl.semconv.spec import Tier
    from otel_rl.setting_types import Address

    bridge = Bridge(
        BridgeSettings(
            data=directory,
            listen=ListenSettings(http=Address("127.0.0.1", 0), grpc=None),
            rows=AlignSettings(per_worker=True),
            tracker=TrackerSettings(name=tracker, detail=Tier.EVERYTHING, options=options),
        )
    )
    bridge.start()
    join(start_workers(log_to_otel_rl, bridge.http))
    (status,) = bridge.stop()
    assert status.next_row >= STEPS, status  # the bridge adds rows of its own


def run(tracker: str, way: str, directory: Path) -> None:
    with SERVERS[tracker](directory / "server") as server:
        os.environ.update(server.environment)
        if way == "client":
            join(start_workers(CLIENTS[tracker], server.url))
        else:
            uri = {"mlflow": "tracking_uri", "trackio": "server_url"}[tracker]
            through_otel_rl(tracker, directory / "bridge", {uri: server.url})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        run(sys.argv[1], sys.argv[2], Path(directory))
