"""Rows wait until the W&B run is known that the program makes itself."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.manager import RunState
from otel_rl.bridge.delivery.tracker import RunInfo, backend
from otel_rl.bridge.delivery.wandb.account import OWN_RUN
from otel_rl.bridge.delivery.wandb.shared import SharedWandbTracker
from otel_rl.bridge.delivery.wandb.tracker import WandbTracker
from otel_rl.records import Description, ExperimentKey, ExperimentStatus
from tests.unit.bridge.delivery.bench import Bench
from tests.unit.bridge.delivery.test_ending import Tracker

A = ExperimentKey("a")
COMPLETE = Description(status=ExperimentStatus.COMPLETE)
PATH = "team/grpo/ab12"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("WANDB_MODE", "WANDB_BASE_URL", "WANDB_RUN_ID"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def tracker() -> Tracker:
    return Tracker()


@pytest.fixture
def bench(tmp_path: Path, tracker: Tracker) -> Iterator[Bench]:
    bench = Bench(tmp_path / "runs", lambda _: tracker)
    attributes = {"attach": OWN_RUN}
    bench.settings = replace(bench.settings, tracker="wandb", attributes=attributes)
    yield bench
    bench.stop(timeout_s=0)


def waits(bench: Bench) -> bool:
    """Whether the delivery has looked at the run, and neither opened nor forgot it."""
    bench.wait_for(A, lambda _: not bench.delivery.busy())
    bench.delivery.let_go(bench.delivery.over())
    return bench.status(A).pending == 3


@pytest.mark.parametrize("own_run", [PATH, ""])
def test_rows_wait_for_word_of_the_programs_run_and_are_then_written(
    bench: Bench, tracker: Tracker, own_run: str
) -> None:
    bench.feed(A, 3)
    assert waits(bench)
    bench.describe(A, COMPLETE)  # of a process that has come and gone before the others
    assert waits(bench)
    bench.describe(A, Description(own_run=own_run))
    bench.wait_until_written(A)
    assert tracker.descriptions[0].own_run == own_run


def test_without_word_of_it_the_rows_of_an_ended_run_are_written_as_the_bridge_ends(
    bench: Bench, tracker: Tracker
) -> None:
    bench.feed(A, 3)
    bench.describe(A, COMPLETE)
    assert waits(bench)
    status = bench.stop()["a"]
    assert (status.state, status.pending, tracker.rows) == (RunState.FINISHED, 0, 3)


def test_rows_of_a_run_that_goes_on_without_the_bridge_wait_for_the_next_bridge(
    bench: Bench, tracker: Tracker
) -> None:
    bench.feed(A, 3)
    assert waits(bench)
    status = bench.stop()["a"]
    assert (status.state, status.pending) == (RunState.WAITING, 3)
    assert tracker.descriptions == []


def test_once_nothing_can_follow_the_rows_of_any_run_are_written(
    bench: Bench, tracker: Tracker
) -> None:
    bench.feed(A, 3)
    assert waits(bench)
    bench.delivery.expect_nothing()
    bench.wait_until_written(A)
    assert tracker.rows == 3


def test_a_program_that_names_the_mode_offline_is_not_waited_for(
    bench: Bench, tracker: Tracker
) -> None:
    bench.settings = replace(bench.settings, attributes={"attach": OWN_RUN, "mode": "{mode}"})
    bench.describe(A, Description(mode="offline"))
    bench.feed(A, 3)
    bench.wait_until_written(A)


def test_offline_nothing_waits(
    bench: Bench, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    bench.feed(A, 3)
    bench.wait_until_written(A)


def test_rows_go_on_where_they_have_begun_whatever_is_said_later(tmp_path: Path) -> None:
    def made(own_run: str | None, directory: Path) -> type[object]:
        directory.mkdir(exist_ok=True)
        info = RunInfo(A, "a" * 16, directory, (("attach", OWN_RUN),))
        return type(
            backend("wandb").create(replace(info, description=Description(own_run=own_run)))
        )

    assert made(None, tmp_path / "beside") is WandbTracker
    assert made(PATH, tmp_path / "beside") is WandbTracker
    assert made(PATH, tmp_path / "joined") is SharedWandbTracker
    assert made("", tmp_path / "refused") is WandbTracker
