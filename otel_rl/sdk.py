"""A View for programs that have a MeterProvider of their own, from OpenTelemetry's SDK.

from otel_rl.sdk import exact_view

MeterProvider([reader], views=[exact_view()], exemplar_filter=AlwaysOnExemplarFilter())

The View is the slower of the two producers of ADR 0000. A test checks that it equals otel_rl's
provider. SDK behaviour remains: the SDK lower-cases names and drops NaN and infinities.
"""

import os
from collections import deque
from functools import cache
from threading import Thread
from typing import Final

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import Exemplar, ExemplarReservoir
from opentelemetry.sdk.metrics.view import View
from opentelemetry.trace import INVALID_SPAN, get_current_span
from opentelemetry.util.types import Attributes

from otel_rl.semconv.names import OTEL_RL_WORKER_MEASUREMENTS_DROPPED, RL_LOOP_ITERATION
from otel_rl.version import __version__
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.forks import IMPORTS
from otel_rl.worker.metrics.gauges import SCOPE_NAME
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.metrics.step_counts import AllBut
from otel_rl.worker.step_context import scope_in

_CAPACITY: Final = 1 << 16
"""Measurements of one series between two exports: a minute at 1,000 per second."""


def exact_view() -> View:
    """Return a View that keeps every measurement of every synchronous gauge as an exemplar.

    The step (``rl.loop.iteration``) moves from the series' attributes to the exemplar, so that it
    makes no new series. The provider must keep exemplars::

        MeterProvider(
            [reader], views=[exact_view()], exemplar_filter=AlwaysOnExemplarFilter()
        )

    or ``OTEL_METRICS_EXEMPLAR_FILTER=always_on``. The View keeps at most 65,536 measurements of a
    series between two exports; drops are counted in ``otel_rl.worker.measurements.dropped`` of the
    global MeterProvider.
    """
    return View(
        instrument_type=metrics._Gauge,  # noqa: SLF001  # the API exports the name with its _
        attribute_keys=AllBut(RL_LOOP_ITERATION),
        # The SDK annotates one dict and passes keywords.
        exemplar_reservoir_factory=lambda _: _EveryMeasurement,  # type: ignore[arg-type, return-value]
    )


@cache
def _counted_drops() -> Drops:
    """Return the drop counter of all such Views, observable from the first drop on.

    The counter is not registered earlier: asking the API for a meter before the program has set its
    provider would load the zero-code plug-in instead. A separate thread registers it, because the
    SDK holds a lock of the same provider while it offers a measurement.
    """
    drops = Drops()
    os.register_at_fork(after_in_child=drops.reset)
    Thread(target=_observe, args=(drops,), name="otel-rl-exact-drops", daemon=True).start()
    return drops


def _observe(drops: Drops) -> None:
    with IMPORTS.work():  # the API may load a plug-in
        provider = metrics.get_meter_provider()
    if isinstance(provider, BufferedMeterProvider):
        provider.counts_anew(drops)
    metrics.get_meter(SCOPE_NAME, __version__).create_observable_counter(
        OTEL_RL_WORKER_MEASUREMENTS_DROPPED,
        [drops.observe],
        unit="{measurement}",
        description="Measurements that this worker could not deliver.",
    )


class _EveryMeasurement(ExemplarReservoir):
    """Reservoir that keeps every measurement. Any thread may ``offer``, one may ``collect``.

    Args:
        kwargs: Parameters of the aggregation, unused.
    """

    def __init__(self, **kwargs: object) -> None:
        del kwargs
        self._offered: deque[tuple[float, int, Attributes, Context]] = deque()
        self._pid = os.getpid()

    def offer(
        self, value: float, time_unix_nano: int, attributes: Attributes, context: Context
    ) -> None:
        """Keep the measurement, or count it as dropped if the reservoir is full."""
        self._forget_parents()
        if len(self._offered) < _CAPACITY:
            self._offered.append((value, time_unix_nano, attributes, context))
        else:
            _counted_drops().add(DropReason.BUFFER_FULL)

    def collect(self, point_attributes: Attributes) -> list[Exemplar]:
        """Return all measurements offered since the last call, in order."""
        self._forget_parents()
        known = point_attributes or {}
        found: list[Exemplar] = []
        for _ in range(len(self._offered)):
            value, time_unix_nano, attributes, context = self._offered.popleft()
            filtered = {k: v for k, v in (attributes or {}).items() if k not in known}
            if RL_LOOP_ITERATION not in filtered and (scope := scope_in(context)) is not None:
                step = scope.number_at(time_unix_nano)
                if step is not None:
                    filtered[RL_LOOP_ITERATION] = step
            span = get_current_span(context)
            if span is INVALID_SPAN:
                found.append(Exemplar(filtered, value, time_unix_nano))
            else:
                ids = span.get_span_context()
                found.append(Exemplar(filtered, value, time_unix_nano, ids.span_id, ids.trace_id))
        return found

    def _forget_parents(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._offered.clear()
