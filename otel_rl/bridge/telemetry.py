"""The bridge's own metrics, in OpenTelemetry and for Prometheus: every counter and queue length.

The metrics use a MeterProvider of their own, never the global one, which belongs to the surrounding
program and may be used by a tracker library. The names for Prometheus to scrape (``GET /metrics``
beside ``/healthz``) are those that Prometheus gives the same metrics when they come by OTLP, so
alerts and dashboards hold for both.
"""

import contextlib
import os
import resource
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import CallbackOptions, Observation

from otel_rl.bridge.counters import DELAY_BOUNDS_S, Counter, Counters, Delay, Gauge
from otel_rl.bridge.delivery.manager import DeliveryManager
from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey
from otel_rl.semconv import names
from otel_rl.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

_SERVICE = "otel_rl.bridge"

_UNITS: Final = {"By": "_bytes"}


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
        attributes = {"service.name": _SERVICE, "service.instance.id": str(uuid.uuid4())}
        self._provider = MeterProvider(
            readers, Resource.create(attributes), shutdown_on_exit=False, views=()
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


def exposition(counters: Counters, levels: Iterable[GaugeValue]) -> str:
    """Return the present values in Prometheus's text format.

    Args:
        levels: Values of the gauges. A gauge without a value is left out.
    """
    lines: list[str] = []
    for counter in Counter:
        name = f"{_name(counter)}_total"
        lines += _head(name, "counter", counter.description)
        for reason in counter.reasons or [None]:
            labels = {} if reason is None else {names.RL_REASON: str(reason)}
            lines.append(_sample(name, labels, counters.value(counter, reason=reason)))
    found = [*levels]
    for gauge in Gauge:
        name = f"{_name(gauge)}{_UNITS.get(gauge.unit, '')}"
        lines += _head(name, "gauge", gauge.description)
        lines += [_sample(name, one.attributes, one.value) for one in found if one.gauge is gauge]
    for delay in Delay:
        name = f"{_name(delay)}_seconds"
        lines += _head(name, "histogram", delay.description)
        for attributes, of in counters.delays(delay):
            through = [*accumulate(of.counts)]
            for bound, count in zip([*map(str, DELAY_BOUNDS_S), "+Inf"], through, strict=True):
                lines.append(_sample(f"{name}_bucket", {**attributes, "le": bound}, count))
            lines.append(_sample(f"{name}_sum", attributes, of.total_s))
            lines.append(_sample(f"{name}_count", attributes, through[-1]))
    lines += _head("otel_rl_bridge_info", "gauge", "Version of the bridge; always 1.")
    lines.append(_sample("otel_rl_bridge_info", {"version": __version__}, 1))
    cpu, memory = "process_cpu_seconds_total", "process_resident_memory_bytes"
    lines += _head(cpu, "counter", "CPU time of the bridge, in seconds, without its writers.")
    used = resource.getrusage(resource.RUSAGE_SELF)
    lines.append(_sample(cpu, {}, used.ru_utime + used.ru_stime))
    if (resident := _resident_bytes()) is not None:
        lines += _head(memory, "gauge", "Memory of the bridge, in bytes, without its writers.")
        lines.append(_sample(memory, {}, resident))
    return "\n".join(lines) + "\n"


def _name(name: str) -> str:
    return name.replace(".", "_")


def _head(name: str, kind: str, description: str) -> list[str]:
    return [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    if not labels:
        return f"{name} {value}"
    told = ",".join(f'{_name(label)}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{told}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _resident_bytes() -> int | None:
    """Return the memory of this process; None where there is no ``/proc``."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  # read at each scrape
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
