"""SDK providers for every instrument except synchronous gauges.

Counters are cumulative, so that a lost export loses no total. Histograms are delta and exponential,
so that minimum and maximum belong to the interval and merging is exact; an instrument that advises
explicit buckets gets those.
"""

from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.semconv.names import RL_LOOP_ITERATION
from otel_rl.worker.otlp.intervals import Intervals
from otel_rl.worker.otlp.request_packer import RequestPacker
from otel_rl.worker.otlp.sdk_metrics import encode_sdk

__all__ = ["AllBut", "SdkMeters", "without_steps"]


class AllBut(set[str]):
    """Set of every string except those given: drops attributes in a View."""

    def __init__(self, *dropped: str) -> None:
        super().__init__()
        self._dropped = frozenset(dropped)

    def __contains__(self, key: object) -> bool:
        return key not in self._dropped


class SdkMeters:
    """Two SDK providers for one resource, because one cannot have both histogram defaults.

    Args:
        resource: Resource of the measurements; fixed, a fork needs a new ``SdkMeters``.
    """

    def __init__(self, resource: Resource) -> None:
        delta: dict[type, AggregationTemporality] = {Histogram: AggregationTemporality.DELTA}
        self._exponential = InMemoryMetricReader(
            delta, {Histogram: ExponentialBucketHistogramAggregation()}
        )
        self._explicit = InMemoryMetricReader(delta)
        self._main = _provider(resource, self._exponential)
        self._advised = _provider(resource, self._explicit)

    def meter(self, scope: InstrumentationScope, *, advised: bool = False) -> Meter:
        """Return the meter of ``scope``; with explicit histogram buckets if ``advised``."""
        provider = self._advised if advised else self._main
        return provider.get_meter(scope.name, scope.version, scope.schema_url, scope.attributes)

    def pack(self, intervals: Intervals, packer: RequestPacker) -> int:
        """Run the callbacks and add the recorded data to requests.

        Args:
            intervals: Of all exports of the process.
            packer: Of metrics of the resource.

        Returns:
            The number of points that no request can hold.
        """
        too_large = 0
        for reader in (self._exponential, self._explicit):
            data = reader.get_metrics_data()
            if data is not None:
                too_large += encode_sdk(data, intervals, packer)
        return too_large


def without_steps() -> View:
    """Return a View that removes the step, which would make a new series every step."""
    return View(instrument_name="*", attribute_keys=AllBut(RL_LOOP_ITERATION))


def _provider(resource: Resource, reader: InMemoryMetricReader) -> MeterProvider:
    return MeterProvider([reader], resource, shutdown_on_exit=False, views=[without_steps()])
