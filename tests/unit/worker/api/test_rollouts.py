"""Rollouts by identity, as a receiver reads them: while they run, and when they have ended."""

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

import otel_rl
from otel_rl import lineage
from otel_rl.worker.drops import DropReason
from otel_rl.worker.rollouts import OPEN, OpenRollout, OpenRollouts
from otel_rl.worker.session import GUARD
from tests.support.otlp_sink import Sink


@pytest.fixture(autouse=True)
def of_this_test() -> Iterator[None]:
    GUARD.drops.reset()
    OPEN.forget()
    yield
    OPEN.forget()


def bodies(sink: Sink, name: str) -> list[dict[str, Any]]:
    assert otel_rl.flush(timeout_s=60)
    return [cast("dict[str, Any]", one.body) for one in sink.events(f"rl.rollout.{name}")]


def test_a_rollout_is_told_while_it_runs_with_its_phase_as_its_stage(started: Sink) -> None:
    with lineage.rollout("17", 2, prompt="add", environment="math", group=4):
        with otel_rl.phase("generate"):
            (first,) = bodies(started, "progress")
        with otel_rl.phase("env_step"):
            *_, second = bodies(started, "progress")
    assert {**first, **dict.fromkeys(("begun_ns", "progress_ns"))} == {
        "id": "17",
        "attempt": 2,
        "environment": "math",
        "group": "4",
        "prompt": "add",
        "stage": "generate",
        "begun_ns": None,
        "progress_ns": None,
    }
    assert second["stage"] == "env_step"
    assert second["progress_ns"] > first["progress_ns"] >= first["begun_ns"] == second["begun_ns"]


