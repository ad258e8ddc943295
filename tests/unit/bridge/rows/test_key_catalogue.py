"""The catalogue says of every key in a row what it is, once, and survives a restart."""

from collections.abc import Mapping, Sequence

import pytest

from otel_rl.bridge.counters import Counter, Counters, StateFault
from otel_rl.bridge.journal.interface import Journal, checksum
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.reader import read_keys
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.rows.messages import Finding
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.scheduler import Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import (
    Batch,
    Buckets,
    Decoded,
    ExperimentKey,
    Export,
    HistogramPoint,
    KeySpec,
    Measurements,
    Point,
    Row,
    Series,
    Signal,
    SpanRecord,
    SummaryPoint,
    SumPoint,
    Temporality,
    TextSample,
    Worker,
)
from otel_rl.run_id import run_id
from otel_rl.semconv.spec import Instrument, Tier
from tests.support.otlp_requests import gauge, key_values, metrics_request, point
from tests.support.stores import Store

S = 1_000_000_000
T0 = 1_700_000_000 * S
KEY = ExperimentKey("e")
RANKS = [Worker("trainer", instance, index, 2) for index, instance in enumerate("ab")]
GENERATOR = Worker("generator", "g", 0, 1)


def measured(worker: Worker, name: str, value: float, **series: object) -> Measurements:
    of = Series(worker, name, **series)  # type: ignore[arg-type]  # fields of a series
    return Measurements(of, [T0], [value], [3])


def level(worker: Worker, name: str, value: float) -> Measurements:
    return Measurements(Series(worker, name), [T0], [value], [None])


def counted(worker: Worker, name: str, unit: str = "") -> SumPoint:
    series = Series(worker, name, unit, instrument=Instrument.COUNTER)
    return SumPoint(series, T0 - 5 * S, T0, 10.0, Temporality.DELTA)


def spread(worker: Worker, name: str) -> HistogramPoint:
    series = Series(worker, name, "s", instrument=Instrument.HISTOGRAM)
    return HistogramPoint(
        *(series, T0 - 5 * S, T0, Temporality.DELTA, 4, 8.0, 1.0, 3.0),
        Buckets.of([(0.0, 4.0, 4)]),
    )


def run_of(
    *points: Point, samples: Sequence[TextSample] = (), **settings: object
) -> tuple[Sequence[Row], Mapping[str, KeySpec]]:
    """The rows of a run, and what its catalogue says."""
    aligner = Run(AlignSettings.model_validate(settings))
    exports = {each.series.worker: Export(each.series.worker, T0) for each in points}
    aligner.add(Decoded(points, [*exports.values()], samples), received_ns=T0)
    rows = aligner.close(T0 + 60 * S, everything=True, report={"otel_rl/bridge/samples/late": 1})
    return rows, {one.key: one for one in aligner.row_maker.keys.take()}


def test_every_key_of_every_row_is_in_the_catalogue_once() -> None:
    aligner = Run()
    root = SpanRecord(b"t" * 16 + b"s" * 8, None, (), "trainer", "a", "h", T0 - S, T0, "rl.loop",
                      step=3)  # fmt: skip
    points: list[Point] = [
        *(measured(rank, "rl.train.loss", 1.0) for rank in RANKS),
        counted(GENERATOR, "rl.generator.tokens"),
        spread(GENERATOR, "mine"),
        level(GENERATOR, "depth", 1.0),
    ]
    sample = TextSample(GENERATOR, "rollouts", 3, T0, {"prompt": "2 + 2"}, 1)
    exports = [Export(of, T0) for of in (*RANKS, GENERATOR)]
    aligner.add(Decoded(points, exports, [sample], [root]), received_ns=T0)
    aligner.findings.add(Finding(3, T0, "cause", "words", [{"kind": "slow"}]))
    rows = aligner.close(T0 + 60 * S, everything=True, report={"otel_rl/bridge/samples/late": 1})
    found = [one.key for one in aligner.row_maker.keys.take()]
    in_rows = {key for row in rows for key in (*row.values, *row.tables, *row.labels)}
    assert {key.partition("/")[0] for key in in_rows} == {
        *("critical_path", "diagnosis", "generator", "health", "otel_rl", "service", "trainer")
    }
    assert sorted(found) == sorted(in_rows)
    assert aligner.row_maker.keys.take() == []


def test_a_gauge_has_its_value_and_statistics_over_ranks() -> None:
    _, keys = run_of(*(measured(rank, "rl.train.loss", 1.0) for rank in RANKS))
    assert keys["trainer/loss"] == KeySpec(
        "trainer/loss",
        "rl.train.loss",
        "trainer",
        unit="1",
        axis="step",
        section="trainer",
        tier=Tier.BASIC,
        reduction="mean",
    )
    beside = {one.statistic: one.tier for one in keys.values() if one.name == "rl.train.loss"}
    assert beside == {"value": Tier.BASIC, "rank_min": Tier.FULL, "rank_max": Tier.FULL}


def test_a_counter_has_a_total_and_a_rate() -> None:
    _, keys = run_of(counted(GENERATOR, "rl.generator.tokens", "{token}"))
    total, rate = keys["generator/tokens"], keys["generator/tokens/rate"]
    assert (total.statistic, total.unit, total.axis) == ("total", "{token}", "time")
    assert (rate.statistic, rate.unit, rate.axis) == ("rate", "{token}/s", "time")
    assert (total.tier, rate.tier) == (Tier.BASIC, Tier.BASIC)  # others can be drawn over tokens


