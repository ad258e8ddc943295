"""Spans with prompts and completions reach MLflow; the bridge gets all spans, as ever."""

import json
import secrets
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.faults.keeper import wait_for
from tests.lab.running import CONFIGURATIONS, Collector
from tests.support import plain_http
from tests.support.otlp_requests import key_values
from tests.support.otlp_sink import Sink, serve
from tests.trackers.programs import MlflowServer

pytestmark = pytest.mark.process

ARRIVES_S = 90.0
PROMPT = '[{"role":"user","parts":[{"type":"text","content":"2+2?"}]}]'
SAMPLE: Mapping[str, str | int] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "qwen",
    "gen_ai.input.messages": PROMPT,
    "gen_ai.output.messages": '[{"role":"assistant","parts":[{"type":"text","content":"4"}]}]',
    "rl.loop.iteration": 3,
}


def span(name: str, trace: bytes, attributes: Mapping[str, str | int], parent: bytes = b"") -> Span:
    start_ns = time.time_ns()
    return Span(
        name=name,
        trace_id=trace,
        span_id=secrets.token_bytes(8),
        parent_span_id=parent,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + 1_000_000,
        attributes=key_values(dict(attributes)),
    )


def names(sink: Sink) -> set[str]:
    return {
        span.name
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }


def test_mlflow_gets_the_spans_with_gen_ai_content_and_the_bridge_gets_all(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    trace = secrets.token_bytes(16)
    step = span("step", trace, {"rl.loop.iteration": 3})
    sample = span("sample", trace, SAMPLE, step.span_id)
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.extend(key_values({"rl.experiment.name": "grpo"}))
    resource.scope_spans.add().spans.extend([step, sample])
    overlay = (CONFIGURATIONS / "gen_ai.yaml").read_text()
    with MlflowServer(tmp_path / "mlflow") as mlflow, serve(Sink()) as bridge:
        client = MlflowClient(mlflow.url)
        experiment = client.create_experiment("samples")
        settings = {
            "OTEL_RL_BRIDGE_URL": bridge.url,
            "OTEL_RL_JAEGER_URL": bridge.url,
            "OTEL_RL_MLFLOW_URL": mlflow.url,
            "OTEL_RL_MLFLOW_EXPERIMENT": experiment,
        }
        with Collector("gateway", tmp_path / "gateway", settings, overlay) as gateway:
            plain_http.post(
                f"{gateway.url}/v1/traces",
                content=request.SerializeToString(),
                headers={"content-type": "application/x-protobuf"},
                timeout=60,
            ).raise_for_status()
            found = partial(client.search_traces, locations=[experiment])
            assert wait_for(lambda: any(one.data.spans for one in found()), ARRIVES_S)
            (arrived,) = found()
            assert wait_for(lambda: names(bridge) == {"step", "sample"}, ARRIVES_S)
    assert [one.name for one in arrived.data.spans] == ["sample"]
    attributes = arrived.data.spans[0].attributes
    assert attributes["gen_ai.input.messages"] == json.loads(PROMPT)
