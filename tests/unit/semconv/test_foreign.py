"""Tables of other programs' processes and spans mean what the registry means."""

import pytest

from otel_rl.semconv.aliases import sections
from otel_rl.semconv.foreign import kind_of, meaning_of, own_identity, step_keys
from otel_rl.semconv.names import PHASES, RlPhaseClassValues

CLASSES = tuple(RlPhaseClassValues)
SPANS = [*sections("spans")]


def test_phases_and_classes_are_in_the_registry() -> None:
    rules = [rule for spans in SPANS for rule in spans.get("phases", ())]
    phases = [rule["phase"] for rule in rules if "class" not in rule]
    kinds = [
        phase
        for spans in SPANS
        for values in spans.get("kinds", {}).values()
        for phase in values.values()
    ]
    classes = [
        one
        for spans in SPANS
        for values in spans.get("classes", {}).values()
        for one in values.values()
    ]
    own = {rule["phase"]: rule["class"] for rule in rules if "class" in rule}
    assert not set(own) & set(PHASES)
    assert set(own.values()) <= set(CLASSES)
    assert phases
    assert kinds
    assert set(phases) | set(kinds) <= set(PHASES)
    assert classes
    assert set(classes) <= set(CLASSES)


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("rl.grpo.generation", "generate"),
        ("rl.ppo.collect_rollouts", "generate"),
        ("rl.vllm.generate", "generate"),
        ("rl.grpo.policy_training", "train"),
        ("rl.grpo.policy_update", "train"),
        ("rl.idle.buffer_starvation", "collector_wait"),
        ("rl.sc.checkpointing", "checkpoint"),
        ("megatron.forward_backward", "train"),
        ("megatron.save_checkpoint.write", "checkpoint"),
        ("llm_request", "generate"),
        ("checkout", ""),
    ],
)
def test_a_name_is_a_phase(name: str, phase: str) -> None:
    assert meaning_of(name) == (phase, False, "")


@pytest.mark.parametrize("name", ["rl.grpo.step", "rl.sc.step", "megatron.train.iteration"])
def test_a_name_is_a_step(name: str) -> None:
    assert meaning_of(name) == ("", True, "")


def test_a_phase_of_its_own_has_a_class() -> None:
    assert meaning_of("rl.grpo.compute_logprobs") == (
        "policy_and_reference_logprobs",
        False,
        "compute",
    )


def test_an_attribute_gives_a_phase_or_a_class() -> None:
    assert kind_of("openinference.span.kind", "LLM") == ("generate", "")
    assert kind_of("gen_ai.operation.name", "execute_tool") == ("env_step", "")
    assert kind_of("rl.bucket", "idle") == ("", "wait")
    assert kind_of("rl.bucket", "other") == ("", "")
    assert kind_of("peer.service", "LLM") == ("", "")
    assert {"rl.iteration", "megatron.iteration"} <= step_keys()


def test_a_marked_process_has_the_identity_of_its_program() -> None:
    found = own_identity(
        {"nemo.run.id": "77", "rl.worker_group": "vllm_policy", "dl.rank": "3", "nv.dl.rank": "4"}
    )
    assert found == {
        "rl.experiment.name": "nemo",
        "rl.trial.name": "77",
        "rl.worker.role": "generator",
        "rl.worker.index": "4",
    }


def test_attributes_of_the_registry_are_left_as_they_are() -> None:
    named = {"rl.experiment.name": "mine", "rl.worker.role": "judge", "rl.worker.index": "0"}
    assert own_identity(named | {"nemo.run.id": "77", "dl.rank": "3"}) == {"rl.trial.name": "77"}


def test_an_unmarked_process_has_none() -> None:
    assert own_identity({"rl.worker_group": "vllm_policy", "dl.rank": "3"}) == {}


@pytest.mark.parametrize(
    ("section", "known"),
    [
        (
            "processes",
            {"marked_by", "experiment", "trial", "role", "index", "count", "roles"},
        ),
        ("spans", {"steps", "step", "phases", "classes", "kinds"}),
        ("folds", {"prefixes", "kept", "classes", "apart"}),
    ],
)
def test_no_table_has_a_field_that_nobody_reads(section: str, known: set[str]) -> None:
    found = [*sections(section)]
    assert found
    assert [of.keys() - known for of in found if of.keys() - known] == []
