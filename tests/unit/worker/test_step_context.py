"""What is recorded inside of a step belongs to it, whoever records it; nothing after it does."""

import asyncio
import contextvars
import inspect
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import opentelemetry.context
import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk import metrics as sdk_metrics
from opentelemetry.sdk import trace as sdk_trace

import otel_rl
from otel_rl.worker.api import lineage
from tests.support.otlp_sink import Sink
from tests.unit.test_sdk import collected, exact_provider


def library(value: float) -> None:
    """Record as an instrumentation library does, which knows of no training."""
    metrics.get_meter("library").create_gauge("fill").set(value, {"pool": "a"})


def logged(value: float) -> None:
    otel_rl.log({"fill": value})


def later(value: float) -> None:
    """Log what a device has yet to compute."""
    otel_rl.log({"fill": value, "other": Late(value)})


class Late:
    def __init__(self, value: float) -> None:
        self._value = value

    def __float__(self) -> float:
        return self._value


RECORD = [library, logged, later]


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


@pytest.mark.parametrize("record", RECORD)
def test_what_is_recorded_in_a_step_is_at_it(
    started: Sink, record: Callable[[float], None]
) -> None:
    record(0.5)
    with otel_rl.step(7), otel_rl.phase("train"):
        record(1.5)
    record(2.5)
    assert steps_of(started) == [(0.5, None), (1.5, 7), (2.5, None)]


def test_a_step_at_the_call_wins(started: Sink) -> None:
    gauge = metrics.get_meter("library").create_gauge("fill")
    with otel_rl.step(7):
        gauge.set(1.5, {"rl.loop.iteration": 3})
        gauge.set(2.5)
        otel_rl.log({"logged": 1.5}, step=4)
        otel_rl.log({"logged": 2.5})
    assert steps_of(started) == [(1.5, 3), (2.5, 7)]
    assert [(m.value, m.step) for m in started.measurements("logged")] == [(1.5, 4), (2.5, 7)]


