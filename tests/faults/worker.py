"""A real worker: ``python -m tests.faults.worker EXPERIMENT ROLE INDEX FIRST``.

Logs measurements with the values FIRST, FIRST + 1, ... until a line comes on its standard input,
then ends in order and says the value that it did not log any more.
"""

import os
import sys
import threading

from opentelemetry import metrics

import otel_rl

_PAUSE_S = 0.03
_EXPORT_INTERVAL_S = 0.3
_SHUTDOWN_S = 120.0


def main(experiment: str, role: str, index: int, first: int) -> None:
    """Work."""
    told = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        told.set()

    threading.Thread(target=listen, daemon=True).start()
    otel_rl.init(
        experiment=experiment,
        trial=os.environ.get("OTEL_RL_TRIAL", "default"),
        role=role,
        index=index,
        export_interval_s=_EXPORT_INTERVAL_S,
    )
    meter = metrics.get_meter("faults")
    done = meter.create_counter("count.done")
    exact = meter.create_gauge("id.gauge")
    value, step = first, 0
    while not told.wait(_PAUSE_S):
        done.add(3)  # before the gauges that tell its step
        otel_rl.log({"id.logged": value}, step=step)
        exact.set(value + 1, {"rl.loop.iteration": step})
        otel_rl.log({"id.now": value + 2})
        value += 3
        step += value % 2
    delivered = otel_rl.finish(timeout_s=_SHUTDOWN_S)
    sys.stdout.write(f"{first} {value} {'delivered' if delivered else 'gave up'}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
