"""Each setting that a diagnosis names is one of the installed framework."""

import json
import re

import pytest

from otel_rl.diagnose.prescriptions import prescriptions
from tests.frameworks.conftest import Runner, demand
from tests.lab.frameworks.environment import VLLM

PRINT = "\n    import json; print(json.dumps(sorted(there)))\n"

LOOK = {
    "trl": """
    import dataclasses
    from trl import GRPOConfig
    there = {f"GRPOConfig.{one.name}" for one in dataclasses.fields(GRPOConfig)}
    """,
    "verl": """
    import importlib.resources, yaml
    path = importlib.resources.files("verl") / "trainer/config/_generated_ppo_trainer.yaml"

    def names(of, before=""):
        for name, value in of.items():
            yield before + name
            if isinstance(value, dict):
                yield from names(value, f"{before}{name}.")

    there = set(names(yaml.safe_load(path.read_text())))
    """,
    "stable-baselines3": """
    import inspect
    from stable_baselines3 import PPO
    there = {f"PPO.{name}" for name in inspect.signature(PPO.__init__).parameters}
    """,
}

VLLM_ARGUMENTS = """
    import importlib.util, pathlib, re
    root = pathlib.Path(importlib.util.find_spec("vllm").origin).parent
    fields = re.findall(r"^    (\\w+): ", (root / "engine" / "arg_utils.py").read_text(), re.M)
    there = {"--" + name.replace("_", "-") for name in fields}
    """


def named(framework: str) -> set[str]:
    """Every setting of a framework that a prescription names, also within its sentences."""
    of_it = [one for one in prescriptions() if one.framework == framework]
    words = [name for one in of_it for name in re.findall(r"`([^`]+)`", one.action + one.then)]
    settings = {
        name for name in words if re.match(r"GRPOConfig\.|PPO\.|actor_rollout_ref\.|--", name)
    }
    return settings | {one.setting for one in of_it}


def there(runner: Runner, look: str) -> set[str]:
    done = runner.start(runner.python, runner.script(look + PRINT))
    assert done.status == 0, done.err
    return set(json.loads(done.out.splitlines()[-1]))


def test_every_framework_is_looked_at() -> None:
    assert {one.framework for one in prescriptions()} == {*LOOK, "vllm"}


@pytest.mark.parametrize("framework", LOOK)
def test_every_setting_is_there(frameworks: Runner, framework: str) -> None:
    assert named(framework) - there(frameworks, LOOK[framework]) == set()


def test_every_setting_of_vllm_is_there(frameworks: Runner) -> None:
    demand(VLLM, "vLLM")
    runner = Runner(VLLM.python, frameworks.directory, frameworks.metadata)
    assert named("vllm") - there(runner, VLLM_ARGUMENTS) == set()