def test_without_spans_a_step_is_known_too(
    sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    otel_rl.init(experiment="exp", role="trainer", endpoint=sink.url, export_interval_s=60)
    try:
        with otel_rl.step(7):
            logged(1.5)
        logged(2.5)
        assert steps_of(sink) == [(1.5, 7), (2.5, None)]
    finally:
        otel_rl.finish(timeout_s=60)


def test_the_step_of_an_earlier_time_does_not_depend_on_what_was_recorded_before(
    started: Sink,
) -> None:
    with otel_rl.step(7):
        during_ns = time.time_ns()
        in_step = contextvars.copy_context()
    for value, at_ns in ((1.5, time.time_ns()), (2.5, during_ns), (3.5, time.time_ns())):
        in_step.run(lambda v, at: otel_rl.log({"fill": v}, at_ns=at), value, at_ns)
    assert steps_of(started) == [(1.5, None), (2.5, 7), (3.5, None)]


@pytest.mark.parametrize("record", RECORD)
def test_each_task_is_in_its_own_step(started: Sink, record: Callable[[float], None]) -> None:
    async def train(number: int) -> None:
        async with otel_rl.step(number):
            await asyncio.sleep(0)
            record(float(number))
            await asyncio.to_thread(record, number + 0.5)
        record(-float(number))

    async def both() -> None:
        await asyncio.gather(train(1), train(2))

    asyncio.run(both())
    assert sorted(steps_of(started)) == [(-2, None), (-1, None), (1, 1), (1.5, 1), (2, 2), (2.5, 2)]


@pytest.mark.parametrize("record", RECORD)
def test_a_thread_with_the_context_is_in_the_step_and_another_is_not(
    started: Sink, record: Callable[[float], None]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        for number in (7, 8):
            with otel_rl.step(number):
                pool.submit(contextvars.copy_context().run, record, float(number)).result()
                pool.submit(record, number + 0.5).result()
    assert steps_of(started) == [(7.0, 7), (7.5, None), (8.0, 8), (8.5, None)]


@pytest.mark.parametrize("record", RECORD)
def test_what_a_task_records_after_its_step_is_in_no_step(
    started: Sink, record: Callable[[float], None]
) -> None:
    async def beyond(ended: asyncio.Event) -> None:
        record(1.0)
        await ended.wait()
        record(2.0)
        with otel_rl.step(8):
            record(3.0)
        record(4.0)

    async def train() -> None:
        ended = asyncio.Event()
        with otel_rl.step(7):
            task = asyncio.create_task(beyond(ended))
            await asyncio.sleep(0)
        ended.set()
        await task

    asyncio.run(train())
    assert steps_of(started) == [(1.0, 7), (2.0, None), (3.0, 8), (4.0, None)]


@pytest.mark.parametrize("record", RECORD)
def test_after_a_step_within_a_step_the_outer_one_goes_on(
    started: Sink, record: Callable[[float], None]
) -> None:
    with otel_rl.step(7):
        record(1.0)
        inner = otel_rl.step(8)
        with inner:
            record(2.0)
            with inner:
                record(2.5)
            context = contextvars.copy_context()
        record(3.0)
        context.run(record, 4.0)  # outlives the inner step only
    record(5.0)
    assert steps_of(started) == [(1, 7), (2, 8), (2.5, 8), (3, 7), (4, 7), (5, None)]


def test_measurements_of_a_step_stay_in_it_if_the_clock_is_set_back(
    started: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    with otel_rl.step(7):
        logged(1.5)
        monkeypatch.setattr("otel_rl.worker.api.phases.time_ns", lambda: 1)
    assert steps_of(started) == [(1.5, 7)]


@pytest.mark.process
def test_a_child_process_is_not_in_the_step_of_its_parent(started: Sink) -> None:
    def child() -> None:
        logged(1.5)
        with otel_rl.step(1):
            logged(2.5)
        otel_rl.flush(timeout_s=60)
        os._exit(0)

    with otel_rl.step(7):
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(60)
        logged(3.5)
    assert sorted(steps_of(started)) == [(1.5, None), (2.5, 1), (3.5, 7)]


def test_samples_and_lineage_are_in_the_step_of_their_context(started: Sink) -> None:
    def stamp() -> str:
        otel_rl.log_samples([{"prompt": "1+1?"}])
        return lineage.stamp()

    stamps: list[str] = []
    with otel_rl.step(7):
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: stamps.append(context.run(stamp)))
        thread.start()
        thread.join(60)
    stamps.append(context.run(stamp))
    origins = [lineage.read(text) for text in stamps]
    assert [origin and origin.step for origin in origins] == [7, None]
    assert otel_rl.flush(timeout_s=60)
    samples = [event.attributes for event in started.events("rl.rollout.sample")]
    assert [sample.get("rl.loop.iteration") for sample in samples] == [7, None]


def test_a_span_of_a_library_has_the_step_around_it(started: Sink) -> None:
    tracer = trace.get_tracer("library")
    with otel_rl.step(7):
        tracer.start_span("request").end()
        tracer.start_span("own", attributes={"rl.loop.iteration": 3}).end()
        context = contextvars.copy_context()
    context.run(lambda: tracer.start_span("beyond").end())
    tracer.start_span("outside").end()
    found = step_of_spans(started)
    assert {name: found.get(name) for name in ("request", "own", "beyond", "outside")} == {
        "request": 7,
        "own": 3,
        "beyond": None,
        "outside": None,
    }


def test_a_stock_provider_with_the_exact_view_has_the_step(started: Sink) -> None:
    provider, reader = exact_provider()
    gauge = provider.get_meter("library").create_gauge("fill")
    with otel_rl.step(7):
        gauge.set(1.5)
        gauge.set(2.5, {"rl.loop.iteration": 3})
        context = contextvars.copy_context()
    context.run(gauge.set, 3.5)
    found = [(found.value, found.step) for found in collected(reader)]
    assert found == [(1.5, 7), (2.5, 3), (3.5, None)]


def test_the_sdk_has_no_context_scoped_attributes_yet() -> None:
    """If this fails, ADR 26 says what is replaced by them."""
    names = {*dir(opentelemetry.context), *dir(opentelemetry.context.Context)}
    providers = (sdk_trace.TracerProvider, sdk_metrics.MeterProvider)
    names |= {name for each in providers for name in inspect.signature(each).parameters}
    known = {name for name in names if not name.startswith("__")}
    assert not {name for name in known if "scoped" in name.lower() or "attribute" in name.lower()}
