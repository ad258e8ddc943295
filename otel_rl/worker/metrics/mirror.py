"""Further SDK that serves metric readers of the program, with a copy of every instrument.

otel_rl's exporter is not a reader, and two cannot share one SDK: an export resets each of its
histograms. Costs nothing as long as the program adds no reader, and no provider of its own. The
copies have an attribute, because a reader may export to the bridge, too.
"""

from collections.abc import Sequence
from typing import Self

from opentelemetry.context import Context
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import Attributes

from otel_rl.semconv.names import OTEL_RL_COPY
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.gauge import without_step
from otel_rl.worker.metrics.instruments import RecordFunction
from otel_rl.worker.metrics.sdk_meters import without_steps

__all__ = ["Mirror", "recorded_in"]


class Mirror:
    """SDK for the program's readers. Never raises.

    Args:
        provider: Has the readers.
        guard: Catches exceptions of readers.
    """

    def __init__(self, provider: MeterProvider, guard: Guard) -> None:
        self._guard = guard
        self._provider = provider

    @classmethod
    def of_readers(cls, resource: Resource, guard: Guard) -> Self:
        """Return one without readers yet.

        Args:
            resource: Resource of the measurements; a forked child keeps its parent's.
            guard: Catches exceptions of readers.
        """
        views = [without_steps()]
        marked = resource.merge(Resource({OTEL_RL_COPY: True}))  # stays where scopes lose theirs
        return cls(MeterProvider((), marked, shutdown_on_exit=False, views=views), guard)

    def meter(self, scope: InstrumentationScope) -> Meter:
        """Return the meter of ``scope``."""
        attributes = {**(scope.attributes or {}), OTEL_RL_COPY: True}
        return self._provider.get_meter(scope.name, scope.version, scope.schema_url, attributes)

    def add(self, reader: MetricReader) -> None:
        """See ``opentelemetry.sdk.metrics.MeterProvider.add_metric_reader``."""
        if not hasattr(self._provider, "add_metric_reader"):
            self._guard.warn(
                "readers",
                "A metric reader was added to otel_rl's MeterProvider and gets nothing: that needs "
                "opentelemetry-sdk 1.43 or newer. Upgrade it, or give the reader to a "
                "MeterProvider of your own.",
            )
            return
        with self._guard:
            self._provider.add_metric_reader(reader)

    def remove(self, reader: MetricReader) -> None:
        """See ``opentelemetry.sdk.metrics.MeterProvider.remove_metric_reader``."""
        with self._guard:
            if hasattr(self._provider, "remove_metric_reader"):
                self._provider.remove_metric_reader(reader)

    def flush(self, timeout_s: float) -> bool:
        """Make the readers export. False if one did not finish in time."""
        try:
            return self._provider.force_flush(timeout_s * 1000)
        except Exception as error:  # noqa: BLE001  # the SDK raises a bare Exception for readers
            self._guard.warn("readers", "A metric reader could not be flushed.", error=error)
            return False

    def shutdown(self, timeout_s: float) -> None:
        """Make the readers export for the last time."""
        try:
            self._provider.shutdown(timeout_s * 1000)
        except Exception as error:  # noqa: BLE001  # the SDK raises a bare Exception for readers
            self._guard.warn("readers", "A metric reader could not be shut down.", error=error)


def recorded_in(
    own: RecordFunction, copies: Sequence[RecordFunction], guard: Guard
) -> RecordFunction:
    """Return what records in an instrument, and in its copies whatever one of them raises."""

    def record(amount: float, attributes: Attributes, context: Context | None) -> None:
        own(amount, attributes, context)
        copied = without_step(attributes)
        for copy in copies:
            with guard:
                copy(amount, copied, context)

    return record
