"""Each setting that a diagnosis names is one of the installed framework."""

import json
import re

import pytest

from otel_rl.diagnose.prescriptions import prescriptions
from tests.frameworks.conftest import Runner, demand
from tests.lab.frameworks.environment import RLLIB, VLLM

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

OF_OTHER_ENVIRONMENTS = {
    "vllm": (
        VLLM,
        """
    import importlib.util, pathlib, re
    root = pathlib.Path(importlib.util.find_spec("vllm").origin).parent
    fields = re.findall(r"^    (\\w+): ", (root / "engine" / "arg_utils.py").read_text(), re.M)
    there = {"--" + name.replace("_", "-") for name in fields}
    """,
    ),
    "ray": (
        RLLIB,
        """
    import inspect
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    there = set()
    for config in (AlgorithmConfig, PPOConfig):
        for method in ("env_runners", "fault_tolerance", "learners", "training"):
            of = f"{config.__name__}.{method}"
            names = set(inspect.signature(getattr(config, method)).parameters)
            there |= {of} | names | {f"{of}({name})" for name in names}
    """,
    ),
}


def named(framework: str) -> set[str]:
    """Every setting of a framework that a prescription names, also within its sentences."""
    of_it = [one for one in prescriptions() if one.framework == framework]
    words = [name for one in of_it for name in re.findall(r"`([^`]+)`", one.action + one.then)]
    return {*words, *(one.setting for one in of_it)}


def there(runner: Runner, look: str) -> set[str]:
    done = runner.start(runner.python, runner.script(look + PRINT))
    assert done.status == 0, done.err
    return set(json.loads(done.out.splitlines()[-1]))


def test_every_framework_is_looked_at() -> None:
    looked_at = {*LOOK, *OF_OTHER_ENVIRONMENTS}
    assert {one.framework for one in prescriptions() if one.framework} == looked_at


@pytest.mark.parametrize("framework", LOOK)
def test_every_setting_is_there(frameworks: Runner, framework: str) -> None:
    assert named(framework) - there(frameworks, LOOK[framework]) == set()


@pytest.mark.parametrize("framework", OF_OTHER_ENVIRONMENTS)
def test_every_setting_of_another_environment_is_there(frameworks: Runner, framework: str) -> None:
    environment, look = OF_OTHER_ENVIRONMENTS[framework]
    demand(environment, framework)
    runner = Runner(environment.python, frameworks.directory, frameworks.metadata)
    assert named(framework) - there(runner, look) == set()
