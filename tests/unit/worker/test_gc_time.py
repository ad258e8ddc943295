import gc
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from otel_rl.semconv.names import RL_WORKER_GC_TIME
from otel_rl.worker.gc_time import GC_VARIABLE, show_gc_time


@pytest.fixture(autouse=True)
def callbacks_are_put_back() -> Iterator[None]:
    before = [*gc.callbacks]
    yield
    gc.callbacks[:] = before


def shown() -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    show_gc_time(MeterProvider([reader]).get_meter("test"))
    return reader


def total_s(reader: InMemoryMetricReader) -> float:
    data = reader.get_metrics_data()
    assert data is not None
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    (point,) = metric.data.data_points
    assert metric.name == RL_WORKER_GC_TIME
    assert isinstance(point, NumberDataPoint)
    return point.value


def test_every_collection_adds_its_time() -> None:
    reader = shown()
    before_s = total_s(reader)
    gc.collect()
    after_s = total_s(reader)
    assert after_s > before_s


@pytest.mark.parametrize("no", ["0", "false"])
def test_it_can_be_turned_off(no: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GC_VARIABLE, no)
    before = len(gc.callbacks)
    assert shown().get_metrics_data() is None
    assert len(gc.callbacks) == before
