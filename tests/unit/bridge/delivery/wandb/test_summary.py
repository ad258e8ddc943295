"""What stands for a run in the table of runs."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.wandb.summary import RunSummary
from otel_rl.records import KeySpec, Row
from otel_rl.semconv import names

S = 1_000_000_000
LOSS = KeySpec("trainer/loss", names.RL_TRAIN_LOSS, "trainer", axis="step")
REWARD = KeySpec("trainer/reward/mean", names.RL_REWARD_MEAN, "trainer", axis="step")
TOKENS = KeySpec(
    "trainer/tokens/rate", names.RL_TRAIN_TOKENS, "trainer", statistic="rate", axis="step"
)
ALIVE = KeySpec("service/trainer/alive", names.RL_SERVICE_ALIVE, "trainer")
KEYS = [LOSS, REWARD, TOKENS, ALIVE]


def rows(*lines: tuple[float, dict[str, float]], start: int = 0) -> list[Row]:
    return [
        Row(number, 0, round(time_s * S), values)
        for number, (time_s, values) in enumerate(lines, start)
    ]


def reward(*values: float, start: int = 0) -> list[Row]:
    return rows(*((n, {REWARD.key: value}) for n, value in enumerate(values)), start=start)


def opened(path: Path, row: int = 0, *, keys: Sequence[KeySpec] = KEYS) -> RunSummary:
    summary = RunSummary(path / "summary", "j", row)
    summary.learn(keys)
    return summary


def shown(path: Path, given: Sequence[Row], *, keys: Sequence[KeySpec] = KEYS) -> dict[str, object]:
    summary = opened(path, keys=keys)
    summary.take(given)
    return summary.changed()


def test_the_best_reward_of_a_run_stands_beside_its_last(tmp_path: Path) -> None:
    assert shown(tmp_path, reward(0.2, 0.9, 0.4)) == {REWARD.key: {"max": 0.9, "last": 0.4}}


def test_a_diverged_step_does_not_erase_the_best(tmp_path: Path) -> None:
    found = shown(tmp_path, reward(0.2, math.nan, 0.1, math.inf))
    assert found == {REWARD.key: {"max": 0.2, "last": "Infinity"}}


def test_a_name_with_the_other_sign_has_its_smallest(tmp_path: Path) -> None:
    cost = KeySpec("cost", names.RL_REWARD_MEAN, "trainer", axis="step", own_scale=-1.0)
    found = shown(tmp_path, rows((0, {"cost": 3.0}), (1, {"cost": 5.0})), keys=[cost])
    assert found == {"cost": {"min": 3.0, "last": 5.0}}


def test_throughput_is_a_mean_over_the_run(tmp_path: Path) -> None:
    given = rows((0, {TOKENS.key: 100.0}), (1, {TOKENS.key: 300.0}))
    assert shown(tmp_path, given) == {TOKENS.key: {"mean": 200.0, "last": 300.0}}


def test_the_workers_of_a_run_that_ended_are_those_that_it_had(tmp_path: Path) -> None:
    given = rows((1, {ALIVE.key: 3.0}), (2, {ALIVE.key: 4.0}), (3, {ALIVE.key: 0.0}))
    assert shown(tmp_path, given) == {ALIVE.key: 4.0}


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_rows_that_come_again_after_a_crash_count_once(tmp_path: Path, at: int) -> None:
    given = rows(*((n, {TOKENS.key: 10.0**n, REWARD.key: -n}) for n in range(5)))
    opened(tmp_path).take(given[:3])
    resumed = opened(tmp_path, at)
    resumed.take(given[at:3])
    resumed.take(given[3:])
    assert resumed.changed() == {
        TOKENS.key: {"mean": 11_111 / 5, "last": 10_000.0},
        REWARD.key: {"max": 0.0, "last": -4.0},
    }


def test_the_best_is_continued_from_the_server_on_another_machine(tmp_path: Path) -> None:
    at_server = {REWARD.key: {"max": 0.9, "last": 0.1}, ALIVE.key: 3, "hours": 2, "_timestamp": 9e3}
    summary = RunSummary(tmp_path / "summary", "j", 7, lambda: at_server)
    summary.learn(KEYS)
    summary.take(rows((9_000, {REWARD.key: 0.3}), (9_001, {ALIVE.key: 1.0}), start=7))
    assert summary.changed() == {REWARD.key: {"max": 0.9, "last": 0.3}, ALIVE.key: 3.0}
    assert summary.hours(9_000 * S) == 2


@pytest.mark.parametrize("damage", ["", "{", '{"journal": "other", "row": 9}', "[]"])
def test_a_damaged_file_is_as_none(tmp_path: Path, damage: str) -> None:
    (tmp_path / "summary").write_text(damage)
    resumed = opened(tmp_path, 2)
    resumed.take(reward(0.3, start=2))
    assert resumed.changed() == {REWARD.key: {"max": 0.3, "last": 0.3}}


def test_hours_continue_where_the_run_began(tmp_path: Path) -> None:
    opened(tmp_path).take(reward(0.1))
    assert opened(tmp_path, 1).hours(3_600 * S) == 1


def test_a_disk_without_room_stops_no_row(tmp_path: Path) -> None:
    summary = RunSummary(tmp_path / "missing" / "summary", "j", 0)
    summary.learn(KEYS)
    summary.take(reward(0.1))
    assert summary.changed() == {REWARD.key: {"max": 0.1, "last": 0.1}}


def test_a_step_that_is_written_again_counts_once_and_does_not_stand_for_the_newest(
    tmp_path: Path,
) -> None:
    first, newest, again = (
        {LOSS.key: loss, REWARD.key: loss, TOKENS.key: 100 * loss} for loss in (4.0, 1.0, 6.0)
    )
    given = [
        Row(0, 1, 1 * S, first),
        Row(1, 2, 2 * S, newest),
        Row(2, 1, 3 * S, again, replaces=True),
    ]
    found = shown(tmp_path, given)
    assert found[LOSS.key] == 1.0
    assert found[REWARD.key] == {"max": 6.0, "last": 1.0}
    assert found[TOKENS.key] == {"mean": 250.0, "last": 100.0}


def test_a_mean_has_the_first_value_of_each_step_also_where_it_comes_late(tmp_path: Path) -> None:
    """One worker's measurements always join rows that are written."""
    lines: list[tuple[int, dict[str, float], bool]] = [
        (1, {LOSS.key: 1.0}, False),
        (2, {LOSS.key: 1.0}, False),
        (1, {LOSS.key: 1.0, TOKENS.key: 100.0}, True),
        (1, {LOSS.key: 1.0, TOKENS.key: 900.0}, True),
        (2, {LOSS.key: 1.0, TOKENS.key: 300.0}, True),
    ]
    given = [
        Row(number, step, number * S, values, replaces=again)
        for number, (step, values, again) in enumerate(lines)
    ]
    assert shown(tmp_path, given)[TOKENS.key] == {"mean": 200.0, "last": 300.0}


