"""A stranger's program with the stock SDK, slow from its first step, is told what bounds it."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from tests.process.commands import otel_rl, otel_rl_here

pytestmark = pytest.mark.process

# Its clock is its own: a step of 10 s, of which the weights take 6 s. Nothing waits for anything.
PROGRAM = """
    import time

    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from opentelemetry.trace import set_span_in_context

    resource = Resource.create({"service.name": "my-trainer"})
    metrics = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource)
    traces = TracerProvider(resource=resource)
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = traces.get_tracer("mine")
    took, loss = (metrics.get_meter("mine").create_gauge(name) for name in ("step_time", "loss"))
    now_ns = time.time_ns() - 400 * 10**9
    for step in range(30):
        begun_ns = now_ns
        of_step = {"rl.loop.iteration": step}
        root = tracer.start_span("rl.loop", start_time=now_ns, attributes=of_step)
        for name, seconds in (("rollout", 2), ("update_policy", 2), ("broadcast_weights", 6)):
            part = tracer.start_span(name, set_span_in_context(root), start_time=now_ns)
            now_ns += seconds * 10**9 + step % 3 * 10**7
            part.end(now_ns)
        root.end(now_ns)
        took.set((now_ns - begun_ns) / 1e9, of_step)
        loss.set(1 / (1 + step), of_step)
        metrics.force_flush()
        traces.force_flush()
    metrics.shutdown()
    traces.shutdown()
"""


@pytest.mark.slow
def test_a_stock_program_that_is_slow_from_its_start_is_told_what_bounds_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    done = otel_rl("run", "--experiment", "e", "--", sys.executable, script, cwd=tmp_path)
    assert done.status == 0, done
    words = ("diagnose", "--data", next((tmp_path / ".otel_rl").iterdir()))
    told = json.loads(otel_rl_here(*words, "--json", cwd=tmp_path).out)
    first = told["observations"][0]
    assert (told["verdict"], told["causes"]) == ("beyond a reference", [])
    assert (first["kind"], first["is_beyond"], first["phase"]) == (
        "sync_share",
        True,
        "broadcast_weights",
    )
    assert first["seconds"] == pytest.approx(6.0, rel=0.02)
    assert first["step_s"] == pytest.approx(10.0, rel=0.02)
    lines = otel_rl_here(*words, cwd=tmp_path).out.splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("beyond its reference: "))
    assert "broadcast_weights of my-trainer takes 6.0" in lines[place]
    assert "(60%)" in lines[place]
    assert lines[place].endswith("without it a step takes 4.02 s")
    assert lines[place + 3].startswith("     try: send weights less often")
