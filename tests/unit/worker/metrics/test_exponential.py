import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ExponentialHistogramDataPoint,
    InMemoryMetricReader,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation

from otel_rl.worker.metrics.exponential import ExponentialBuckets
from otel_rl.worker.otlp.step_shares import Buckets

NUMBERS = st.lists(
    st.one_of(st.floats(0, 1e300), st.integers(0, 2**80), st.floats(0, 1, width=32)), min_size=1
)


def buckets(values: list[float]) -> Buckets:
    one = ExponentialBuckets()
    one.extend(values)
    taken = one.taken()
    assert taken is not None
    return taken


@given(NUMBERS)
def test_every_number_is_in_a_bucket_that_holds_it(values: list[float]) -> None:
    found = buckets(values)
    assert found.zeros + sum(found.counts.values()) == found.count == len(values)
    assert max(found.counts, default=0) - min(found.counts, default=0) < 160
    assert (found.minimum, found.maximum) == (min(values), max(values))
    for value in values:
        if value:
            place = math.log2(value) * 2.0**found.scale
            assert any(index - 1e-3 <= place <= index + 1 + 1e-3 for index in found.counts)


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_parts_are_the_whole(parts: list[list[float]]) -> None:
    whole = buckets([value for part in parts for value in part])
    added, merged = ExponentialBuckets(), ExponentialBuckets()
    for part in parts:
        other = ExponentialBuckets()
        added.extend(part)
        other.extend(part)
        merged.merge(other)
    for one in (added.taken(), merged.taken()):
        assert one is not None
        assert (one.count, one.zeros, one.scale) == (whole.count, whole.zeros, whole.scale)
        assert one.total == pytest.approx(whole.total)
        if whole.scale < 20:  # rounding at the finest scale
            assert one.counts == whole.counts


@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_the_resolution_is_that_of_the_sdk(spread: float) -> None:
    chance = random.Random(1)
    values = [chance.lognormvariate(0, spread) for _ in range(2000)]
    reader = InMemoryMetricReader(
        {Histogram: AggregationTemporality.DELTA},
        {Histogram: ExponentialBucketHistogramAggregation()},
    )
    provider = MeterProvider([reader], shutdown_on_exit=False)
    histogram = provider.get_meter("m").create_histogram("h")
    for value in values:
        histogram.record(value)
    data = reader.get_metrics_data()
    assert data is not None
    (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    assert isinstance(point, ExponentialHistogramDataPoint)
    found = buckets(values)
    assert (found.scale, found.count) == (point.scale, point.count)
    assert found.total == pytest.approx(point.sum, rel=1e-12)  # the order of sums is not the SDK's
    expected = enumerate(point.positive.bucket_counts, point.positive.offset)
    assert found.counts == {index: number for index, number in expected if number}


def test_without_numbers_there_is_nothing() -> None:
    one = ExponentialBuckets()
    one.extend([])
    assert one.taken() is None
