"""Decodes an accepted batch.

The batch was validated on receipt, so a failure here is a bug, not bad input. Metrics become
columns (``columns.py``). The progress of a worker is that of its heartbeat; the progress of any
other sender is the times of its points.
"""

from collections.abc import Iterable, Iterator

from otel_rl.bridge.otlp.columns import (
    ResourceReading,
    decoded_parts,
    read_resources,
)
from otel_rl.bridge.otlp.events import event_parts
from otel_rl.bridge.otlp.spans import span_parts
from otel_rl.records import PART, Batch, Decoded, Signal


def decode_parts(batch: Batch, most: int = PART) -> Iterator[Decoded]:
    """Decode in parts of about ``most`` points each, however large the batch is.

    Points without an event time get the batch's ``received_ns``. The parts are the same at every
    call. Facts about the whole batch, such as the progress of its workers, are in the last one.
    Spans are in the order of their ends, so that a nested span precedes its parent also across
    parts; the parts before the spans are empty, and only take time.
    """
    match batch.signal:
        case Signal.LOGS:
            yield from event_parts(batch, most)
        case Signal.TRACES:
            yield from span_parts(batch, most)
        case Signal.METRICS:
            yield from decoded_parts(_resources(batch), most)


def _resources(batch: Batch) -> Iterable[ResourceReading]:
    return batch.columns or read_resources(batch.payload, batch.received_ns)
