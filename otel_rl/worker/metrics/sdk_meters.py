"""SDK providers for every instrument except synchronous gauges.

Counters are cumulative, so that a lost export loses no total. Histograms are delta and exponential,
so that minimum and maximum belong to the interval and merging is exact; an instrument that advises
explicit buckets gets those.
"""

from threading import Lock

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
    """SDK providers for one resource: for each name of a scope, and each default of histograms.

    One cannot have both defaults, and one with a View warns of instruments of one name in different
    scopes, such as ``http.client.duration`` of two HTTP clients. Any thread may call any method.

    Args:
        resource: Resource of the measurements; fixed, a fork needs a new ``SdkMeters``.
    """

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        # _lock guards the dict below.
        self._lock = Lock()
        self._providers: dict[tuple[str, bool], tuple[MeterProvider, InMemoryMetricReader]] = {}

    def meter(self, scope: InstrumentationScope, *, advised: bool = False) -> Meter:
        """Return the meter of ``scope``; with explicit histogram buckets if ``advised``."""
        with self._lock:
            found = self._providers.get((scope.name, advised))
            if found is None:
                found = self._made(advised=advised)
                self._providers[scope.name, advised] = found
        provider, _ = found
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
        with self._lock:
            readers = [reader for _, reader in self._providers.values()]
        for reader in readers:
            data = reader.get_metrics_data()
            if data is not None:
                too_large += encode_sdk(data, intervals, packer)
        return too_large

    def _made(self, *, advised: bool) -> tuple[MeterProvider, InMemoryMetricReader]:
        delta: dict[type, AggregationTemporality] = {Histogram: AggregationTemporality.DELTA}
        reader = InMemoryMetricReader(
            delta, None if advised else {Histogram: ExponentialBucketHistogramAggregation()}
        )
        provider = MeterProvider(
            [reader], self._resource, shutdown_on_exit=False, views=[without_steps()]
        )
        return provider, reader


def without_steps() -> View:
    """Return a View that removes the step, which would make a new series every step."""
    return View(instrument_name="*", attribute_keys=AllBut(RL_LOOP_ITERATION))
