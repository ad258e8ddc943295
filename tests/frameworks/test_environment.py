"""The lab's Python has real frameworks, and the otel_rl of the checkout that tests it."""

import json
from pathlib import Path

from tests.frameworks.conftest import Runner

ROOT = Path(__file__).parents[2]

NAMES = (
    "accelerate", "datasets", "gymnasium", "pytorch_lightning", "ray", "stable_baselines3",
    "tensorboardX", "torch.utils.tensorboard", "transformers", "trl", "verl.utils.tracking",
    "wandb",
)  # fmt: skip


def test_all_that_is_promised_imports_in_one_process(frameworks: Runner) -> None:
    done = frameworks.start(frameworks.python, "-c", f"import {', '.join(NAMES)}")
    assert done.status == 0, done.err


def test_otel_rl_is_the_one_of_this_checkout_with_its_entry_points(frameworks: Runner) -> None:
    code = """
        import json
        from importlib.metadata import entry_points

        import otel_rl

        groups = ["opentelemetry_meter_provider", "vllm.stat_logger_plugins"]
        found = [entry.value for group in groups for entry in entry_points(group=group)]
        print(json.dumps([otel_rl.__file__, found]))
    """
    done = frameworks.start(frameworks.python, frameworks.script(code))
    assert done.status == 0, done.err
    file, found = json.loads(done.out)
    assert Path(file).parents[1] == ROOT
    ours = {
        "otel_rl.worker.plugins:meter_provider",
        "otel_rl.integrations.vllm:OtelStatLogger",
    }
    assert ours <= set(found)