def test_without_progress_there_is_no_further_event_for_a_while(
    started: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_rl.worker.rollouts.AGAIN_NS", 1 << 60)
    with lineage.rollout("17") as rollout:
        bodies(started, "progress")
        assert len(bodies(started, "progress")) == 1
        rollout.stage("turn 2")
        assert [one["stage"] for one in bodies(started, "progress")] == ["", "turn 2"]


def test_a_rollout_without_progress_is_told_again(
    started: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a receiver has one whose worker it took for lost, or whose record was lost."""
    monkeypatch.setattr("otel_rl.worker.rollouts.AGAIN_NS", 0)
    with lineage.rollout("17"):
        bodies(started, "progress")
        first, again = bodies(started, "progress")
    assert first == again


def test_open_rollouts_take_turns_whatever_the_others_do() -> None:
    some = OpenRollouts()
    hanging, *moving = [OpenRollout({"id": n}, None, "") for n in range(1_500)]
    for one in (*moving, hanging):
        some.add(one)
    told: list[OpenRollout] = []
    for export in range(3):
        for one in (due := some.due(export)):
            some.told(one, export)
        told += due
        for one in moving:
            one.moved("on")
    assert hanging in told
    assert {*moving} <= {*told}


def test_a_short_rollout_is_one_sample(started: Sink) -> None:
    with otel_rl.step(5), lineage.rollout("17", prompt="add", environment="math") as rollout:
        rollout.end(reward=0.5, outcome="truncated", reason="limit", fields={"completion": "14"})
        rollout.end(reward=1.0)
    assert bodies(started, "progress") == []
    (sample,) = bodies(started, "sample")
    assert sample.pop("duration_s") >= 0
    assert sample == {
        "id": "17",
        "attempt": 1,
        "environment": "math",
        "prompt": "add",
        "completion": "14",
        "reward": 0.5,
        "outcome": "truncated",
        "reason": "limit",
    }
    (event,) = started.events("rl.rollout.sample")
    assert event.attributes["rl.loop.iteration"] == 5


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TimeoutError(), "timeout"),
        (asyncio.CancelledError(), "cancelled"),
        (ConnectionError("sandbox"), "environment_failed"),
    ],
)
def test_an_exception_ends_a_rollout_and_passes(
    started: Sink, error: BaseException, outcome: str
) -> None:
    with pytest.raises(type(error)), lineage.rollout("17"):
        raise error
    (sample,) = bodies(started, "sample")
    assert (sample["outcome"], sample["reason"]) == (outcome, type(error).__name__)


def test_an_unknown_outcome_is_left_out_and_counted(started: Sink) -> None:
    with lineage.rollout("17") as rollout:
        rollout.end(outcome="lost")
    (sample,) = bodies(started, "sample")
    assert "outcome" not in sample
    assert GUARD.drops.counts()[DropReason.BAD_STATUS] == 1


def test_each_task_and_thread_moves_its_own_rollout(started: Sink) -> None:
    async def one(name: str, entered: asyncio.Barrier) -> None:
        async with lineage.rollout(name):
            with otel_rl.phase(name):
                await entered.wait()
                if name == "a":
                    await asyncio.to_thread(otel_rl.flush, timeout_s=60)
                await entered.wait()

    async def both() -> None:
        entered = asyncio.Barrier(2)
        await asyncio.gather(one("a", entered), one("b", entered))

    def alone() -> None:
        with lineage.rollout("c"), otel_rl.phase("c"):
            otel_rl.flush(timeout_s=60)

    asyncio.run(both())
    thread = threading.Thread(target=alone)
    thread.start()
    thread.join()
    told = bodies(started, "progress")
    assert {(one["id"], one["stage"]) for one in told} == {(name, name) for name in "abc"}
    assert sorted(one["id"] for one in bodies(started, "sample")) == ["a", "b", "c"]


@pytest.mark.process
def test_a_forked_child_ends_no_rollout_of_its_parent(started: Sink) -> None:
    rollout = lineage.rollout("17")
    with rollout:
        pid = os.fork()
        if pid == 0:
            try:
                rollout.end(reward=1.0)
                code = int(bool(OPEN.due(1 << 62)))
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [one["id"] for one in bodies(started, "sample")] == ["17"]


def test_a_conversation_stays_one_when_its_texts_are_cut(started: Sink) -> None:
    messages = [{"role": "user", "content": "é" * 30_000}, {"role": "assistant", "content": "14"}]
    otel_rl.log_samples([{"messages": messages, "prompt": messages[1:]}])
    (sample,) = bodies(started, "sample")
    found = json.loads(sample["messages"])
    assert [one["role"] for one in found] == ["user", "assistant"]
    assert found[0]["content"].startswith("éééé")
    assert len(sample["messages"]) <= 16_384
    assert json.loads(sample["prompt"]) == messages[1:]
    assert GUARD.drops.counts()[DropReason.TEXT_CUT] == 1


def test_messages_that_are_no_json_are_a_text(started: Sink) -> None:
    circular: list[object] = [{"role": "user"}]
    circular[0]["content"] = circular  # type: ignore[index]
    for messages in ([{"role": "user", (1, 2): "odd"}], circular):
        with lineage.rollout("17") as rollout:
            rollout.end(reward=0.5, fields={"messages": messages})
    for sample in bodies(started, "sample"):
        assert sample["reward"] == 0.5
        assert "user" in sample["messages"]
    assert len(bodies(started, "sample")) == 2


def test_fields_that_are_no_mapping_are_counted_and_the_end_stays(started: Sink) -> None:
    before = GUARD.drops.counts().get(DropReason.BAD_SAMPLE, 0)
    with lineage.rollout("17") as rollout:
        rollout.end(reward=0.5, fields=cast("Any", ["completion"]))
    (sample,) = bodies(started, "sample")
    assert sample["reward"] == 0.5
    assert GUARD.drops.counts()[DropReason.BAD_SAMPLE] == before + 1


def test_open_rollouts_are_bounded_and_the_others_are_told_at_their_end(
    started: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_rl.worker.rollouts.MAX_OPEN", 1)
    with lineage.rollout("a"), lineage.rollout("b"):
        assert [one["id"] for one in bodies(started, "progress")] == ["a"]
    assert [one["id"] for one in bodies(started, "sample")] == ["b", "a"]
    assert GUARD.drops.counts()[DropReason.TOO_MANY_SAMPLES] == 1