def of_step(number: int, step: int, value: float, *, again: bool = False) -> Row:
    values = {LOSS.key: value, REWARD.key: value, TOKENS.key: 100 * value, PIPE.key: value}
    return Row(number, step, number * S, values, policy_version=step, replaces=again)


PIPE = KeySpec("trainer/pipeline/duration", names.RL_PIPELINE_DURATION, "trainer", axis="step")


def test_the_best_value_is_that_of_all_rows_as_in_the_chart(tmp_path: Path) -> None:
    given = [of_step(0, 1, 10.0), of_step(1, 2, 1.0), of_step(2, 1, 5.0, again=True)]
    assert shown(tmp_path, given)[REWARD.key] == {"max": 10.0, "last": 1.0}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_run_that_ends_with_an_old_step_written_again_shows_its_newest_step(
    tmp_path: Path, restarts: bool
) -> None:
    summary = opened(tmp_path, keys=[*KEYS, PIPE])
    summary.take([of_step(0, 1, 4.0), of_step(1, 500, 1.0)])
    summary.changed()
    if restarts:
        summary = opened(tmp_path, 2, keys=[*KEYS, PIPE])
    summary.take([of_step(2, 1, 6.0, again=True)])
    found = summary.changed()
    assert {key: found[key] for key in ("step", "attempt", "policy_version")} == {
        "step": 500,
        "attempt": 1,
        "policy_version": 500,
    }
    assert (found[LOSS.key], found[PIPE.key]) == (1.0, 1.0)
    assert found[REWARD.key] == {"max": 6.0, "last": 1.0}
    assert found[TOKENS.key] == {"mean": 250.0, "last": 100.0}


def test_on_another_machine_an_old_step_written_again_is_not_the_newest(tmp_path: Path) -> None:
    at_server = {"step": 500, "step/attempt_2": 500, "attempt": 2, "policy_version": 7}
    summary = RunSummary(tmp_path / "summary", "j", 7, lambda: at_server)
    summary.learn(KEYS)
    summary.take([of_step(7, 1, 6.0, again=True)])
    found = summary.changed()
    assert (found["step"], found["attempt"], found["policy_version"]) == (500, 2, 7)


def test_steps_after_an_old_one_that_was_written_again_are_the_newest(tmp_path: Path) -> None:
    given = [
        of_step(0, 1, 4.0),
        of_step(1, 2, 1.0),
        of_step(2, 1, 6.0, again=True),
        of_step(3, 3, 2.0),
    ]
    found = shown(tmp_path, given, keys=[*KEYS, PIPE])
    assert not {"step", "attempt", LOSS.key, PIPE.key} & found.keys()
