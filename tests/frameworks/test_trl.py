"""TRL's GRPO trains a tiny random model, and all that it logs is in the run."""

import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.frameworks.conftest import Runner
from tests.process.commands import Finished, Row, jsonl_rows

STEPS = 20
SAVED, KILLED = 10, 12

TRAINER = f"""
    import time

    import datasets, tokenizers, torch, transformers, trl
    from tokenizers import models, pre_tokenizers

    import otel_rl.integrations.trl

    torch.manual_seed(0)
    words = {{word: number for number, word in enumerate("<pad> <eos> a b c d e f".split())}}
    model_of_words = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    model_of_words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model_of_words, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        pad_token_id=0, eos_token_id=1, bos_token_id=None,
    ))
    prompts = datasets.Dataset.from_dict({{"prompt": ["a b c", "d e f"] * 8}})

    class Slow(transformers.TrainerCallback):
        def on_prediction_step(self, *_, **__):
            time.sleep(1.5)  # an evaluation takes longer than the row of a step waits

    trainer = trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        train_dataset=prompts,
        eval_dataset=prompts.select(range(2)),
        callbacks=[otel_rl.integrations.trl.OtelCallback(), Slow()],
        args=trl.GRPOConfig(
            output_dir="out", max_steps={STEPS}, logging_steps=1, save_strategy="no",
            per_device_train_batch_size=2, per_device_eval_batch_size=2, num_generations=2,
            max_completion_length=4, report_to=[], use_cpu=True, disable_tqdm=True,
        ),
    )
"""

GRPO = f"""{TRAINER}
    trainer.train()
    print("logged", [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    print("evaluated", trainer.evaluate()["eval_loss"])
"""

RESUMED = f"""{TRAINER}
    import os, pathlib, signal

    class Killed(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs, **_):
            if "loss" in logs:
                print("logged", state.global_step, repr(logs["loss"]), flush=True)

        def on_step_end(self, args, state, control, **_):
            if state.global_step == {KILLED} and not is_resumed:
                os.kill(os.getpid(), signal.SIGKILL)

    otel_rl.integrations.adapter._DELIVERY_S = 60  # a busy machine
    is_resumed = any(pathlib.Path("out").glob("checkpoint-*"))
    trainer.args.save_strategy, trainer.args.save_steps = "steps", {SAVED}
    trainer.add_callback(Killed())
    trainer.train(resume_from_checkpoint=is_resumed)
"""

EVERYTHING = f"""{TRAINER}
    trainer.args.logging_steps = 3  # the last steps are in no log of their own
    trainer.train()
    trainer.state.save_to_json("state.json")
"""

FAILED = f"""{TRAINER}
    def failing(completions, **_):
        raise ValueError("of the user")

    trainer.reward_funcs = [failing]
    trainer.train()
"""

CAUGHT = f"""{TRAINER}
    import otel_rl

    def failing(completions, **_):
        raise ValueError("of the user")

    trainer.reward_funcs = [failing]
    try:
        trainer.train()
    except ValueError:
        pass
    with otel_rl.step(50), otel_rl.phase("of_the_program"):
        pass
"""

THREADS = f"""{TRAINER}
    import copy, threading

    other = trl.GRPOTrainer(
        model=copy.deepcopy(model),
        processing_class=tokenizer,
        reward_funcs=trainer.reward_funcs,
        train_dataset=prompts,
        callbacks=[otel_rl.integrations.trl.OtelCallback()],
        args=trainer.args,
    )
    both = threading.Barrier(2)

    class Together(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            both.wait()

    trainer.args.max_steps = 3
    threads = []
    for one in (trainer, other):
        one.add_callback(Together())
        threads.append(threading.Thread(target=one.train))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("trained", trainer.state.global_step, other.state.global_step)
"""

