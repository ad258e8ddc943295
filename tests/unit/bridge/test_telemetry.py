"""The bridge's own metrics, as a reader of OpenTelemetry's SDK gets them."""

from collections.abc import Iterator

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from otel_rl.bridge.counters import COUNTERS, GAUGES, Counter, Counters, Gauge, Refusal
from otel_rl.bridge.telemetry import Level, Telemetry


class Collected:
    """A bridge's counters and what a reader sees of them."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.levels: list[Level] = []
        self._reader = InMemoryMetricReader()
        self.telemetry = Telemetry(self.counters, lambda: self.levels, [self._reader])

    def points(self) -> dict[tuple[str, str], float]:
        """By name and first attribute."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            (metric.name, next(map(str, (point.attributes or {}).values()), "")): point.value
            for resource_metrics in data.resource_metrics
            for scope_metrics in resource_metrics.scope_metrics
            for metric in scope_metrics.metrics
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint)
        }


@pytest.fixture
def collected() -> Iterator[Collected]:
    made = Collected()
    yield made
    made.telemetry.stop()


def test_every_counter_is_there_with_every_reason_before_it_counts(collected: Collected) -> None:
    expected = {
        (str(counter), str(reason))
        for counter, spec in COUNTERS.items()
        for reason in (spec.reasons or [""])
    }
    found = collected.points()
    assert set(found) == expected
    assert set(found.values()) == {0}


def test_counts_arrive_with_their_reason(collected: Collected) -> None:
    collected.counters.add(Counter.POINTS_REFUSED, 3, reason=Refusal.TOO_MANY_BUCKETS)
    assert collected.points()["otel_rl.bridge.points.refused", "too_many_buckets"] == 3


def test_levels_arrive_with_whose_they_are(collected: Collected) -> None:
    for place, gauge in enumerate(GAUGES):
        collected.levels.append(Level(gauge, place, {"rl.experiment.name": "mine"}))
    found = collected.points()
    assert [found[str(gauge), "mine"] for gauge in GAUGES] == list(range(len(GAUGES)))
    assert len(GAUGES) == len(Gauge)


def test_the_global_provider_is_left_alone() -> None:
    before = metrics.get_meter_provider()
    Collected().telemetry.stop()
    assert metrics.get_meter_provider() is before
