"""The bridge's own metrics in OpenTelemetry: every counter, and every queue length.

The metrics use a MeterProvider of their own, never the global one, which belongs to the surrounding
program and may be used by a tracker library.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Observation

from otel_rl.bridge.counters import DELAY_BOUNDS_S, Counter, Counters, Delay, Gauge
from otel_rl.bridge.delivery.manager import DeliveryManager
from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey
from otel_rl.semconv import names

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

_SERVICE = "otel_rl.bridge"


@dataclass(frozen=True, slots=True)
class GaugeValue:
    """Current value of a gauge."""

    gauge: Gauge
    value: float
    attributes: dict[str, str] = field(default_factory=dict)


class SelfMetrics:
    """Offers the bridge's metrics to readers from construction until ``stop``.

    Args:
        levels: Called at each collection on the reader's thread; returns the values of the gauges.
    """

    def __init__(
        self,
        counters: Counters,
        levels: Callable[[], Iterable[GaugeValue]],
        readers: "Sequence[MetricReader]",
    ) -> None:
        # The SDK takes 3 MB that a bridge without readers saves.
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource

        self._counters = counters
        self._levels = levels
        resource = {"service.name": _SERVICE, "service.instance.id": str(uuid.uuid4())}
        self._provider = MeterProvider(
            readers, Resource.create(resource), shutdown_on_exit=False, views=()
        )
        meter = self._provider.get_meter(_SERVICE)
        for counter in Counter:
            meter.create_observable_counter(
                counter, [self._observer(counter)], counter.unit, counter.description
            )
        for gauge in Gauge:
            meter.create_observable_gauge(
                gauge, [self._level_observer(gauge)], gauge.unit, gauge.description
            )

        histograms = {
            delay: meter.create_histogram(
                delay, "s", delay.description, explicit_bucket_boundaries_advisory=DELAY_BOUNDS_S
            )
            for delay in Delay
        }
        counters.on_delay = lambda delay, s, attributes: histograms[delay].record(s, attributes)

    def stop(self) -> None:
        """Export a last time and stop. Waits at most a few seconds for the endpoint."""
        self._provider.shutdown(timeout_millis=3_000)

    def _observer(self, counter: Counter) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            if counter.reasons is None:
                yield Observation(self._counters.value(counter))
                return
            for reason in counter.reasons:
                value = self._counters.value(counter, reason=reason)
                yield Observation(value, {names.RL_REASON: str(reason)})

        return observe

    def _level_observer(self, gauge: Gauge) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for level in self._levels():
                if level.gauge is gauge:
                    yield Observation(level.value, level.attributes)

        return observe


def otlp_reader(endpoint: str, interval_s: float) -> "MetricReader":
    """Return a reader that exports to ``endpoint`` over OTLP/HTTP."""
    # Its HTTP client takes 6 MB that a bridge without such an endpoint saves.
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter = OTLPMetricExporter(endpoint=f"{endpoint.rstrip('/')}/v1/metrics")
    return PeriodicExportingMetricReader(exporter, export_interval_millis=interval_s * 1e3)


def queue_gauges(
    journal: Journal,
    spool: Spool,
    run_store: RunStore,
    delivery: DeliveryManager,
    *,
    team: Callable[[ExperimentKey], str] = lambda _: "",
) -> Iterator[GaugeValue]:
    """Yield the present values for this bridge's runs; fewer while the journal is unreachable."""

    def named(key: ExperimentKey) -> dict[str, str]:
        of_team = {"team": name} if (name := team(key)) else {}
        return {names.RL_EXPERIMENT_NAME: key.experiment, names.RL_TRIAL_NAME: key.trial, **of_team}

    with contextlib.suppress(JournalError):  # the row thread reports it
        yield GaugeValue(Gauge.JOURNAL_SIZE, journal.size())
        for key, use in spool.in_use().items():
            if use.waiting and run_store.is_ours(key):  # else its owner reports it
                yield GaugeValue(Gauge.SPOOL_SIZE, use.waiting, named(key))
        for key in dict.fromkeys(status.key for status in delivery.status()):
            yield GaugeValue(Gauge.ROWS_PENDING, delivery.pending(key), named(key))
