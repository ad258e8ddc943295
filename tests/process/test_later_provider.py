"""Providers and processors of a program's own, beside otel_rl's, which are the global ones."""

import sys
import textwrap
from pathlib import Path

import pytest

from tests.process.commands import clean_environment, jsonl_rows, otel_rl
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

STEPS = 5

SCRIPT = f"""
    from opentelemetry import metrics

    library = metrics.get_meter("library")  # otel_rl's provider is the global one from here on
    loss, tokens = library.create_gauge("loss"), library.create_counter("tokens")

    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=600_000)
    own = MeterProvider([reader])
    metrics.set_meter_provider(own)
    if {{uses_its_own}}:
        own.get_meter("direct").create_gauge("direct").set(7.0)
    for step in range({STEPS}):
        loss.set(step + 0.5, {{{{"rl.loop.iteration": step}}}})
        tokens.add(10)
    assert metrics.get_meter_provider().force_flush(60_000)
    own.shutdown()
"""


@pytest.mark.parametrize("uses_its_own", slow_after(1, [True, False]))
def test_the_run_has_each_value_once(tmp_path: Path, *, uses_its_own: bool) -> None:
    script = textwrap.dedent(SCRIPT.format(uses_its_own=uses_its_own))
    (tmp_path / "train.py").write_text(script)
    done = otel_rl(
        "run", "--experiment", "e", "--role", "trainer", "--tracker", "jsonl", "--",
        sys.executable, "train.py", cwd=tmp_path, env=clean_environment(tmp_path),
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "Overriding of current MeterProvider is not allowed" in done.err
    rows = jsonl_rows(tmp_path, "e")
    losses = [
        (row.step, row.values["trainer/loss"]) for row in rows if "trainer/loss" in row.values
    ]
    assert losses == [(step, step + 0.5) for step in range(STEPS)]
    last = {key: value for row in rows for key, value in row.values.items()}
    assert last["trainer/tokens"] == STEPS * 10
    directs = [value for key, value in last.items() if key.endswith("direct")]
    assert directs == ([7.0] if uses_its_own else [])
    if not uses_its_own:
        assert [key for key in last if key.startswith("service/") and key.endswith("alive")] == [
            "service/trainer/alive"
        ]


@pytest.mark.slow
def test_spans_go_to_a_processor_of_the_program_to_the_last_one(tmp_path: Path) -> None:
    script = """
    from opentelemetry import trace

    library = trace.get_tracer("library")

    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    own = BatchSpanProcessor(ConsoleSpanExporter(), schedule_delay_millis=600_000)
    trace.get_tracer_provider().add_span_processor(own)
    library.start_span("the last one").end()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    done = otel_rl(
        "run", "--experiment", "e", "--role", "trainer", "--tracker", "jsonl", "--",
        sys.executable, "train.py", cwd=tmp_path, env=clean_environment(tmp_path),
    )  # fmt: skip
    assert done.status == 0, done.err
    assert '"name": "the last one"' in done.out
