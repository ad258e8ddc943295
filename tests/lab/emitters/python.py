"""The stock OpenTelemetry SDK of Python, measuring what it reads from its standard input.

Operations, answers and variables are those of the Go program beside it.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View

Attributes = Mapping[str, Any]
Record = Callable[[float, Attributes], None]


def main() -> None:
    exporter = Grpc() if os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc" else Http()
    exponential = View(
        instrument_name="*.exponential", aggregation=ExponentialBucketHistogramAggregation()
    )
    provider = MeterProvider([PeriodicExportingMetricReader(exporter)], views=[exponential])
    meter = provider.get_meter("emitter")
    records: dict[str, Record] = {}
    for line in sys.stdin:
        operation = json.loads(line)
        if operation["op"] == "flush":
            provider.force_flush()
        else:
            name, attributes = operation["name"], operation["attributes"]
            if name not in records:
                records[name] = _instrument(meter, operation["op"], name)
            for value in map(json.loads, operation["values"]):
                records[name](value, attributes)
        sys.stdout.write("ok\n")
        sys.stdout.flush()
    provider.shutdown()


def _instrument(meter: Meter, op: str, name: str) -> Record:
    match op:
        case "counter":
            return meter.create_counter(name).add
        case "up_down_counter":
            return meter.create_up_down_counter(name).add
        case "histogram":
            return meter.create_histogram(name).record
        case "gauge" | "int_gauge":
            return meter.create_gauge(name).set
    observed: dict[str, Observation] = {}

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        return list(observed.values())

    def record(value: float, attributes: Attributes) -> None:
        observed[json.dumps(attributes)] = Observation(value, attributes)

    callbacks: Sequence[Callable[[CallbackOptions], Iterable[Observation]]] = [observe]
    match op:
        case "observable_counter":
            meter.create_observable_counter(name, callbacks)
        case "observable_up_down_counter":
            meter.create_observable_up_down_counter(name, callbacks)
        case "observable_gauge":
            meter.create_observable_gauge(name, callbacks)
        case _:
            raise ValueError(op)
    return record


if __name__ == "__main__":
    main()
