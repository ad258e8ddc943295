"""A script of one second as its user starts it: ``python bench/contenders/script.py KIND``.

``wandb`` is the whole of a script that logs by itself, ``otel_rl`` runs under ``otel-rl run``. It
prints the Unix time at which something was accepted first: an export by the bridge, or the run by
``wandb.init``.
"""

import sys
import time
from collections.abc import Callable

METRICS = {f"metric.{n}": 1.0 for n in range(20)}
WORK_S = 1.0
STEPS = 10


def _otel_rl() -> None:
    import otel_rl

    otel_rl.log(METRICS, step=0)
    if not otel_rl.flush(timeout_s=30):
        raise SystemExit("nothing was accepted")
    print(time.time(), flush=True)
    _work(otel_rl.log)


def _wandb() -> None:
    import wandb

    with wandb.init(mode="offline", settings=wandb.Settings(silent=True)) as run:
        print(time.time(), flush=True)
        _work(run.log)


def _work(log: Callable[..., object]) -> None:
    for step in range(1, STEPS + 1):
        time.sleep(WORK_S / STEPS)
        log(METRICS, step=step)


if __name__ == "__main__":
    {"otel_rl": _otel_rl, "wandb": _wandb}[sys.argv[1]]()
