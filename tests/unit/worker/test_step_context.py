"""A step that is set once reaches gauges and spans of libraries that do not know it."""

import asyncio
import inspect
from collections.abc import Iterator

import opentelemetry.context
import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk import metrics as sdk_metrics
from opentelemetry.sdk import trace as sdk_trace

import otel_rl
from otel_rl.errors import ConfigError
from tests.otlp_sink import Sink
from tests.unit.worker.metrics.test_exemplar_view import collected, exact_provider


@pytest.fixture
def on(sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    monkeypatch.setenv("OTEL_RL_STEP_CONTEXT", "on")
    otel_rl.init(experiment="exp", role="trainer", endpoint=sink.url, export_interval_s=60)
    yield sink
    otel_rl.shutdown(timeout_s=60)


def library(value: float) -> None:
    """Record as an instrumentation library does, which knows of no training."""
    metrics.get_meter("library").create_gauge("fill").set(value, {"pool": "a"})


def steps_of(sink: Sink) -> list[tuple[float, int | None]]:
    assert otel_rl.flush(timeout_s=60)
    return [(found.value, found.step) for found in sink.measurements("fill")]


def step_of_spans(sink: Sink) -> dict[str, object]:
    assert otel_rl.flush(timeout_s=60)
    return {
        span.name: attribute.value.int_value
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        for attribute in span.attributes
        if attribute.key == "rl.loop.iteration"
    }


def test_a_gauge_of_a_library_is_at_the_step_around_it(on: Sink) -> None:
    library(0.5)
    with otel_rl.step(7), otel_rl.phase("train"):
        library(1.5)
    library(2.5)
    assert steps_of(on) == [(0.5, None), (1.5, 7), (2.5, None)]


def test_a_step_of_the_measurement_itself_counts(on: Sink) -> None:
    gauge = metrics.get_meter("library").create_gauge("fill")
    with otel_rl.step(7):
        gauge.set(1.5, {"rl.loop.iteration": 3})
        gauge.set(2.5)
    assert steps_of(on) == [(1.5, 3), (2.5, 7)]


def test_each_task_is_in_its_own_step(on: Sink) -> None:
    async def train(number: int) -> None:
        with otel_rl.step(number):
            await asyncio.sleep(0)
            library(float(number))

    async def both() -> None:
        await asyncio.gather(train(1), train(2))

    asyncio.run(both())
    assert sorted(steps_of(on)) == [(1.0, 1), (2.0, 2)]


def test_a_span_of_a_library_has_the_step_around_it(on: Sink) -> None:
    tracer = trace.get_tracer("library")
    with otel_rl.step(7):
        tracer.start_span("request").end()
        tracer.start_span("own", attributes={"rl.loop.iteration": 3}).end()
    tracer.start_span("outside").end()
    found = step_of_spans(on)
    assert {name: found.get(name) for name in ("request", "own", "outside")} == {
        "request": 7,
        "own": 3,
        "outside": None,
    }


def test_a_stock_provider_with_the_exact_view_has_the_step(on: Sink) -> None:
    provider, reader = exact_provider()
    gauge = provider.get_meter("library").create_gauge("fill")
    with otel_rl.step(7):
        gauge.set(1.5)
    assert [(found.value, found.step) for found in collected(reader)] == [(1.5, 7)]


def test_unless_it_is_on_a_gauge_without_a_step_is_a_level(started: Sink) -> None:
    with otel_rl.step(7):
        library(1.5)
    assert steps_of(started) == [(1.5, None)]


def test_another_word_is_refused(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RL_STEP_CONTEXT", "baggage")
    with pytest.raises(ConfigError, match="OTEL_RL_STEP_CONTEXT: must be on or off"):
        otel_rl.init(experiment="exp", role="trainer")


def test_the_sdk_has_no_context_scoped_attributes_yet() -> None:
    """If this fails, ADR 26 says what is replaced by them."""
    names = {*dir(opentelemetry.context), *dir(opentelemetry.context.Context)}
    providers = (sdk_trace.TracerProvider, sdk_metrics.MeterProvider)
    names |= {name for each in providers for name in inspect.signature(each).parameters}
    known = {name for name in names if not name.startswith("__")}
    assert not {name for name in known if "scoped" in name.lower() or "attribute" in name.lower()}
