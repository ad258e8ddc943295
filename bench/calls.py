"""Costs of a measurement for the training thread: ``gauge.set`` and ``otel_rl.log``."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

import otel_rl
from bench.figures import Figure
from bench.sink import sink
from bench.stock import RESOURCE, stock_sdk
from bench.timing import Rounds, Turn, calls
from otel_rl.semconv.names import RL_LOOP_ITERATION as STEP
from otel_rl.worker import session
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.gauges import Buffer
from otel_rl.worker.metrics.provider import BufferedMeterProvider

WIDE = {f"train/metric_{n}": n / 7 for n in range(20)}


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Measure ``gauge.set``, then ``otel_rl.log``."""
    yield from _gauge_set(tiny=tiny)
    yield from _log(tiny=tiny)


def _gauge_set(*, tiny: bool) -> Iterator[Figure]:
    times, rounds = (200, 2) if tiny else (10_000, 15)
    ours = BufferedMeterProvider(RESOURCE, Guard(Drops()), Buffer(2 * times))
    gauge = ours.get_meter("m").create_gauge("loss")
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("t")
    last, every = InMemoryMetricReader(), InMemoryMetricReader()
    stock_last = stock_sdk(last, exact=False).get_meter("m").create_gauge("loss")
    stock_every = stock_sdk(every, exact=True).get_meter("m").create_gauge("loss")
    attributes = {"kind": "a"}
    plain: list[tuple[float, int]] = []

    def in_span(times: int) -> None:
        with tracer.start_as_current_span("step"):
            for step in range(times):
                gauge.set(0.5, {STEP: step})

    found = Rounds(
        {
            "append": Turn(calls(lambda step: plain.append((0.5, step))), times, after=plain.clear),
            "bare": Turn(calls(lambda _: gauge.set(0.5)), times, after=ours.buffer.clear),
            "step": Turn(
                calls(lambda step: gauge.set(0.5, {STEP: step})), times, after=ours.buffer.clear
            ),
            "in a span": Turn(in_span, times, after=ours.buffer.clear),
            "stock": Turn(
                calls(lambda _: stock_last.set(0.5, attributes)),
                times,
                after=last.get_metrics_data,
            ),
            "stock exact": Turn(
                calls(lambda step: stock_every.set(0.5, {STEP: step})),
                times,
                after=every.get_metrics_data,
            ),
        },
        rounds,
    )

    def figure(name: str, ours: str, theirs: str, against: str, goal: float | None) -> Figure:
        ratio = found.ratio(ours, theirs)
        spread = found.spread(ours, theirs)
        ours_us, theirs_us = found.us(ours), found.us(theirs)
        return Figure(name, "us", ours_us, theirs_us, against, ratio, goal, spread=spread)

    stock = "stock SDK, which keeps the last value"
    yield figure("gauge.set", "bare", "stock", stock, 1 / 5)
    yield figure("gauge.set, step", "step", "stock", stock, 1 / 5)
    yield figure("gauge.set, step, in a span", "in a span", "stock", stock, 1 / 5)
    exact = "stock SDK + exact_view"
    yield figure("gauge.set, step, every value kept", "step", "stock exact", exact, 1 / 5)
    yield figure("gauge.set, step, beside the floor", "step", "append", "list.append", None)


def _log(*, tiny: bool) -> Iterator[Figure]:
    times, rounds = (20, 2) if tiny else (500, 15)
    last = InMemoryMetricReader()
    meter = stock_sdk(last, exact=False).get_meter("m")
    gauges = {name: meter.create_gauge(name) for name in WIDE}
    plain: list[tuple[dict[str, float], int]] = []

    def set_all(_: int) -> None:
        for name, value in WIDE.items():
            gauges[name].set(value)

    with sink() as url, _wandb_log() as wandb_log:
        otel_rl.init(experiment="bench", role="bench", endpoint=url, export_interval_s=3600)
        current = session.running()
        if current is None:
            raise SystemExit("Unset OTEL_SDK_DISABLED to measure otel_rl.")
        found = Rounds(
            {
                "append": Turn(
                    calls(lambda step: plain.append((dict(WIDE), step))), times, after=plain.clear
                ),
                "ours": Turn(
                    calls(lambda step: otel_rl.log(WIDE, step=step)),
                    times,
                    after=current.providers.meter.buffer.clear,
                ),
                "stock": Turn(calls(set_all), times, after=last.get_metrics_data),
                "wandb": Turn(calls(lambda _: wandb_log(WIDE)), times),
            },
            rounds,
        )
        otel_rl.finish(timeout_s=5)
    for theirs, beside, against, goal in (
        ("wandb", "wandb.log", "wandb.log, offline, its Python alone", 1 / 30),
        ("stock", "the SDK", "20 gauges of the stock SDK", None),
        ("append", "the floor", "list.append of a copy", None),
    ):
        yield Figure(
            f"mlogger.log of 20 metrics, beside {beside}",
            "us",
            found.us("ours"),
            found.us(theirs),
            against,
            found.ratio("ours", theirs),
            goal,
            spread=found.spread("ours", theirs),
        )


@contextmanager
def _wandb_log() -> Iterator[Callable[[dict[str, float]], object]]:
    import wandb

    with tempfile.TemporaryDirectory() as directory:
        run = wandb.init(
            mode="offline",
            dir=directory,
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        try:
            yield run.log
        finally:
            run.finish()
