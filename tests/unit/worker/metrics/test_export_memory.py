"""Memory of an export: what is encoded is freed, and nothing is kept until the next one."""

import gc
import tracemalloc

from opentelemetry.context import Context

from otel_rl.signals import Signal
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.gauges import Buffer, Entry, GaugeEncoder, Logged
from otel_rl.worker.otlp.requests import Intervals, RequestPacker

STEPS, METRICS = 500, 20


def rows(first: int) -> list[Entry]:
    return [
        Logged(
            {f"metric_{n}": step + n / 7 for n in range(METRICS)},
            step,
            None,
            1_700_000_000_000_000_000 + step,
            Context(),
        )
        for step in range(first, first + STEPS)
    ]


def test_an_export_takes_little_more_than_its_request() -> None:
    expander = GaugeEncoder(Guard(Drops()), Intervals(0))

    def request() -> bytes:
        packer = RequestPacker(b"", Signal.METRICS)
        expander.pack(buffer.take_all(), packer)
        (made,) = packer.requests()
        return made.payload

    buffer = Buffer()
    buffer.entries.extend(rows(1000))
    request()
    gc.collect()
    tracemalloc.start()
    try:
        buffer.entries.extend(rows(2000))
        recorded_bytes, _ = tracemalloc.get_traced_memory()
        payload = request()
        kept_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 1.8 * len(payload)
    assert peak_bytes < recorded_bytes + 0.7 * len(payload)