SIGNALS = f"""{TRAINER}
    import json

    from otel_rl import lineage
    from otel_rl.worker.api.learning import batch_figures

    ours = []

    def has_an_a(prompts, completions, **_):
        rewards = [float("a" in text) for text in completions]
        stamps = [
            lineage.score(lineage.stamp(), reward=reward, group=place // 4)
            for place, reward in enumerate(rewards)
        ]
        read = map(lineage.read, stamps)
        ours.append(dict(batch_figures((one.group, one.reward, one.outcome) for one in read)))
        return rewards

    trainer = trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=has_an_a,
        train_dataset=prompts,
        callbacks=[otel_rl.integrations.trl.OtelCallback()],
        args=trl.GRPOConfig(
            output_dir="out", max_steps={STEPS}, logging_steps=1, save_strategy="no",
            per_device_train_batch_size=16, num_generations=4, max_completion_length=4,
            report_to=[], use_cpu=True, disable_tqdm=True,
        ),
    )
    trainer.train()
    theirs = [entry for entry in trainer.state.log_history if "loss" in entry]
    print("signals", json.dumps([ours, theirs]))
"""

_LOGGED = re.compile(r"^logged (\d+) (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def training(
    frameworks_python: Path,
    metadata_of_this_checkout: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Finished, Sequence[Row]]:
    runner = Runner(frameworks_python, tmp_path_factory.mktemp("grpo"), metadata_of_this_checkout)
    done = runner.run(GRPO)
    assert done.status == 0, done.err
    return done, jsonl_rows(runner.directory, "real")


def _column(rows: Sequence[Row], key: str) -> tuple[list[int], list[float]]:
    found = [(row.step, row.values[key]) for row in rows if key in row.values]
    return [step for step, _ in found], [value for _, value in found]


def test_every_step_is_in_the_run_to_the_last(training: tuple[Finished, Sequence[Row]]) -> None:
    done, rows = training
    (line,) = [line for line in done.out.splitlines() if line.startswith("logged ")]
    losses = [float(text) for text in line.removeprefix("logged ").strip("[]").split(",")]
    assert len(losses) == STEPS
    steps, values = _column(rows, "trainer/loss")
    assert steps == [*range(1, STEPS + 1)]
    assert values == pytest.approx(losses)


def test_all_that_the_trainer_keeps_is_in_the_run_under_its_own_names(frameworks: Runner) -> None:
    as_a_user = {
        "OTEL_RL_BRIDGE__TRACKER__DETAIL": "basic",
        "OTEL_RL_BRIDGE__TRACKER__NAMES": "framework",
    }
    done = frameworks.run(EVERYTHING, env=as_a_user)
    assert done.status == 0, done.err
    state = json.loads((frameworks.directory / "state.json").read_text())
    rows = jsonl_rows(frameworks.directory, "real")
    logs = [(entry.pop("step"), entry) for entry in state["log_history"]]
    assert len(logs) == STEPS // 3 + 1  # and the summary
    for step, entry in logs:
        for name, value in entry.items():
            found = [row.values[name] for row in rows if row.step == step and name in row.values]
            assert found == [pytest.approx(value)], (step, name)


_SAME = {
    "trainer/group/no_signal": "frac_reward_zero_std",
    "trainer/policy/clip_fraction/low": "clip_ratio/low_mean",
    "trainer/policy/clip_fraction/high": "clip_ratio/high_mean",
    "trainer/sample/truncated": "completions/clipped_ratio",
    "trainer/reward/component/has_an_a": "rewards/has_an_a/mean",
}


def test_signals_of_learning_are_the_trainers_own_and_lineage_finds_the_same(
    frameworks: Runner,
) -> None:
    done = frameworks.run(SIGNALS)
    assert done.status == 0, done.err
    (line,) = [line for line in done.out.splitlines() if line.startswith("signals ")]
    ours, theirs = json.loads(line.removeprefix("signals "))
    rows = jsonl_rows(frameworks.directory, "real")
    for key, name in _SAME.items():
        assert _column(rows, key)[1] == pytest.approx([entry[name] for entry in theirs]), key
    dead = [entry["frac_reward_zero_std"] for entry in theirs]
    assert [one["rl.group.no_signal"] for one in ours] == pytest.approx(dead)
    assert 0 < sum(dead) < STEPS  # both kinds of groups


