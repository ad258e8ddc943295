"""One program under the stock SDK and under otel_rl: what it sends differs where ADR 0 says so."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict

from tests.otlp_sink import Sink, serve
from tests.process.commands import clean_environment

pytestmark = pytest.mark.process

STOCK = """
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader

exporter = OTLPMetricExporter(preferred_temporality={Histogram: AggregationTemporality.DELTA})
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter)]))
"""

OTEL_RL = """
import otel_rl

otel_rl.init(experiment="e", role="trainer", index=0, export_interval_s=60)
step = otel_rl.step(7)
step.__enter__()
"""

PROGRAM = """
meter = metrics.get_meter("my.trainer", "1.2", None, "https://schema/1", {"a": 1})
observed = [lambda _: [metrics.Observation(5, {"device": 0}), metrics.Observation(6.5)]]
meter.create_observable_counter("seen", observed, "1", "seen so far")
meter.create_observable_up_down_counter("level", observed)
meter.create_observable_gauge("temperature", observed, "Cel")
tokens = meter.create_counter("tokens", "{token}", "tokens so far")
depth = meter.create_up_down_counter("depth")
ages = meter.create_histogram("age", "s", explicit_bucket_boundaries_advisory=[1.0, 5.0])
loss = meter.create_gauge("loss", "1", "the loss")
for number in range(100):
    tokens.add(number)
    tokens.add(0.5, {"kind": "prompt", "lists": [1, 2], "truth": True})
    depth.add(1 if number % 3 else -2)
    ages.record(number)
    ages.record(number / 7, {"kind": "a"})
    loss.set(number / 3)
    loss.set(number, {"group": 1})
metrics.get_meter_provider().force_flush()
"""


def sent(prelude: str, directory: Path) -> Mapping[str, object]:
    """The metrics of the program's own scope, without times and exemplars."""
    with serve(Sink()) as sink:
        environment = clean_environment(
            directory,
            OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=(
                "base2_exponential_bucket_histogram"
            ),
        )
        program = f"from opentelemetry import metrics\n{prelude}{PROGRAM}import os\nos._exit(0)"
        subprocess.run([sys.executable, "-c", program], env=environment, cwd=directory, check=True)
        return dict(_metrics(sink))


def _metrics(sink: Sink) -> Iterator[tuple[str, object]]:
    for request in sink.metrics:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                if scope.scope.name == "my.trainer":
                    about = MessageToDict(scope.scope), scope.schema_url
                    for metric in scope.metrics:
                        yield metric.name, _plain((about, MessageToDict(metric)))


def _plain(part: object) -> object:
    if isinstance(part, dict):
        return {
            key: _plain(value)
            for key, value in part.items()
            if not key.endswith("UnixNano") and key != "exemplars"
        }
    if isinstance(part, list | tuple):
        return sorted(map(_plain, part), key=repr)
    return part


def test_a_program_sends_under_otel_rl_what_it_sends_under_the_stock_sdk(tmp_path: Path) -> None:
    stock, worker = sent(STOCK, tmp_path), sent(OTEL_RL, tmp_path)
    assert sorted(stock) == sorted(
        ["seen", "level", "temperature", "tokens", "depth", "age", "loss"]
    )
    assert worker == stock
