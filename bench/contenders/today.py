"""Today's alternatives and otel_rl: one contender from its first import to its finished run.

    python -m bench.contenders.today "queue to a controller"

``bench.today`` measures the whole family of processes. Each worker imports this file, so imports
for a single contender are local.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import wandb

WORKERS = int(os.environ.get("BENCH_WORKERS", "8"))
METRICS = int(os.environ.get("BENCH_METRICS", "20"))
STEPS = int(os.environ.get("BENCH_STEPS", "5000"))
PAUSE_S = float(os.environ.get("BENCH_PAUSE_S", "0.002"))  # the rest of a training step

CONTEXT = multiprocessing.get_context("spawn")

Put = tuple[int, int, dict[str, float]]
"""(worker, step, metrics)."""

Target = Callable[[int, str, Any], None]
"""Worker function, given its number, its endpoint, and a queue if there is one."""


def metrics_of(worker: int, step: int) -> dict[str, float]:
    return {f"metric_{n}": step * 0.5 + worker + n for n in range(METRICS)}


def report_nothing(worker: int, _: str, __: object) -> None:
    for step in range(STEPS):
        time.sleep(PAUSE_S)
        metrics_of(worker, step)


def run_per_worker(worker: int, directory: str, _: object) -> None:
    run = wandb_run(directory)
    for step in range(STEPS):
        time.sleep(PAUSE_S)
        run.log(metrics_of(worker, step), step=step)
    run.finish()


def put_to_controller(worker: int, _: str, queue: "multiprocessing.Queue[Put]") -> None:
    for step in range(STEPS):
        time.sleep(PAUSE_S)
        queue.put((worker, step, metrics_of(worker, step)))


def log_to_otel_rl(worker: int, address: str, _: object) -> None:
    import otel_rl

    otel_rl.init(
        experiment="bench",
        trial="default",
        role="trainer",
        index=worker,
        count=WORKERS,
        endpoint=f"http://{address}",
    )
    for step in range(STEPS):
        time.sleep(PAUSE_S)
        otel_rl.log(metrics_of(worker, step), step=step)
    otel_rl.finish(timeout_s=30)


def wandb_run(directory: str) -> "wandb.Run":
    import wandb

    return wandb.init(
        mode="offline",
        dir=directory,
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
    )


def control(queue: "multiprocessing.Queue[Put]", directory: str) -> None:
    """Log one row a step with every worker's metrics, as soon as all have sent them."""
    run = wandb_run(directory)
    steps: dict[int, dict[int, dict[str, float]]] = {}
    for _ in range(WORKERS * STEPS):
        worker, step, metrics = queue.get()
        steps.setdefault(step, {})[worker] = metrics
        if len(steps[step]) == WORKERS:
            row = {
                f"workers/{index}/{name}": value
                for index, found in steps.pop(step).items()
                for name, value in found.items()
            }
            run.log(row, step=step)
    run.finish()


def bridge(directory: str, *, per_worker: bool) -> None:
    from otel_rl.bridge.garbage import collect_rarely

    collect_rarely()  # as the command otel-rl
    from otel_rl.bridge.bridge import Bridge
    from otel_rl.bridge.config import (
        ArchiveSettings,
        BridgeSettings,
        ListenSettings,
        TrackerSettings,
    )
    from otel_rl.bridge.rows.settings import AlignSettings
    from otel_rl.semconv.spec import Tier
    from otel_rl.setting_types import Address

    bridge = Bridge(
        BridgeSettings(
            data=Path(directory),
            listen=ListenSettings(http=Address("127.0.0.1", 0), grpc=None),
            rows=AlignSettings(per_worker=per_worker),
            # A second copy of all values, which needs an extra; the others make none.
            archive=ArchiveSettings(enabled=False),
            tracker=TrackerSettings(
                name="wandb",
                detail=Tier.EVERYTHING,
                options={"mode": "offline"},
            ),
        )
    )
    bridge.start()
    join(start_workers(log_to_otel_rl, bridge.http))
    (status,) = bridge.stop()
    assert status.next_row >= STEPS, status  # the bridge adds rows of its own


def start_workers(target: Target, place: str, queue: object = None) -> list[SpawnProcess]:
    workers = [CONTEXT.Process(target=target, args=(n, place, queue)) for n in range(WORKERS)]
    for worker in workers:
        worker.start()
    return workers


def join(workers: Sequence[SpawnProcess]) -> None:
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0


def run(name: str, directory: str) -> None:
    match name:
        case "nothing":
            join(start_workers(report_nothing, directory))
        case "run per worker":
            join(start_workers(run_per_worker, directory))
        case "queue to a controller":
            queue: multiprocessing.Queue[Put] = CONTEXT.Queue()
            workers = start_workers(put_to_controller, directory, queue)
            control(queue, directory)
            join(workers)
        case "otel_rl, every worker":
            bridge(directory, per_worker=True)
        case "otel_rl, mean over workers":
            bridge(directory, per_worker=False)
        case _:
            raise SystemExit(f"There is no contender {name!r}.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        run(sys.argv[1], directory)
