"""Starts the two processes and waits: ``python -m otel_rl.demo.colocated DIRECTORY``."""

import json
import multiprocessing
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import numpy as np

from otel_rl.demo.colocated.generator import generate
from otel_rl.demo.colocated.host import Host
from otel_rl.demo.colocated.trainer import REWARDS_FILE, train
from otel_rl.demo.result import RESULT_FILE, DemoResult
from otel_rl.demo.settings import DemoSettings

_END_S = 10.0  # for the last export of a terminated process


def main(work_dir: Path) -> None:
    """Run with the settings in the directory, and write the result there."""
    # Without it the processes would outlive this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    settings = DemoSettings.model_validate_json((work_dir / "settings.json").read_text())
    (work_dir / REWARDS_FILE).unlink(missing_ok=True)
    context = multiprocessing.get_context("spawn")
    host = Host(context, settings, np.random.default_rng(settings.seed))
    processes = [
        context.Process(target=generate, args=(host, settings), name="generator", daemon=True),
        context.Process(target=train, args=(host, settings, work_dir), name="trainer", daemon=True),
    ]
    for process in processes:
        process.start()
    try:
        reason = _wait(processes)
    except KeyboardInterrupt:
        reason = "it was interrupted"
    finally:
        _end(processes)
    result = DemoResult(reason=reason, logs=work_dir)
    if (work_dir / REWARDS_FILE).exists():
        figures = json.loads((work_dir / REWARDS_FILE).read_text())
        result = result.model_copy(
            update={
                "steps": len(figures["rewards"]),
                "rewards": tuple(figures["rewards"]),
                "duration_s": figures["duration_s"],
            }
        )
    (work_dir / RESULT_FILE).write_text(result.model_dump_json())


def _wait(processes: Sequence[SpawnProcess]) -> str:
    """Wait for both. Returns the reason of an early end, or nothing."""
    running = {process.sentinel: process for process in processes}
    while running:
        ended = wait(list(running))
        for sentinel in [sentinel for sentinel in running if sentinel in ended]:
            process = running.pop(sentinel)
            process.join()
            if process.exitcode:
                return f"the {process.name} ended with {process.exitcode}"
    return ""


def _end(processes: Sequence[SpawnProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(_END_S)
        if process.is_alive():
            process.kill()
            process.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