def test_an_evaluation_after_the_training_is_at_the_last_step_and_not_late(
    training: tuple[Finished, Sequence[Row]],
) -> None:
    done, rows = training
    (line,) = [line for line in done.out.splitlines() if line.startswith("evaluated ")]
    loss = float(line.removeprefix("evaluated "))
    steps, values = _column(rows, "trainer/eval_loss")
    assert steps == [STEPS]
    assert values == pytest.approx([loss])
    assert "late" not in done.err


def test_the_phases_of_a_step_add_up_to_it(training: tuple[Finished, Sequence[Row]]) -> None:
    _, rows = training
    steps, durations = _column(rows, "trainer/iteration/duration")
    assert steps == [*range(1, STEPS + 1)]
    names = ("batch_create", "generate", "reward", "train", "unaccounted")
    columns = {name: _column(rows, f"phase/trainer/{name}") for name in names}
    assert [found for found, _ in columns.values()] == [steps] * len(names)
    sums = [sum(values) for values in zip(*(found for _, found in columns.values()), strict=True)]
    assert sums == pytest.approx(durations)
    assert min(columns["generate"][1]) > 0


@pytest.mark.tried(
    "TRL, transformers",
    "TRL",
    "transformers",
    seen="each step, its phases, an evaluation after the end; killed and resumed: one run",
)
def test_a_training_that_is_killed_and_resumed_has_every_step_in_one_run(
    frameworks: Runner,
) -> None:
    killed = frameworks.run(RESUMED)
    assert killed.status == 128 + signal.SIGKILL, killed.err
    resumed = frameworks.run(RESUMED)
    assert resumed.status == 0, resumed.err
    logged = [
        {int(step): float(value) for step, value in _LOGGED.findall(done.out)}
        for done in (killed, resumed)
    ]
    assert (min(logged[1]), max(logged[1])) == (SAVED + 1, STEPS)
    steps, values = _column(jsonl_rows(frameworks.directory, "real"), "trainer/loss")
    assert dict(zip(steps, values, strict=True)) == pytest.approx(logged[0] | logged[1])
    repeated = set(range(SAVED + 1, KILLED))
    assert {step for step in steps if steps.count(step) > 1} <= repeated


def test_a_training_that_fails_ends_its_step(frameworks: Runner) -> None:
    done = frameworks.run(FAILED)
    assert done.status == 1
    assert "of the user" in done.err
    assert "are not measured" not in done.err
    steps, _ = _column(jsonl_rows(frameworks.directory, "real"), "phase/trainer/generate")
    assert steps == [1]


def test_a_step_ends_with_the_training_whose_failure_the_program_catches(
    frameworks: Runner,
) -> None:
    done = frameworks.run(CAUGHT)
    assert done.status == 0, done.err
    assert "step was opened within a step" not in done.err
    rows = jsonl_rows(frameworks.directory, "real")
    assert _column(rows, "trainer/iteration/duration")[0] == [1, 50]
    assert _column(rows, "phase/trainer/of_the_program")[0] == [50]


def test_trainings_of_two_threads_have_steps_of_their_own(frameworks: Runner) -> None:
    done = frameworks.run(THREADS)
    assert done.status == 0, done.err
    assert "trained 3 3" in done.out
    for refused in ("opened and closed by different threads", "opened within a step"):
        assert refused not in done.err
    rows = jsonl_rows(frameworks.directory, "real")
    assert _column(rows, "trainer/iteration/duration")[0] == [1, 2, 3]
    assert _column(rows, "phase/trainer/generate")[0] == [1, 2, 3]
