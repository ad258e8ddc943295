"""CPU-bound training loop with telemetry: one contender, which takes turns on request.

    python -m bench.contenders.loop gauges http://127.0.0.1:4318

Arguments: contender, OTLP endpoint. Each line of standard input is ``turn UPDATES STEPS``, with the
updates of the network in a step, or ``export``. The answer is the CPU seconds of the work, of the
calls that measure, and of all other threads.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
from opentelemetry.metrics import Meter

STEP = "rl.loop.iteration"
METRICS = 20
"""Measured in each step."""

Measure = Callable[[int], None]
"""Measures a step, given its number."""

Export = Callable[[], object]
"""Sends what was measured."""


class Network:
    """Small network in training, on synthetic data: Python that calls numpy, as in small RL."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        self._inputs = random.normal(size=(32, 16))
        self._targets = random.normal(size=(32, 4))
        self._hidden = random.normal(size=(16, 64)) * 0.1
        self._out = random.normal(size=(64, 4)) * 0.1

    def train(self, updates: int) -> None:
        """Gradient descent: ``updates`` times the whole batch."""
        for _ in range(updates):
            active = np.tanh(self._inputs @ self._hidden)
            error = (active @ self._out - self._targets) / len(self._inputs)
            back = error @ self._out.T * (1 - active**2)
            self._out -= 0.01 * (active.T @ error)
            self._hidden -= 0.01 * (self._inputs.T @ back)


def contender(name: str, url: str) -> tuple[Measure, Export]:
    names = [f"metric.{n}" for n in range(METRICS)]
    if name == "nothing":
        return lambda _: None, lambda: None
    if name == "stock SDK":
        return _stock(names, url)
    import otel_rl

    # Exported on request, once a second of the loop's own CPU time.
    otel_rl.init(experiment="bench", role="bench", endpoint=url, export_interval_s=3600)
    export = lambda: otel_rl.flush(timeout_s=10)  # noqa: E731
    if name == "mlogger":
        log = otel_rl.log
        return lambda step: log(dict.fromkeys(names, step / 7), step=step), export
    from opentelemetry import metrics

    return _setting(metrics.get_meter("bench"), names), export


def _stock(names: list[str], url: str) -> tuple[Measure, Export]:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    from bench.stock import stock_sdk

    exporter = OTLPMetricExporter(f"{url}/v1/metrics")
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3600 * 1000)
    provider = stock_sdk(reader, exact=True)
    return _setting(provider.get_meter("bench"), names), provider.force_flush


def _setting(meter: Meter, names: list[str]) -> Measure:
    gauges = [meter.create_gauge(name) for name in names]

    def measure(step: int) -> None:
        for gauge in gauges:
            gauge.set(step / 7, {STEP: step})

    return measure


def main() -> None:
    name, url = sys.argv[1:]
    network = Network()
    measure, export = contender(name, url)
    done = 0
    print("ready", flush=True)
    for line in sys.stdin:
        process_s, thread_s, calls_s = time.process_time(), time.thread_time(), 0.0
        if line.strip() == "export":
            export()
            calls_s = time.thread_time() - thread_s
        else:
            updates, steps = map(int, line.split()[1:])
            for _ in range(steps):
                network.train(updates)
                begun_s = time.thread_time()
                measure(done)
                calls_s += time.thread_time() - begun_s
                done += 1
        thread_s = time.thread_time() - thread_s
        others_s = time.process_time() - process_s - thread_s
        print(thread_s - calls_s, calls_s, others_s, flush=True)


if __name__ == "__main__":
    main()
