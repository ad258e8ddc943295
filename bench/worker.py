"""What a measurement costs a training process: otel_rl beside the stock SDK and W&B.

    .venv/bin/python bench/worker.py

CPU time of the calling thread per call, the best of several rounds: on a shared machine the best is
the least disturbed. Ratios are against the line named in the table and taken in one run.
"""

import contextlib
import gc
import os
import tempfile
import time
from collections.abc import Callable
from statistics import median

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

import otel_rl
from otel_rl.worker import session
from otel_rl.worker.buffer import Buffer
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.provider import BufferedMeterProvider

ROUNDS = 7
STEP = "rl.loop.iteration"
RESOURCE = Resource({"service.name": "bench"})
WIDE = {f"train/metric_{n}": n / 7 for n in range(20)}


def cpu_us(call: Callable[[int], object], calls: int, after: Callable[[], object]) -> float:
    """Microseconds of this thread's CPU per call; ``after`` empties what the calls filled."""
    best = float("inf")
    for _ in range(ROUNDS):
        gc.collect()
        start = time.thread_time_ns()
        for step in range(calls):
            call(step)
        best = min(best, (time.thread_time_ns() - start) / calls / 1000)
        after()
    return best


def table(title: str, rows: dict[str, float], against: str, unit: str) -> None:
    print(f"\n{title}\n{'':34}{unit:>12}{'ratio':>10}")
    for name, value in rows.items():
        print(f"{name:34}{value:12.2f}{value / rows[against]:10.3f}")


def sdk(*, exact: bool) -> tuple[MeterProvider, InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    views = [otel_rl.exact_view()] if exact else []
    provider = MeterProvider(
        [reader],
        RESOURCE,
        views=views,
        exemplar_filter=AlwaysOnExemplarFilter() if exact else None,
        shutdown_on_exit=False,
    )
    return provider, reader


def bench_set() -> None:
    calls = 20_000
    ours = BufferedMeterProvider(RESOURCE, Guard(Drops()), Buffer(10 * calls))
    gauge = ours.get_meter("m").create_gauge("loss")
    plain: list[tuple[float, int]] = []
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("t")
    rows = {
        "list.append": cpu_us(lambda step: plain.append((0.5, step)), calls, plain.clear),
        "ours": cpu_us(lambda _: gauge.set(0.5), calls, ours.buffer.clear),
        "ours, step": cpu_us(lambda step: gauge.set(0.5, {STEP: step}), calls, ours.buffer.clear),
    }
    with tracer.start_as_current_span("step"):
        rows["ours, step, in a span"] = cpu_us(
            lambda step: gauge.set(0.5, {STEP: step}), calls, ours.buffer.clear
        )
    for name, exact in (("stock SDK, last value only", False), ("stock SDK + exact_view", True)):
        provider, reader = sdk(exact=exact)
        theirs = provider.get_meter("m").create_gauge("loss")
        attributes = {"kind": "a"}
        rows[name] = (
            cpu_us(lambda step: theirs.set(0.5, {STEP: step}), calls, reader.get_metrics_data)  # noqa: B023
            if exact
            else cpu_us(lambda _: theirs.set(0.5, attributes), calls, reader.get_metrics_data)  # noqa: B023
        )
    table("gauge.set, CPU of the training thread", rows, "stock SDK, last value only", "us/call")


def bench_log() -> None:
    os.environ |= {"OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none"}
    otel_rl.init(experiment="bench", role="bench", export_interval_s=3600)
    current = session.running()
    assert current is not None
    buffer = current.providers.meter.buffer
    log = otel_rl.mlogger.log
    rows = {
        "mlogger.log": cpu_us(lambda step: log(WIDE, step=step), 5_000, buffer.clear),
    }
    otel_rl.shutdown(timeout_s=1)
    provider, reader = sdk(exact=False)
    gauges = {name: provider.get_meter("m").create_gauge(name) for name in WIDE}

    def set_all(_: int) -> None:
        for name, value in WIDE.items():
            gauges[name].set(value)

    rows["20 stock SDK gauges"] = cpu_us(set_all, 500, reader.get_metrics_data)
    against = "20 stock SDK gauges"
    with contextlib.suppress(ImportError):
        rows["wandb.log, offline"] = wandb_log_us()
        against = "wandb.log, offline"
    table("20 metrics of one step, CPU of the training thread", rows, against, "us/step")


def wandb_log_us() -> float:
    import wandb

    with tempfile.TemporaryDirectory() as directory:
        run = wandb.init(
            mode="offline",
            dir=directory,
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        try:
            return cpu_us(lambda _: run.log(WIDE), 500, lambda: None)
        finally:
            run.finish()


def bench_export() -> None:
    """Collect and serialise 10,000 measurements of 20 series: 500 steps since the last export."""
    steps, names = 500, [f"m{n}" for n in range(20)]
    ours = BufferedMeterProvider(RESOURCE, Guard(Drops()))
    gauges = [ours.get_meter("m").create_gauge(name) for name in names]
    rows: dict[str, float] = {}

    def measured(fill: Callable[[], None], export: Callable[[], object]) -> float:
        found = []
        for _ in range(ROUNDS):
            fill()
            gc.collect()
            start = time.thread_time_ns()
            export()
            found.append((time.thread_time_ns() - start) / steps / len(names) / 1000)
        return median(found)

    def fill_ours() -> None:
        for step in range(steps):
            for gauge in gauges:
                gauge.set(step / 7, {STEP: step})

    rows["ours"] = measured(fill_ours, ours.collect)
    provider, reader = sdk(exact=True)
    stock = [provider.get_meter("m").create_gauge(name) for name in names]

    def fill_stock() -> None:
        for step in range(steps):
            for gauge in stock:
                gauge.set(step / 7, {STEP: step})

    def export_stock() -> None:
        data = reader.get_metrics_data()
        if data is not None:
            encode_metrics(data).SerializeToString()

    rows["stock SDK + exact_view"] = measured(fill_stock, export_stock)
    table("Export, CPU of the exporter thread", rows, "stock SDK + exact_view", "us/point")


if __name__ == "__main__":
    bench_set()
    bench_export()
    bench_log()
