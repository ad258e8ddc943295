"""The bridge's own metrics, as a reader of OpenTelemetry's SDK gets them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics.export import (
    HistogramDataPoint,
    InMemoryMetricReader,
    NumberDataPoint,
)

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import load_settings
from otel_rl.bridge.counters import (
    Counter,
    Counters,
    Delay,
    Gauge,
    Outcome,
    Refusal,
)
from otel_rl.bridge.delivery.manager import DeliveryManager, DeliverySettings
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.telemetry import GaugeValue, SelfMetrics, exposition, queue_gauges
from otel_rl.records import Batch, ExperimentKey, Row, Signal
from tests.support.otlp_sink import Sink, serve


class Collected:
    """A bridge's counters and what a reader sees of them."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.levels: list[GaugeValue] = []
        self._reader = InMemoryMetricReader()
        self.telemetry = SelfMetrics(self.counters, lambda: self.levels, [self._reader])

    def histograms(self) -> list[HistogramDataPoint]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return [
            point
            for metric in data.resource_metrics[0].scope_metrics[0].metrics
            for point in metric.data.data_points
            if isinstance(point, HistogramDataPoint)
        ]

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
        (str(counter), str(reason)) for counter in Counter for reason in (counter.reasons or [""])
    }
    found = collected.points()
    assert set(found) == expected
    assert set(found.values()) == {0}


def test_counts_arrive_with_their_reason(collected: Collected) -> None:
    collected.counters.add(Counter.POINTS_REFUSED, 3, reason=Refusal.TOO_MANY_BUCKETS)
    assert collected.points()["otel_rl.bridge.points.refused", "too_many_buckets"] == 3


def test_levels_arrive_with_whose_they_are(collected: Collected) -> None:
    for place, gauge in enumerate(Gauge):
        collected.levels.append(GaugeValue(gauge, place, {"rl.experiment.name": "mine"}))
    found = collected.points()
    assert [found[str(gauge), "mine"] for gauge in Gauge] == list(range(len(Gauge)))


def test_delays_arrive_in_the_buckets_of_the_page_for_prometheus(collected: Collected) -> None:
    collected.counters.delayed(Delay.ROW, [-1.0, 0.1, 0.11, 9_000.0], team="red")
    collected.counters.delayed(Delay.TRACKER, [3.0], team="", tracker="jsonl")
    row, tracker = collected.histograms()
    assert (row.attributes, tracker.attributes) == ({"team": "red"}, {"tracker": "jsonl"})
    assert (row.sum, row.count) == (9_000.21, 4)
    ((attributes, of),) = collected.counters.delays(Delay.ROW)
    assert attributes == row.attributes
    assert of.counts == [*row.bucket_counts] == [2, 1, *[0] * 10, 1]
    page = exposition(collected.counters, [])
    start = 'otel_rl_bridge_row_delay_seconds_bucket{team="red",le='
    counts = [line.split()[1] for line in page.splitlines() if line.startswith(start)]
    assert counts == ["2", *["3"] * 11, "4"]
    assert f'{start}"+Inf"}} 4' in page
    assert 'otel_rl_bridge_tracker_delay_seconds_sum{tracker="jsonl"} 3.0' in page


def test_the_global_provider_is_left_alone() -> None:
    before = metrics.get_meter_provider()
    Collected().telemetry.stop()
    assert metrics.get_meter_provider() is before


def test_a_bridge_exports_its_metrics_to_the_endpoint_that_it_is_given(tmp_path: Path) -> None:
    with serve(Sink()) as receiver:
        bridge = Bridge(
            load_settings(
                None,
                {
                    "data": tmp_path,
                    "listen": {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"},
                    "tracker": {"name": "jsonl"},
                    "telemetry": {"endpoint": receiver.url},
                },
            )
        )
        bridge.start()
        bridge.counters.add(Counter.REQUESTS, 5, reason=Outcome.OK)
        bridge.stop()
        names = {
            metric.name
            for request in receiver.metrics
            for resource_metrics in request.resource_metrics
            for scope_metrics in resource_metrics.scope_metrics
            for metric in scope_metrics.metrics
        }
    assert {str(counter) for counter in Counter} <= names
    assert str(Gauge.JOURNAL_SIZE) in names


def test_an_endpoint_that_is_away_keeps_no_bridge_from_stopping(tmp_path: Path) -> None:
    settings = {
        "data": tmp_path,
        "listen": {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"},
        "tracker": {"name": "jsonl"},
        "telemetry": {"endpoint": "http://127.0.0.1:9"},
    }
    bridge = Bridge(load_settings(None, settings))
    bridge.start()
    assert bridge.stop() == []


OURS, THEIRS = ExperimentKey("ours"), ExperimentKey("theirs")


class Owner:
    """A bridge that shares the journal with another."""

    def epoch(self, key: ExperimentKey, /) -> int | None:
        return 0 if key == OURS else None


@pytest.fixture
def journal(tmp_path: Path) -> SqliteJournal:
    return SqliteJournal(tmp_path / "data")


def gauges(journal: SqliteJournal, directory: Path) -> dict[tuple[Gauge, str], float]:
    run_store = RunStore(journal, owners=Owner())
    delivery = DeliveryManager(
        run_store,
        [
            (
                DeliverySettings("jsonl", directory, {}),
                DeliveryStore(journal, "jsonl", owners=Owner()),
            )
        ],
        Counters().add,
    )
    found = [
        *queue_gauges(
            journal, Spool(journal), run_store, delivery, team=lambda key: f"of {key.experiment}"
        )
    ]
    for one in found:
        if one.attributes:
            assert one.attributes["team"] == f"of {one.attributes['rl.experiment.name']}"
    return {(one.gauge, one.attributes.get("rl.experiment.name", "")): one.value for one in found}


def test_batches_that_wait_are_those_of_the_bridges_own_runs(
    journal: SqliteJournal, tmp_path: Path
) -> None:
    for key in (OURS, THEIRS):
        Spool(journal).append([Batch(key, Signal.METRICS, b"x" * 100, 1)])
    found = gauges(journal, tmp_path)
    journal.close()
    assert {at: size for at, size in found.items() if at[0] is Gauge.SPOOL_SIZE} == {
        (Gauge.SPOOL_SIZE, "ours"): 100
    }
    assert found[Gauge.JOURNAL_SIZE, ""] > 200


def test_rows_that_wait_for_a_tracker_are_those_of_delivered_runs(
    journal: SqliteJournal, tmp_path: Path
) -> None:
    rows = [Row(0, 0, 1, {"x": 1.0})]
    RunStore(journal).commit([Commit(OURS, rows, 1, b"")])
    found = gauges(journal, tmp_path)
    journal.close()
    assert not [at for at in found if at[0] is Gauge.ROWS_PENDING], "nobody asked for its delivery"


def test_an_unreachable_journal_gives_nothing(journal: SqliteJournal, tmp_path: Path) -> None:
    (tmp_path / "data" / "journal.db").rename(tmp_path / "elsewhere")
    found = gauges(journal, tmp_path)
    journal.close()
    assert found == {}
