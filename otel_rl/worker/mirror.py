"""What metric readers of the program's own see: every instrument again, in an SDK of their own.

otel_rl's exporter is no reader, and two cannot share one SDK: each of its histograms starts anew
when they are exported. Costs nothing as long as the program adds no reader.
"""

from opentelemetry.context import Context
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import Attributes

from otel_rl.worker.guard import Guard
from otel_rl.worker.instruments import Adds, Records
from otel_rl.worker.sdk import without_steps

__all__ = ["AddsTwice", "Mirror", "RecordsTwice"]


class Mirror:
    """An SDK for the program's readers. Never raises.

    Args:
        resource: Whose measurements these are; a forked child keeps its parent's.
        guard: Catches what readers raise.
    """

    def __init__(self, resource: Resource, guard: Guard) -> None:
        self._guard = guard
        self._provider = MeterProvider(
            (), resource, shutdown_on_exit=False, views=[without_steps()]
        )

    def meter(self, scope: InstrumentationScope) -> Meter:
        """The meter of ``scope``."""
        return self._provider.get_meter(
            scope.name, scope.version, scope.schema_url, scope.attributes
        )

    def add(self, reader: MetricReader) -> None:
        """See ``opentelemetry.sdk.metrics.MeterProvider.add_metric_reader``."""
        with self._guard:
            self._provider.add_metric_reader(reader)

    def remove(self, reader: MetricReader) -> None:
        """See ``opentelemetry.sdk.metrics.MeterProvider.remove_metric_reader``."""
        with self._guard:
            self._provider.remove_metric_reader(reader)

    def flush(self, timeout_s: float) -> bool:
        """Let the readers export. False if one could not in time."""
        try:
            return self._provider.force_flush(timeout_s * 1000)
        except Exception as error:  # noqa: BLE001  # the SDK raises a bare one for what readers do
            self._guard.warn("readers", "A metric reader could not be flushed.", error=error)
            return False

    def shutdown(self, timeout_s: float) -> None:
        """Let the readers export for the last time."""
        try:
            self._provider.shutdown(timeout_s * 1000)
        except Exception as error:  # noqa: BLE001  # the SDK raises a bare one for what readers do
            self._guard.warn("readers", "A metric reader could not be shut down.", error=error)


class AddsTwice:
    """A counter, or up-down counter, and its mirror image."""

    def __init__(self, own: Adds, mirrored: Adds) -> None:
        self._both = (own, mirrored)

    def add(
        self, amount: float, attributes: Attributes = None, context: Context | None = None
    ) -> None:
        """See ``opentelemetry.metrics.Counter.add``."""
        for one in self._both:
            one.add(amount, attributes, context)


class RecordsTwice:
    """A histogram and its mirror image."""

    def __init__(self, own: Records, mirrored: Records) -> None:
        self._both = (own, mirrored)

    def record(
        self, amount: float, attributes: Attributes = None, context: Context | None = None
    ) -> None:
        """See ``opentelemetry.metrics.Histogram.record``."""
        for one in self._both:
            one.record(amount, attributes, context)
