"""What a phase costs a training process, beside what it is instead of.

    .venv/bin/python bench/phases.py

CPU time of the calling thread per phase, the best of several rounds: on a shared machine the best
is the least disturbed.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from opentelemetry import trace

import otel_rl
from otel_rl.worker import session

ROUNDS = 9
CALLS = 2_000
GOAL_US = 3.0


@contextlib.contextmanager
def by_hand() -> Iterator[None]:
    """Two looks at a clock and an append, the least that anybody writes."""
    begun_s = time.perf_counter()
    yield
    SECONDS.append(time.perf_counter() - begun_s)


SECONDS: list[float] = []


def cpu_us(block: Callable[[], AbstractContextManager[object]], *, in_step: bool) -> float:
    """Microseconds of this thread's CPU per block; the step around them left out."""
    best = float("inf")
    for number in range(ROUNDS):
        with otel_rl.step(number) if in_step else contextlib.nullcontext():
            start_ns = time.thread_time_ns()
            for _ in range(CALLS):
                with block():
                    pass
            best = min(best, (time.thread_time_ns() - start_ns) / CALLS / 1000)
        SECONDS.clear()
        current = session.running()
        if current is not None:
            current.providers.meter.buffer.clear()
    return best


def main() -> None:
    otel_rl.init(experiment="bench", role="trainer", endpoint="http://127.0.0.1:9")
    tracer = trace.get_tracer("bench")
    rows = {
        "contextlib.nullcontext": cpu_us(contextlib.nullcontext, in_step=False),
        "two looks at a clock": cpu_us(by_hand, in_step=False),
        "phase in a step": cpu_us(lambda: otel_rl.phase("train", span=False), in_step=True),
        "phase outside of a step": cpu_us(
            lambda: otel_rl.phase("train", span=False), in_step=False
        ),
        "the SDK's span": cpu_us(lambda: tracer.start_as_current_span("train"), in_step=False),
        "phase in a step, with its span": cpu_us(lambda: otel_rl.phase("train"), in_step=True),
    }
    print(f"{'':34}{'us':>8}")
    for name, us in rows.items():
        print(f"{name:34}{us:8.2f}")
    met = "met" if rows["phase in a step"] < GOAL_US else "missed"
    print(f"\ngoal: a phase without its span in less than {GOAL_US:g} us: {met}")
    otel_rl.shutdown(timeout_s=0)


if __name__ == "__main__":
    main()
