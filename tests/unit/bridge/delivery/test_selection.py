"""What a tracker gets of a row, and under which names; the row itself always gets there."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.selection import KeySelection
from otel_rl.bridge.keys import KeyNames
from otel_rl.records import ExperimentKey, KeySpec, Row, Table
from otel_rl.run_id import run_id
from otel_rl.semconv.spec import Tier
from tests.unit.bridge.delivery.bench import Bench

A = ExperimentKey("a")

LOSS = KeySpec("trainer/loss", own_name="actor/pg_loss")
PEAK = KeySpec("trainer/loss/rank_max", tier=Tier.FULL, own_name="actor/pg_loss/rank_max")
WORKER = KeySpec("workers/trainer/0/loss", tier=Tier.EVERYTHING, worker="0")
CATALOGUE = [LOSS, PEAK, WORKER]
VALUES = {"trainer/loss": 1.0, "trainer/loss/rank_max": 2.0, "workers/trainer/0/loss": 3.0}


def sent(
    values: Mapping[str, float],
    catalogue: Sequence[KeySpec] = CATALOGUE,
    *,
    detail: Tier = Tier.BASIC,
    names: KeyNames = KeyNames.OTEL_RL,
    per_worker: bool = False,
) -> Row:
    selection = KeySelection(detail, names, per_worker=per_worker, keys=lambda: catalogue)
    (row,) = selection.rows([Row(7, 3, 5, dict(values))])
    assert (row.number, row.step, row.time_ns) == (7, 3, 5)
    return row


@pytest.mark.parametrize(("detail", "count"), [("basic", 1), ("full", 2), ("everything", 3)])
def test_a_tier_includes_those_below(detail: str, count: int) -> None:
    assert list(sent(VALUES, detail=Tier(detail)).values) == list(VALUES)[:count]


def test_who_asks_for_single_workers_gets_them() -> None:
    assert "workers/trainer/0/loss" in sent(VALUES, per_worker=True).values


def test_a_key_that_the_catalogue_lacks_is_sent() -> None:
    assert sent({"otel_rl/bridge/rows/damaged": 1}).values == {"otel_rl/bridge/rows/damaged": 1}


def test_a_key_that_came_up_later_is_looked_up() -> None:
    catalogue = [LOSS]
    selection = KeySelection(Tier.BASIC, KeyNames.OTEL_RL, per_worker=False, keys=lambda: catalogue)
    selection.rows([Row(0, 0, 0, {"trainer/loss": 1.0})])
    catalogue.append(PEAK)
    (row,) = selection.rows([Row(1, 1, 1, {"trainer/loss/rank_max": 1.0})])
    assert row.values == {}


@pytest.mark.parametrize("detail", [Tier.BASIC, Tier.EVERYTHING])
def test_a_tracker_is_told_once_what_the_keys_that_it_gets_mean(detail: Tier) -> None:
    catalogue = [LOSS, WORKER]
    selection = KeySelection(detail, KeyNames.OTEL_RL, per_worker=False, keys=lambda: catalogue)
    told = [
        [spec.key for spec in row.new_keys]
        for number in range(2)
        for row in selection.rows([Row(n, 0, 0, {LOSS.key: 1.0}) for n in (number, number + 1)])
    ]
    assert told == [[LOSS.key] if detail is Tier.BASIC else [LOSS.key, WORKER.key], [], [], []]
    catalogue.append(KeySpec("trainer/entropy"))
    (row,) = selection.rows([Row(3, 0, 0, {"trainer/entropy": 1.0})])
    assert [spec.key for spec in row.new_keys] == ["trainer/entropy"]


def test_what_a_key_means_is_told_under_the_names_that_are_sent() -> None:
    spec = KeySpec("trainer/kl", own_name="kl_reward", own_scale=-1.0)
    row = sent({"trainer/kl": 1.0}, [spec], names=KeyNames.BOTH)
    assert [(told.key, told.own_scale) for told in row.new_keys] == [
        ("kl_reward", -1.0),
        ("trainer/kl", 1.0),
    ]


def test_texts_and_tables_are_selected_like_values() -> None:
    keys = [KeySpec("health/bound", tier=Tier.FULL), KeySpec("diagnosis/cause"), KeySpec("t")]
    selection = KeySelection(Tier.BASIC, KeyNames.OTEL_RL, per_worker=False, keys=lambda: keys)
    labels = {"health/bound": "trainer", "diagnosis/cause": "slow"}
    table = Table(["a"], [["b"]])
    (row,) = selection.rows([Row(0, 0, 0, tables={"t": table}, labels=labels)])
    assert (row.labels, row.tables) == ({"diagnosis/cause": "slow"}, {"t": table})


def test_a_gpu_without_a_chart_is_left_for_the_system_panels() -> None:
    key = "gpu/node1/gpu0/utilization"
    row = sent({key: 0.5}, [KeySpec(key, tier=Tier.FULL)])
    assert (row.values, row.devices) == ({}, {key: 0.5})


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        ("framework", ["actor/pg_loss"]),
        ("otel_rl", ["trainer/loss"]),
        ("both", ["actor/pg_loss", "trainer/loss"]),
    ],
)
def test_a_framework_has_its_own_names(names: str, keys: list[str]) -> None:
    assert list(sent({"trainer/loss": 1.0}, names=KeyNames(names)).values) == keys


def test_a_framework_has_its_own_unit() -> None:
    share = KeySpec("trainer/mfu", own_name="perf/mfu", own_scale=0.01)
    row = sent({"trainer/mfu": 0.25}, [share], names=KeyNames.BOTH)
    assert row.values == {"perf/mfu": 25.0, "trainer/mfu": 0.25}


@pytest.mark.parametrize(
    "key", ["project", "run", "timestamp", "step", "time", "metrics", "hours", "attempt"]
)
@pytest.mark.parametrize("names", KeyNames)
def test_a_key_that_a_tracker_needs_itself_gets_an_ending(key: str, names: KeyNames) -> None:
    row = sent({key: 1.0}, [KeySpec(key, key, own_name=key)], names=names)
    assert row.values == {f"{key}/otel_rl": 1.0}


@pytest.mark.parametrize(
    "own", ["step", "attempt", "step/attempt_2", "policy_version", "_step", "otel_rl/x", "x" * 2000]
)
def test_a_name_that_a_tracker_needs_itself_is_not_given(own: str) -> None:
    spec = replace(LOSS, own_name=own)
    assert list(sent({"trainer/loss": 1.0}, [spec], names=KeyNames.FRAMEWORK).values) == [
        "trainer/loss"
    ]


def test_no_two_keys_have_one_name() -> None:
    keys = [
        KeySpec("trainer/time/step", own_name="time/step"),
        KeySpec("orchestrator/time/step", own_name="time/step"),
        KeySpec("generator/x", own_name="user/x"),
        KeySpec("user/x"),
    ]
    row = sent({one.key: 1.0 for one in keys}, keys, names=KeyNames.FRAMEWORK)
    assert list(row.values) == ["time/step", "orchestrator/time/step", "user/x", "user/x/otel_rl"]


def test_an_ending_is_repeated_until_the_name_is_free() -> None:
    keys = [
        KeySpec("generator/a", own_name="x"),
        KeySpec("generator/b", own_name="x/otel_rl"),
        KeySpec("x"),
    ]
    row = sent({one.key: float(n) for n, one in enumerate(keys)}, keys, names=KeyNames.FRAMEWORK)
    assert row.values == {"x": 0.0, "x/otel_rl": 1.0, "x/otel_rl/otel_rl": 2.0}


def test_names_do_not_depend_on_the_detail_or_on_the_order_of_rows() -> None:
    keys = [
        KeySpec("a/x", own_name="x", tier=Tier.FULL),
        KeySpec("b/x", own_name="x"),
    ]
    basic = sent({"b/x": 1.0}, keys, names=KeyNames.FRAMEWORK)
    full = sent({"b/x": 1.0, "a/x": 1.0}, keys, detail=Tier.FULL, names=KeyNames.FRAMEWORK)
    assert basic.values == {"b/x": 1.0}
    assert full.values == {"b/x": 1.0, "x": 1.0}


@pytest.mark.process
def test_a_row_without_anything_sent_keeps_its_number(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.source.catalogue[A] = [KeySpec("x", tier=Tier.FULL)]
    bench.settings = replace(bench.settings, detail=Tier.BASIC)
    bench.feed(A, 20)
    bench.wait_until_written(A)
    bench.stop()
    lines = (tmp_path / f"{run_id('a', 'default')}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["number"], row["values"]) for row in rows] == [(n, {}) for n in range(20)]
    assert bench.source.confirmations[A] == 20
