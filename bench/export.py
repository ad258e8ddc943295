"""Costs of a measurement for the exporter thread: collected, encoded and serialized, not sent.

The stock SDK keeps every measurement by ``exact_view``, so that both send the same data.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import time_ns

from opentelemetry.context import get_current
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from bench.figures import Figure
from bench.stock import RESOURCE, stock_sdk
from bench.timing import Rounds, Turn
from otel_rl.semconv.names import RL_LOOP_ITERATION as STEP
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.gauges import Buffer, Logged
from otel_rl.worker.metrics.provider import BufferedMeterProvider

SHAPES: Mapping[str, tuple[int, int, Mapping[str, str]]] = {
    "20 gauges a step": (20, 500, {}),
    "20 gauges with an attribute": (20, 500, {"rl.phase": "train"}),
    "1 gauge a step": (1, 10_000, {}),
    "2,000 gauges a step": (2000, 5, {}),
}
"""Sources of 10,000 points: gauges, steps since the last export, attributes."""


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Measure one export of each shape; the first one also as rows of ``otel_rl.log``."""
    for name, (gauges, steps, attributes) in SHAPES.items():
        yield from _shape(name, gauges, 2 if tiny else steps, attributes, 2 if tiny else 11)


def _shape(
    name: str, gauges: int, steps: int, attributes: Mapping[str, str], rounds: int
) -> Iterator[Figure]:
    ours = BufferedMeterProvider(RESOURCE, Guard(Drops()))
    rows = BufferedMeterProvider(RESOURCE, Guard(Drops()))
    reader = InMemoryMetricReader()
    stock = stock_sdk(reader, exact=True)
    points = gauges * steps
    found = Rounds(
        {
            "ours": Turn(
                lambda _: ours.collect(), points, _setting(ours, gauges, steps, attributes)
            ),
            "rows": Turn(
                lambda _: rows.collect(), points, partial(_log, rows.buffer, gauges, steps)
            ),
            "stock": Turn(
                lambda _: _serialized(reader), points, _setting(stock, gauges, steps, attributes)
            ),
        },
        rounds,
    )
    kinds = {"ours": name, "rows": f"{name}, by mlogger.log"}
    for kind, text in kinds.items():
        if kind == "ours" or (gauges == 20 and not attributes):
            yield Figure(
                f"export: {text}",
                "us/point",
                found.us(kind),
                found.us("stock"),
                "stock SDK + exact_view",
                found.ratio(kind, "stock"),
                1 / 4,
                spread=found.spread(kind, "stock"),
            )


def _setting(
    provider: MeterProvider, gauges: int, steps: int, attributes: Mapping[str, str]
) -> Callable[[], None]:
    meter = provider.get_meter("m")
    made = [meter.create_gauge(f"metric.{n}") for n in range(gauges)]

    def set_all() -> None:
        for step in range(steps):
            for gauge in made:
                gauge.set(step / 7, {STEP: step, **attributes})

    return set_all


def _log(buffer: Buffer, metrics: int, steps: int) -> None:
    """Record like ``otel_rl.log``."""
    for step in range(steps):
        row: dict[str, object] = {f"metric.{n}": step / 7 for n in range(metrics)}
        buffer.entries.append(Logged(row, step, None, time_ns(), get_current()))


def _serialized(reader: InMemoryMetricReader) -> bytes:
    data = reader.get_metrics_data()
    return b"" if data is None else bytes(encode_metrics(data).SerializeToString())