def test_the_total_of_most_counters_is_full() -> None:
    _, keys = run_of(counted(GENERATOR, "rl.generator.requests", "{request}"))
    assert keys["generator/requests"].tier is Tier.FULL


def test_a_users_own_metrics_are_basic_and_their_further_statistics_full() -> None:
    _, keys = run_of(
        level(GENERATOR, "depth", 1.0), counted(GENERATOR, "calls"), spread(GENERATOR, "took")
    )
    tiers = {key: one.tier for key, one in keys.items() if one.section == "generator"}
    basic = {key for key, tier in tiers.items() if tier is Tier.BASIC}
    assert basic == {
        "generator/" + key
        for key in ("depth", "calls", "calls/rate", "took", "took/p50", "took/p99")
    }
    assert {tiers[f"generator/took/{suffix}"] for suffix in ("count", "p90", "max")} == {Tier.FULL}


def test_quantiles_of_a_summary_are_statistics() -> None:
    series = Series(GENERATOR, "took")
    _, keys = run_of(SummaryPoint(series, T0, 4, 8.0, ((0.5, 1.0),)))
    assert keys["generator/took/p50"].tier is Tier.FULL


@pytest.mark.parametrize(
    ("name", "per_worker", "tier"),
    [("rl.train.grad.nonfinite", False, Tier.FULL), ("loss", True, Tier.EVERYTHING)],
)
def test_a_workers_own_key_names_the_worker(name: str, per_worker: bool, tier: Tier) -> None:
    _, keys = run_of(*(measured(of, name, 1.0) for of in RANKS), per_worker=per_worker)
    found = [one for one in keys.values() if one.section == "workers" and one.name == name]
    assert {(one.worker, one.tier) for one in found if one.statistic == "value"} == {
        ("0", tier),
        ("1", tier),
    }


def test_what_the_bridge_reports_is_on_the_axis_of_time() -> None:
    _, keys = run_of(measured(RANKS[0], "loss", 1.0))
    late, alive = keys["otel_rl/bridge/samples/late"], keys["service/trainer/alive"]
    assert (late.name, late.axis) == ("otel_rl.bridge.samples.late", "time")
    assert (alive.name, alive.role, alive.axis, alive.tier) == (
        *("rl.service.alive", "trainer", "time"),
        Tier.BASIC,
    )


class Bridge:
    """The part of a bridge that makes rows."""

    def __init__(self, journal: Journal) -> None:
        self.journal, self.counters = journal, Counters()
        self.spool, self.store = Spool(journal), RunStore(journal)
        self.processor = Scheduler(
            self.spool,
            self.store,
            AlignSettings(start_wait_s=0),
            self.counters,
        )

    def take(self, name: str, step: int) -> None:
        of_step = point(1.0, T0 + step)
        of_step.attributes.extend(key_values({"rl.loop.iteration": step}))
        resource = {
            "rl.experiment.name": KEY.experiment,
            "rl.worker.role": "trainer",
            "service.instance.id": "one",
        }
        request = metrics_request(gauge(of_step, name=name), resource=resource)
        self.spool.append([Batch(KEY, Signal.METRICS, request.SerializeToString(), T0)])
        self.processor.finish(T0 + S)


def names_in(store: RunStore) -> list[str]:
    return [one.key for one in store.keys(KEY) if one.section == "trainer"]


def test_the_catalogue_is_stored_with_the_rows_and_goes_on_after_a_restart(store: Store) -> None:
    before = Bridge(store.open())
    before.take("loss", 1)
    assert names_in(before.store) == ["trainer/loss"]
    before.journal.close()
    after = Bridge(store.open())
    after.take("loss", 2)
    after.take("reward", 3)
    assert names_in(after.store) == ["trainer/loss", "trainer/reward"]
    with after.journal.read() as connection:
        seen = read_keys(connection, run_id(*KEY))
        assert seen == after.store.keys(KEY), "what only looks, sees it"
        ((parts,),) = connection.execute("SELECT COUNT(*) FROM log WHERE kind = 'keys'").fetchall()
    assert parts == 2, "a key that is known is not written again"


def test_damaged_keys_are_described_again(store: Store) -> None:
    before = Bridge(store.open())
    before.take("loss", 1)
    before.journal.write(
        lambda connection: connection.execute("UPDATE log SET crc = crc + 1 WHERE kind = 'keys'")
    )
    assert names_in(before.store) == []
    before.journal.close()
    after = Bridge(store.open())
    after.take("loss", 2)
    assert names_in(after.store) == ["trainer/loss"]


def test_keys_that_no_bridge_has_written_are_counted(store: Store) -> None:
    before = Bridge(store.open())
    before.take("loss", 1)
    before.journal.close()
    after = Bridge(store.open())
    saved = after.store.saved(KEY)
    assert len(saved.log(Log.KEYS)) == 1
    forged = b"nothing"
    forgery = forged, checksum(forged, run_id(KEY.experiment, KEY.trial), "keys")
    after.journal.write(
        lambda connection: connection.execute(
            "UPDATE log SET body = ?, crc = ? WHERE kind = 'keys'", forgery
        )
    )
    after.take("loss", 2)
    assert after.counters.value(Counter.STATES_LOST, reason=StateFault.REFUSED) == 1
    assert names_in(after.store) == ["trainer/loss"]
