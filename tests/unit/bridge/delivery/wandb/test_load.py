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
