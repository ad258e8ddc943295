"""One program under the stock SDK and under otel_rl: what it sends differs where ADR 0 says so."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from tests.process.commands import clean_environment
from tests.support.otlp_sink import Sink, pairs, serve

pytestmark = pytest.mark.process

STOCK = """
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

exporter = OTLPMetricExporter(preferred_temporality={Histogram: AggregationTemporality.DELTA})
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter)]))
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
"""

OTEL_RL = """
import otel_rl

otel_rl.init(experiment="e", role="trainer", index=0, export_interval_s=60)
"""

IN_A_STEP = f"""{OTEL_RL}
step = otel_rl.step(7)
step.__enter__()
"""

METRICS = """
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

SPANS = """
tracer = trace.get_tracer("my.trainer", "1.2", None, "https://schema/1", {"a": 1})
kind = trace.SpanKind.CLIENT
with tracer.start_as_current_span("rollout", attributes={"n": 3, "lists": [1, 2]}) as rollout:
    rollout.add_event("token", {"first": True})
    links = [trace.Link(rollout.get_span_context(), {"of": "rollout"})]
    with tracer.start_as_current_span("reward", kind=kind, links=links) as reward:
        reward.set_status(trace.Status(trace.StatusCode.ERROR, "no answer"))
        reward.record_exception(ValueError("wrong"))
trace.get_tracer_provider().force_flush()
"""


def sent(prelude: str, program: str, directory: Path) -> Sink:
    """What a program sends."""
    with serve(Sink()) as sink:
        environment = clean_environment(
            directory,
            OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=(
                "base2_exponential_bucket_histogram"
            ),
        )
        code = f"from opentelemetry import metrics, trace\n{prelude}{program}import os\nos._exit(0)"
        subprocess.run([sys.executable, "-c", code], env=environment, cwd=directory, check=True)
        return sink


def _scopes(sink: Sink) -> Iterator[Any]:
    requests = [one.resource_metrics for one in sink.metrics]
    traces = [one.resource_spans for one in sink.traces]
    yield from (scope for many in requests for one in many for scope in one.scope_metrics)
    yield from (scope for many in traces for one in many for scope in one.scope_spans)


def of_the_program(
    sink: Sink, items_of: Callable[[Any], Any], *left_out: str
) -> Mapping[str, object]:
    """The items of the program's own scope by name, without what differs by its nature."""
    return {
        item.name: _plain((MessageToDict(one.scope), one.schema_url, MessageToDict(item)), left_out)
        for one in _scopes(sink)
        if one.scope.name == "my.trainer"
        for item in items_of(one)
    }


def _plain(part: object, left_out: tuple[str, ...]) -> object:
    if isinstance(part, dict):
        return {
            key: _plain(value, left_out)
            for key, value in part.items()
            if not key.endswith("UnixNano") and key not in left_out
        }
    if isinstance(part, list | tuple):
        return sorted((_plain(one, left_out) for one in part), key=repr)
    return part


def test_a_program_sends_under_otel_rl_what_it_sends_under_the_stock_sdk(tmp_path: Path) -> None:
    stock, worker = (
        of_the_program(sent(way, METRICS, tmp_path), lambda scope: scope.metrics, "exemplars")
        for way in (STOCK, IN_A_STEP)
    )
    assert sorted(stock) == sorted(
        ["seen", "level", "temperature", "tokens", "depth", "age", "loss"]
    )
    assert worker == stock


def test_its_spans_are_the_same_but_for_their_ids(tmp_path: Path) -> None:
    drawn = "traceId", "spanId", "parentSpanId", "attributes.exception.stacktrace"
    stock, worker = (
        of_the_program(sent(way, SPANS, tmp_path), lambda scope: scope.spans, *drawn)
        for way in (STOCK, OTEL_RL)
    )
    assert sorted(stock) == ["reward", "rollout"]
    assert worker == stock


def test_beside_it_are_only_scopes_of_otel_rl_and_attributes_of_the_worker(tmp_path: Path) -> None:
    stock, worker = (sent(way, METRICS + SPANS, tmp_path) for way in (STOCK, OTEL_RL))
    more = {one.scope.name for one in _scopes(worker)} - {one.scope.name for one in _scopes(stock)}
    assert more
    assert {name.split(".")[0] for name in more} == {"otel_rl"}
    (of_stock,) = {_resource(one) for one in (*stock.metrics, *stock.traces)}
    (of_worker,) = {_resource(one) for one in (*worker.metrics, *worker.traces)}
    changed = {key for key, value in of_stock if (key, value) not in of_worker}
    added = {key for key, _ in of_worker} - {key for key, _ in of_stock}
    assert changed <= {"service.name", "service.instance.id"}
    assert {key for key in added if not key.startswith("rl.")} <= {
        *("host.name", "process.pid", "service.instance.id"),
        *("telemetry.distro.name", "telemetry.distro.version"),
    }


def _resource(request: Any) -> frozenset[tuple[str, str]]:
    (one,) = (
        request.resource_metrics if hasattr(request, "resource_metrics") else request.resource_spans
    )
    return frozenset((key, repr(value)) for key, value in pairs(one.resource.attributes).items())
