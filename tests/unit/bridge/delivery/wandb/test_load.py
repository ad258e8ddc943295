"""The writer's import of W&B, in a process of its own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

_LOAD = """
import ast, inspect, gc

parsed = []
parse = ast.parse
ast.parse = lambda source, *args, **kwargs: parsed.append(source) or parse(source, *args, **kwargs)
from otel_rl.bridge.delivery.wandb.sdk import load
load()
import wandb
"""


def _printed(code: str) -> str:
    command = [sys.executable, "-c", _LOAD + code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_models_of_wandb_parse_no_source_text() -> None:
    assert _printed("print([one for one in parsed if 'class ' in one])") == "[]"
    unaware = _printed(
        "import importlib; importlib.reload(wandb.sdk.wandb_settings)\nprint(parsed)"
    )
    assert "class Settings" in unaware  # which is what the test would see


def test_source_text_and_collections_are_there_afterwards() -> None:
    code = (
        "print(gc.isenabled(), inspect.currentframe() is None, len(inspect.getsourcelines(load)))"
    )
    assert _printed(code) == "True False 2"


def test_wandb_loads_without_numpy_which_is_there_afterwards() -> None:
    code = "import sys; print('numpy' in sys.modules); import numpy; print(numpy.float64(2))"
    assert _printed(code).split() == ["False", "2.0"]


_RUN = """
import sys, tempfile
from otel_rl.bridge.delivery.wandb.sdk import without_launch
settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
applied = wandb.Run._detect_and_apply_job_inputs
with tempfile.TemporaryDirectory() as directory, without_launch():
    wandb.init(mode="offline", dir=directory, settings=settings).finish()
print("wandb.sdk.launch" in sys.modules, wandb.Run._detect_and_apply_job_inputs is applied)
"""


def test_a_run_is_opened_without_launch_which_is_there_afterwards() -> None:
    assert _printed(_RUN).split() == ["False", "True"]


def test_launch_stays_where_it_was_imported_before() -> None:
    assert _printed("import wandb.sdk.launch" + _RUN).split() == ["True", "True"]


def test_a_run_is_opened_by_a_wandb_without_this_method() -> None:
    code = """
from otel_rl.bridge.delivery.wandb.sdk import without_launch
del wandb.Run._detect_and_apply_job_inputs
with without_launch():
    print(hasattr(wandb.Run, "_detect_and_apply_job_inputs"))
"""
    assert _printed(code) == "False"
