"""Costs of a phase for the training thread, beside manual timing."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import otel_rl
from bench.figures import Figure, Limits
from bench.sink import sink
from bench.stock import stock_tracing
from bench.timing import Rounds, Turn
from otel_rl.worker import session

GOAL_US = 3.0
"""A hundred phases in a step of 100 ms then cost 0.3 % of it."""

_seconds: list[float] = []


@contextlib.contextmanager
def _by_hand() -> Iterator[None]:
    """Read the clock twice and append, the least that manual timing needs."""
    begun_s = time.perf_counter()
    yield
    _seconds.append(time.perf_counter() - begun_s)


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Measure a phase with and without its span, in a step and outside of any."""
    times, rounds = (20, 2) if tiny else (2000, 11)
    logging.disable(logging.WARNING)  # more spans than the SDK can send meanwhile
    with sink() as url:
        otel_rl.init(experiment="bench", role="bench", endpoint=url, export_interval_s=3600)
        current = session.running()
        if current is None:
            raise SystemExit("Unset OTEL_SDK_DISABLED to measure otel_rl.")
        buffer = current.providers.meter.buffer
        stock = stock_tracing(url)
        tracer = stock.get_tracer("bench")

        def turn(
            block: Callable[[], AbstractContextManager[object]], *, in_step: bool = False
        ) -> Turn:
            def run(times: int) -> None:
                for _ in range(times):
                    with block():
                        pass

            # The step around them is not timed.
            step = otel_rl.step(0) if in_step else contextlib.nullcontext()

            def after() -> None:
                step.__exit__(None, None, None)
                _seconds.clear()
                buffer.clear()

            return Turn(run, times, step.__enter__, after)

        found = Rounds(
            {
                "phase": turn(lambda: otel_rl.phase("train", span=False), in_step=True),
                "outside": turn(lambda: otel_rl.phase("train", span=False)),
                "span": turn(lambda: otel_rl.phase("train"), in_step=True),
                "by hand": turn(_by_hand),
                "sdk": turn(lambda: tracer.start_as_current_span("train")),
            },
            rounds,
        )
        stock.shutdown()
        otel_rl.finish(timeout_s=5)

    def figure(
        name: str, ours: str, theirs: str, against: str, goal_us: float | None = None
    ) -> Figure:
        ratio = found.ratio(ours, theirs)
        return Figure(
            name, "us", found.us(ours), found.us(theirs), against, ratio, goal_us, Limits.OURS
        )

    yield figure("phase, no span", "phase", "by hand", "two looks at a clock", GOAL_US)
    yield figure("phase, no span, outside of a step", "outside", "by hand", "two looks at a clock")
    yield figure("phase with its span", "span", "sdk", "the SDK's span alone")
