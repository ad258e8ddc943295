"""Latest values of machines, each of which the exporter takes once."""

import threading
from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otel_rl.semconv.names import METRICS
from otel_rl.semconv.spec import Instrument


class Latest:
    """The last value of each series, for observable instruments. Thread-safe.

    One export reports a value: a device that no longer answers has no more points.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._observed: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """Clear the values, for another worker; also in a forked child."""
        self._lock = threading.Lock()  # guards the values; a missing thread may hold the former one
        self._values: dict[str, dict[object, Observation]] = {}

    def set(self, metric: str, series: object, value: Observation) -> None:
        with self._lock:
            self._values.setdefault(metric, {})[series] = value
        self.observe(metric)

    def observe(self, metric: str, more: Callable[[], Iterable[Observation]] = lambda: ()) -> None:
        """Make the instrument for a metric of the registry, unless it exists.

        ``more`` is called at each export before the values are taken, and returns further values.
        """
        if metric in self._observed:
            return
        self._observed.add(metric)

        def take(_options: CallbackOptions) -> Iterable[Observation]:
            others = more()
            with self._lock:
                return [*self._values.pop(metric, {}).values(), *others]

        spec = METRICS[metric]
        create = {
            Instrument.COUNTER: self._meter.create_observable_counter,
            Instrument.UP_DOWN_COUNTER: self._meter.create_observable_up_down_counter,
        }.get(spec.instrument, self._meter.create_observable_gauge)
        create(metric, [take], spec.unit, spec.brief)
