"""How rollouts ended, read from results in the form that environments document."""

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_rl
from otel_rl.integrations.results import RolloutResult, nemo_gym, verifiers
from otel_rl.semconv import names
from otel_rl.worker.api import lineage
from otel_rl.worker.drops import DropReason
from otel_rl.worker.session import GUARD
from tests.support.otlp_sink import Sink

GYM: dict[str, Any] = {
    "_ng_task_index": 7,
    "_ng_rollout_index": 2,
    "agent_ref": {"type": "responses_api_agents", "name": "swe_agent"},
    "reward": 0.0,
    "response": {"usage": {"input_tokens": 900, "output_tokens": 312}, "incomplete_details": None},
}
"""A line of NeMo Gym's file of rollouts, as far as it is read."""


@pytest.mark.parametrize(
    ("fields", "outcome", "reason"),
    [
        ({}, "trained", None),
        ({"mask_sample": False}, "trained", None),
        ({"mask_sample": True, "error_kind": "sandbox"}, "masked", "sandbox"),
        ({"mask_sample": True, "eval_timed_out": True}, "masked", "eval_timed_out"),
        ({"instance_config": {"mask_sample": True}}, "masked", None),
        ({"error_kind": "sandbox", "mask_sample": False}, "environment_failed", "sandbox"),
        ({"error_kind": "eval_timeout"}, "timeout", "eval_timeout"),
        ({"failure_kind": "judge_error"}, "grader_failed", "judge_error"),
        (
            {"failure_reason": "session reset failed: 503 of session 1f3a"},
            "environment_failed",
            "session reset failed",
        ),
        ({"agent_timed_out": True, "mask_sample": False}, "timeout", "agent_timed_out"),
        ({"agent_error_kind": "max_iteration"}, "truncated", "max_iteration"),
        ({"agent_error_kind": "other"}, "trained", None),
        (
            {"response": {"incomplete_details": {"reason": "max_output_tokens"}}},
            "truncated",
            "max_output_tokens",
        ),
    ],
)
def test_a_result_of_nemo_gym_tells_how_it_ended(
    fields: dict[str, Any], outcome: str, reason: str | None
) -> None:
    told = nemo_gym(json.loads(json.dumps(GYM | fields)))
    assert (told["outcome"], told.get("reason")) == (outcome, reason)
    assert (told["reward"], told["environment"], told["group"]) == (0.0, "swe_agent", "7")


def test_objects_tell_the_same_as_their_records() -> None:
    fields = {**GYM, "agent_ref": SimpleNamespace(**GYM["agent_ref"])}
    assert nemo_gym(SimpleNamespace(**fields)) == nemo_gym(GYM)


def test_parts_of_the_reward_are_told() -> None:
    told = nemo_gym(GYM | {"reward_components": {"format": 1.0, "note": "good"}})
    assert told["components"] == {"format": 1.0}


TRACE: dict[str, Any] = {
    "task": {"type": "MathTask", "data": {}, "key": None, "hash": "d1c9"},
    "rewards": {"correct": {"score": 1.0, "weight": 1.0}, "format": {"score": 0.5, "weight": 0.2}},
    "ok": True,
    "is_completed": True,
    "is_timeout": False,
    "stop_condition": "agent_completed",
    "errors": [],
    "num_output_tokens": 41,
}


def error(kind: str) -> dict[str, Any]:
    return {"ok": False, "errors": [{"type": kind, "message": "no"}], "rewards": {"correct": None}}


@pytest.mark.parametrize(
    ("fields", "outcome", "reason"),
    [
        ({}, "trained", None),
        (error("SandboxError"), "environment_failed", "SandboxError"),
        (error("ProviderError"), "environment_failed", "ProviderError"),
        (error("TaskError"), "grader_failed", "TaskError"),
        ({"is_timeout": True, "ok": False, "stop_condition": "timeout"}, "timeout", "timeout"),
        ({"stop_condition": "max_turns"}, "truncated", "max_turns"),
        ({"is_truncated": True, "stop_condition": None}, "truncated", "length"),
    ],
)
def test_a_trace_of_verifiers_tells_how_it_ended(
    fields: dict[str, Any], outcome: str, reason: str | None
) -> None:
    told = verifiers(TRACE | fields)
    assert (told["outcome"], told.get("reason")) == (outcome, reason)
    assert (told["environment"], told["group"], told["length"]) == ("MathTask", "d1c9", 41)


def test_rewards_of_a_trace_are_weighted_and_a_trace_that_was_not_scored_has_none() -> None:
    assert verifiers(TRACE)["reward"] == pytest.approx(1.1)
    assert verifiers(TRACE)["components"] == pytest.approx({"correct": 1.0, "format": 0.1})
    assert "reward" not in verifiers(TRACE | error("SandboxError"))


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda of: (
        st.lists(of, max_size=3)
        | st.dictionaries(
            st.sampled_from([*GYM, *TRACE, "usage", "reason", "type"]), of, max_size=4
        )
    ),
)


@given(_JSON)
def test_a_result_of_any_other_form_raises_nothing(result: object) -> None:
    assert set(nemo_gym(result)) | set(verifiers(result)) <= RolloutResult.__annotations__.keys()


def test_what_failed_and_is_not_masked_is_poison(sink: Sink) -> None:
    otel_rl.init(role="env")
    lineage.score({}, **nemo_gym(GYM | {"error_kind": "sandbox"}))
    lineage.score({}, **nemo_gym(GYM | {"error_kind": "sandbox", "mask_sample": True}))
    lineage.score({}, **verifiers(TRACE | error("SandboxError")))
    assert otel_rl.flush(timeout_s=60)
    assert [m.value for m in sink.measurements(names.RL_SAMPLE_POISONED)] == [1.0, 0.0, 0.0]


def test_a_result_that_raises_tells_nothing_and_is_counted() -> None:
    class Broken:
        reward = 10**400

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    before = GUARD.drops.counts().get(DropReason.BAD_SAMPLE, 0)
    assert nemo_gym(Broken()) == {"reward": math.inf, "outcome": "trained"}
    assert verifiers(Broken()) == {}
    assert GUARD.drops.counts()[DropReason.BAD_SAMPLE] > before
