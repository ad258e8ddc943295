import gc
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

import otel_rl
from otel_rl.semconv.names import RL_WORKER_GC_TIME
from otel_rl.worker.phases.flows import GcTime
from tests.support.otlp_sink import Sink, sums
from tests.support.waiting import collect_garbage


@pytest.fixture(autouse=True)
def callbacks_are_put_back() -> Iterator[None]:
    before = [*gc.callbacks]
    yield
    gc.callbacks[:] = before


@pytest.fixture
def in_a_phase() -> Iterator[None]:
    with otel_rl.phase("train"):
        yield


def shown() -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    GcTime(MeterProvider([reader]).get_meter("test")).start()
    return reader


def total_s(reader: InMemoryMetricReader) -> float:
    data = reader.get_metrics_data()
    assert data is not None
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    (point,) = metric.data.data_points
    assert metric.name == RL_WORKER_GC_TIME
    assert isinstance(point, NumberDataPoint)
    return point.value


def test_every_collection_adds_its_time(in_a_phase: None) -> None:
    reader = shown()
    before_s = total_s(reader)
    collect_garbage()
    after_s = total_s(reader)
    assert after_s > before_s


def test_it_can_be_turned_off(
    sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_GC", "off")
    before = [*gc.callbacks]
    otel_rl.init(experiment="e", role="trainer", endpoint=sink.url, export_interval_s=60)
    assert gc.callbacks == before
    with otel_rl.phase("train"):
        collect_garbage()
    assert otel_rl.finish(timeout_s=60)
    assert sums(sink.metrics, RL_WORKER_GC_TIME) == {}


def test_nothing_is_shown_before_it_is_started_and_in_a_fork(in_a_phase: None) -> None:
    reader = InMemoryMetricReader()
    gc_time = GcTime(MeterProvider([reader]).get_meter("test"))
    collect_garbage()
    assert reader.get_metrics_data() is None
    gc_time.start()
    collect_garbage()
    assert total_s(reader) > 0
    gc_time.forget()
    before = len(gc.callbacks)
    assert reader.get_metrics_data() is None
    gc_time.start()
    gc_time.start()
    assert len(gc.callbacks) == before + 1


def test_by_itself_it_begins_with_the_first_phase() -> None:
    reader = shown()
    assert reader.get_metrics_data() is None
    with otel_rl.phase("train"):
        assert total_s(reader) >= 0
    collect_garbage()
    assert total_s(reader) > 0


def test_each_start_begins_with_zero_and_nothing_is_added_after_the_end(in_a_phase: None) -> None:
    reader = InMemoryMetricReader()
    gc_time = GcTime(MeterProvider([reader]).get_meter("test"))
    gc_time.start()
    collect_garbage()
    gc_time.stop()
    ended_s = total_s(reader)
    assert ended_s > 0
    gc.disable()  # only what this test collects
    try:
        collect_garbage()
        assert total_s(reader) == ended_s
        gc_time.start()
        assert total_s(reader) == 0
        collect_garbage()
        assert total_s(reader) > 0
    finally:
        gc.enable()


def test_a_program_may_remove_every_callback() -> None:
    gc_time = GcTime(MeterProvider([InMemoryMetricReader()]).get_meter("test"))
    gc_time.start()
    gc.callbacks.clear()
    gc_time.stop()
    gc_time.forget()


def test_a_worker_that_has_ended_leaves_no_callback(sink: Sink, clean_environment: None) -> None:
    before = [*gc.callbacks]
    for _ in range(2):
        otel_rl.init(experiment="e", role="trainer", endpoint=sink.url, export_interval_s=60)
        assert len(gc.callbacks) == len(before) + 1
        assert otel_rl.finish(timeout_s=60)
        assert gc.callbacks == before
