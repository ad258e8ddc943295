"""Start of one process, as a contender: ``python bench/contenders/start.py KIND ENDPOINT``.

It prints the CPU seconds, the seconds and the private memory in MB that the start has taken.
Nothing is imported before it that the interpreter has not.
"""

import os
import sys
import time

METRICS = {f"metric.{n}": 1.0 for n in range(20)}


def _private_mb() -> float:
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:  # noqa: PTH123  # pathlib is no part of bare Python
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def _otel_rl(endpoint: str) -> None:
    import otel_rl

    # Not the first of its role, which also lists the installed packages.
    otel_rl.init(experiment="start", role="trainer", index=1, count=2, endpoint=endpoint)
    for step in range(3):
        with otel_rl.step(step):
            with otel_rl.phase("train"):
                pass
            otel_rl.log(METRICS, step=step)
    if not otel_rl.flush(timeout_s=30):
        raise SystemExit("nothing was exported")


def _wandb(_endpoint: str) -> None:
    import tempfile

    import wandb

    run = wandb.init(mode="offline", dir=tempfile.mkdtemp(), settings=wandb.Settings(silent=True))
    for step in range(3):
        run.log(METRICS, step=step)


_KINDS = {"otel_rl": _otel_rl, "wandb": _wandb}


def main() -> None:
    kind, endpoint = sys.argv[1:]
    begun_s, begun_cpu_s, begun_mb = time.perf_counter(), time.process_time(), _private_mb()
    _KINDS[kind](endpoint)
    cpu_s, wall_s = time.process_time() - begun_cpu_s, time.perf_counter() - begun_s
    print(cpu_s, wall_s, _private_mb() - begun_mb, flush=True)
    os._exit(0)  # the end is no part of it


if __name__ == "__main__":
    main()
