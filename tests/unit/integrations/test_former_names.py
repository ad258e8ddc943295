"""Modules that have moved are found by their former names, too."""

import importlib
import sys

import pytest

MOVED = {
    "recorder": "adapter.recorder",
    "vllm_plugin": "automatic.vllm_plugin",
    "wandb_log": "wandb_run.log",
    "wandb_system": "wandb_run.system",
}


@pytest.mark.parametrize("former", MOVED)
def test_a_former_name_is_the_same_module_and_warns(
    former: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"otel_rl.integrations.{former}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    now = importlib.import_module(f"otel_rl.integrations.{MOVED[former]}")
    with pytest.deprecated_call(match=f"is now {now.__name__}"):
        assert importlib.import_module(name) is now
    assert now.__spec__ is not None
    assert now.__spec__.name == now.__name__
    monkeypatch.delitem(sys.modules, name)
