"""Jaeger gets whole steps, and what failed or was slow; the bridge gets everything."""

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from google.protobuf.message import Message
from opentelemetry.context import Context
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from otel_rl.bridge.rows.messages import SAMPLED
from otel_rl.run_id import run_id
from otel_rl.semconv.spec import BLOCK_STEPS
from otel_rl.worker.tracing import StepSampler
from tests.faults.keeper import wait_for
from tests.lab.running import CONFIGURATIONS, Bridge, Collector
from tests.lab.site import BRIDGE, gateway_of
from tests.support import plain_http
from tests.support.otlp_requests import Attributes, gauge, key_values, metrics_request, point
from tests.support.otlp_sink import Sink, serve

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

STEPS = 20 * BLOCK_STEPS
TRAINER: Attributes = {"rl.experiment.name": "sampling", "rl.worker.role": "trainer"}
ARRIVES_S = 180.0
S = 1_000_000_000

STANDING_OUT = {SLOW := "trainer/1", FAILED := "trainer/2"}


@pytest.fixture
def sinks() -> Iterator[tuple[Sink, Sink]]:
    with serve(Sink()) as bridge, serve(Sink()) as jaeger:
        yield bridge, jaeger


def test_jaeger_gets_whole_steps_and_what_stands_out(
    sinks: tuple[Sink, Sink], tmp_path: Path
) -> None:
    bridge, jaeger = sinks
    settings = {
        "OTEL_RL_BRIDGE_URL": bridge.url,
        "OTEL_RL_JAEGER_URL": jaeger.url,
        "OTEL_RL_SLOW_MS": "5000",
        "OTEL_RL_KEPT_STEPS": "[89a-f]",
    }
    sampling = (CONFIGURATIONS / "sampling.yaml").read_text()
    overlay = sampling.replace("decision_wait: 60s", "decision_wait: 1s")
    traces = [trace for step in range(STEPS) for trace in traces_of(step)]
    numbers = {trace.name: number_of(trace) for trace in traces}
    with Collector("gateway", tmp_path, settings, overlay) as gateway:
        for some in batched(traces, 32):
            send(gateway, some)
        is_kept = {name for name, number in numbers.items() if number >= 1 << 55}
        assert is_kept.isdisjoint(STANDING_OUT)
        expected = is_kept | STANDING_OUT
        wait_for(partial(has_all, bridge, numbers), ARRIVES_S)
        wait_for(partial(has_all, jaeger, expected), ARRIVES_S)
    assert spans(bridge) == numbers.keys()
    assert spans(jaeger) == expected
    of_steps = {name.partition("/")[2] for name in is_kept if name.startswith("trainer")}
    assert 0 < len(of_steps) < STEPS
    assert {f"generator/{step}" for step in of_steps} <= expected


def traces_of(step: int) -> Iterator[Span]:
    """The traces of one span each that the processes of a run make for a step."""
    yield trace_of(f"trainer/{step}", {"rl.loop.iteration": step})
    yield trace_of(f"generator/{step}", {"rl.policy.version": step - 1})


def trace_of(name: str, said: Mapping[str, int]) -> Span:
    sampler = StepSampler()
    sampler.run_id = "sampling"
    state = sampler.should_sample(Context(), 1, name, attributes=said).trace_state
    assert state is not None
    start_ns = time.time_ns()
    return Span(
        name=name,
        trace_id=secrets.token_bytes(16),
        span_id=secrets.token_bytes(8),
        trace_state=state.to_header(),
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + (6 * S if name == SLOW else S),
        attributes=key_values(said),
        status=Status(code=Status.STATUS_CODE_ERROR) if name == FAILED else None,
    )


def number_of(trace: Span) -> int:
    """What decides about it: 56 bits."""
    return int(trace.trace_state.removeprefix("ot=rv:").partition(";")[0], 16)


def send(gateway: Collector, traces: Iterable[Span]) -> None:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.extend(key_values(TRAINER))
    resource_spans.scope_spans.add().spans.extend(traces)
    post(gateway, "traces", request)


def batched(traces: Sequence[Span], size: int) -> Iterator[Sequence[Span]]:
    for begin in range(0, len(traces), size):
        yield traces[begin : begin + size]


def spans(sink: Sink) -> set[str]:
    return {
        span.name
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }


def has_all(sink: Sink, names: Mapping[str, int] | set[str]) -> bool:
    return spans(sink) >= set(names)


# Half of all traces, as most people set it: each trace by itself, of whatever process.
HALF = """
exporters:
  {exporter}:
    retry_on_failure: {{initial_interval: 200ms, max_interval: 500ms}}
processors:
  tail_sampling:
    decision_wait: 1s
    policies:
      - {{name: half, type: probabilistic, probabilistic: {{sampling_percentage: 50}}}}
service:
  pipelines:
    traces: {{processors: [memory_limiter, tail_sampling]}}
"""


def test_a_run_is_told_that_its_traces_are_sampled_on_the_way(tmp_path: Path) -> None:
    bridge = Bridge(tmp_path / "bridge", BRIDGE)
    with bridge, gateway_of(bridge, tmp_path / "gateway", overlay=HALF) as gateway:
        begin_ns = time.time_ns() - STEPS * S
        for step in range(STEPS):
            end_ns = begin_ns + (step + 1) * S
            measured = point(1.0, end_ns)
            measured.attributes.extend(key_values({"rl.loop.iteration": step}))
            post(gateway, "metrics", metrics_request(gauge(measured), resource=TRAINER))
            send(gateway, [step_span(step, end_ns)])
        directory = bridge.directory / "data"
        file = directory / f"{run_id('sampling', 'default')}.jsonl"
        assert wait_for(
            lambda: file.exists() and '"critical_path/partial"' in file.read_text(), ARRIVES_S
        )
        assert bridge.stop() == 0, bridge.said()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    (words,) = [row["labels"][SAMPLED] for row in rows if SAMPLED in row.get("labels", {})]
    assert "steps" in words
    paths = [row for row in rows if "critical_path/longest" in row.get("labels", {})]
    assert 0 < len(paths) < STEPS
    assert any("critical_path/partial" in row["values"] for row in paths)


def step_span(step: int, end_ns: int) -> Span:
    """A step of a trainer, with a trace of its own."""
    return Span(
        name="rl.loop",
        trace_id=secrets.token_bytes(16),
        span_id=secrets.token_bytes(8),
        start_time_unix_nano=end_ns - S,
        end_time_unix_nano=end_ns,
        attributes=key_values({"rl.loop.iteration": step}),
    )


def post(gateway: Collector, signal: str, request: Message) -> None:
    plain_http.post(
        f"{gateway.url}/v1/{signal}",
        content=request.SerializeToString(),
        headers={"content-type": "application/x-protobuf"},
        timeout=60,
    ).raise_for_status()
