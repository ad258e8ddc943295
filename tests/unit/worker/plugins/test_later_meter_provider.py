"""A program's own MeterProvider, set when otel_rl's is the global one: both get the metrics."""

import pytest

from tests.otlp_sink import Sink, sums
from tests.unit.worker.plugins.test_otel_providers import PLUGINS, run

pytestmark = pytest.mark.process

LIBRARY = """
from opentelemetry import metrics
meter = metrics.get_meter("library", "1", attributes={"rl.reduce": "max"})
gauge, counter = meter.create_gauge("gauge"), meter.create_counter("counter")
meter.create_observable_gauge("observed", [lambda _options: [metrics.Observation(7)]])
"""

LATER = """
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
later = MeterProvider([reader])
metrics.set_meter_provider(later)

def read(reader=reader):
    data = reader.get_metrics_data()
    return {
        metric.name: [
            point.count if metric.name == "histogram" else point.value
            for point in metric.data.data_points
        ]
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if not metric.name.startswith(("otel_rl.", "rl."))
    }
"""

WORK = """
histogram = metrics.get_meter("mine").create_histogram("histogram")
for step in range(3):
    gauge.set(step + 0.5, {"rl.loop.iteration": step})
    counter.add(2, {"rl.loop.iteration": step})
    histogram.record(1)
"""

ALL = {"gauge": [2.5], "counter": [6], "observed": [7], "histogram": [3]}


def assert_all(sink: Sink) -> None:
    assert [m.value for m in sink.measurements("gauge")] == [0.5, 1.5, 2.5]
    assert list(sums(sink.metrics, "counter").values()) == [6]


def test_both_get_what_earlier_and_later_instruments_measure(sink: Sink) -> None:
    finished = run(LIBRARY + LATER + WORK + f"assert read() == {ALL}, read()", **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")
    assert_all(sink)


def test_both_get_it_after_init(sink: Sink) -> None:
    code = "import otel_rl\notel_rl.init(role='trainer')\n" + LIBRARY + LATER + WORK
    finished = run(code + f"assert read() == {ALL}, read()", **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")
    assert_all(sink)


def test_a_provider_set_by_name_is_the_same(sink: Sink) -> None:
    later = LATER.replace("provider(later)", "provider(meter_provider=later)")
    finished = run(LIBRARY + later + WORK + f"assert read() == {ALL}, read()", **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_second_later_provider_is_refused_as_ever(sink: Sink) -> None:
    second = """
second = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([second]))
gauge.set(1.0)
assert "gauge" not in read(second) and read()["gauge"] == [1.0]
"""
    finished = run(LIBRARY + LATER + second, **_environment(sink))
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count("Overriding of current MeterProvider") == 1


def test_one_that_is_not_of_the_sdk_is_refused_as_ever(sink: Sink) -> None:
    other = "metrics.set_meter_provider(metrics.NoOpMeterProvider())\n"
    finished = run(LIBRARY + other + WORK, **_environment(sink))
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count("Overriding of current MeterProvider") == 1
    assert_all(sink)


def test_the_run_has_metrics_after_its_shutdown(sink: Sink) -> None:
    finished = run(LIBRARY + LATER + "later.shutdown()\n" + WORK, **_environment(sink))
    assert finished.returncode == 0, finished.stderr
    assert_all(sink)


def test_a_reader_of_the_global_provider_gets_them_beside_it(sink: Sink) -> None:
    second = """
second = InMemoryMetricReader()
metrics.get_meter_provider().add_metric_reader(second)
"""
    check = f"assert read() == read(second) == {ALL}, (read(), read(second))"
    finished = run(LIBRARY + LATER + second + WORK + check, **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")
    assert_all(sink)


def test_a_name_that_the_sdk_refuses_stays_in_the_run(sink: Sink) -> None:
    named = """
odd = meter.create_gauge("a b: c")
odd.set(4.0, {"rl.loop.iteration": 3})
assert "a b: c" not in read()
"""
    finished = run(LIBRARY + LATER + named, **_environment(sink))
    assert finished.returncode == 0, finished.stderr
    assert [m.value for m in sink.measurements("a b: c")] == [4.0]


def _environment(sink: Sink) -> dict[str, str]:
    return {**PLUGINS, "OTEL_RL_EXPERIMENT": "e", "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url}
