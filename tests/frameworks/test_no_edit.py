"""Scripts without a line about otel_rl, of real frameworks, give a run with their metrics."""

import re

import pytest

from tests.frameworks.conftest import Runner
from tests.process.commands import jsonl_rows

GRPO = """
    import datasets, tokenizers, torch, transformers, trl
    from tokenizers import models, pre_tokenizers

    torch.manual_seed(0)
    words = {word: number for number, word in enumerate("<pad> <eos> a b c d".split())}
    of_words = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    of_words.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trl.GRPOTrainer(
        model=transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
            vocab_size=6, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
            pad_token_id=0, eos_token_id=1, bos_token_id=None,
        )),
        processing_class=transformers.PreTrainedTokenizerFast(
            tokenizer_object=of_words, pad_token="<pad>", eos_token="<eos>", padding_side="left"
        ),
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        train_dataset=datasets.Dataset.from_dict({"prompt": ["a b c", "d a b"] * 8}),
        args=trl.GRPOConfig(
            output_dir="out", max_steps=3, logging_steps=1, save_strategy="no",
            per_device_train_batch_size=2, num_generations=2, max_completion_length=4,
            report_to=[], use_cpu=True, disable_tqdm=True,
        ),
    )
    trainer.train()
    print("rewards", [entry["reward"] for entry in trainer.state.log_history if "reward" in entry])
"""


def test_trl_trains_and_its_metrics_are_in_the_run(frameworks: Runner) -> None:
    done = frameworks.run(GRPO)
    assert done.status == 0, done.err
    line = next(line for line in done.out.splitlines() if line.startswith("rewards "))
    rewards = [float(text) for text in re.findall(r"[-\d.e]+", line.removeprefix("rewards "))]
    rows = jsonl_rows(frameworks.directory, "real")
    found = {row.step: row.values["trainer/reward/mean"] for row in rows
             if "trainer/reward/mean" in row.values}  # fmt: skip
    assert found == pytest.approx(dict(enumerate(rewards, start=1)))
    assert len(found) == 3


VERL = """
    import pathlib, time

    import ray

    class Task:
        def fit(self):
            from verl.utils.tracking import Tracking

            tracking = Tracking("project", "name", ["console"], config={"lr": 0.1})
            for step in range(1, 4):
                tracking.log({"actor/pg_loss": 0.5 * step, "custom": step}, step)
            self.tracking = tracking

    for _ in range(10):  # it gives up after half a minute, on a machine that has other work
        try:
            ray.init("local", num_cpus=2, include_dashboard=False, logging_level="error")
            break
        except Exception:
            ray.shutdown()
    task = ray.remote(Task).remote()
    ray.get(task.fit.remote())
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:  # Ray ends the actor with what it has not sent
        if any('"trainer/custom":3' in file.read_text().replace(" ", "").replace("3.0", "3")
               for file in pathlib.Path().rglob("*.jsonl")):
            print("seen")
            break
        time.sleep(0.1)
"""


def test_verl_in_a_ray_actor_reports_from_there(frameworks: Runner) -> None:
    done = frameworks.run(VERL)
    assert done.status == 0, done.err
    assert "seen" in done.out, done.err
    rows = jsonl_rows(frameworks.directory, "real")
    found = {row.step: row.values["trainer/custom"] for row in rows
             if "trainer/custom" in row.values}  # fmt: skip
    assert found == {1: 1.0, 2: 2.0, 3: 3.0}
    losses = [row.values["trainer/loss/policy"] for row in rows
              if "trainer/loss/policy" in row.values]  # fmt: skip
    assert losses == [0.5, 1.0, 1.5]


PLAIN = """
    import multiprocessing

    def train():
        from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
        import torch

        class Tiny(PreTrainedModel):
            config_class = PretrainedConfig

            def __init__(self, config):
                super().__init__(config)
                self.layer = torch.nn.Linear(2, 1)
                self.post_init()

            def forward(self, x=None, labels=None):
                return {"loss": ((self.layer(x) - labels) ** 2).mean()}

        arguments = TrainingArguments("out", report_to=[], logging_steps=1, max_steps=2,
                                      use_cpu=True, save_strategy="no", disable_tqdm=True)
        rows = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 16
        Trainer(Tiny(PretrainedConfig()), arguments, train_dataset=rows).train()

    if __name__ == "__main__":
        child = multiprocessing.get_context("spawn").Process(target=train)
        child.start()
        child.join()
        print("child", child.exitcode)
"""


@pytest.mark.parametrize(("options", "steps"), [((), [1, 2]), (("--no-adapters",), [])],
                         ids=["on", "off"])  # fmt: skip
def test_a_child_process_trains_and_reports_unless_told_not_to(
    frameworks: Runner, options: tuple[str, ...], steps: list[int]
) -> None:
    done = frameworks.run(PLAIN, *options)
    assert done.status == 0, done.err
    assert "child 0" in done.out, done.err
    if steps:
        rows = jsonl_rows(frameworks.directory, "real")
        assert [row.step for row in rows if "trainer/loss" in row.values] == steps
    else:
        assert not list(frameworks.directory.rglob("*.jsonl")), done.err
        assert "nothing was reported" in done.err
