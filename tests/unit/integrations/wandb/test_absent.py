"""Whatever of W&B a library touches that the drop-in lacks does nothing; nothing of it raises."""

import copy
import importlib
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import otel_rl.integrations.wandb as drop_in
from otel_rl.integrations.wandb import _absent
from tests.otlp_sink import Sink

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The drop-in under W&B's name, as a library that knows only that name gets it."""
    real = {name: module for name, module in sys.modules.items() if name.startswith("wandb.")}
    for name in real:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "wandb", drop_in)
    yield importlib.import_module("wandb")
    for name in [name for name in sys.modules if name.startswith("wandb.")]:
        del sys.modules[name]
    for name in ("sdk", "errors", "integration"):
        vars(drop_in).pop(name, None)


@pytest.fixture
def said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(_absent, "_said", set())
    caplog.set_level(logging.WARNING, "otel_rl")
    return caplog


def test_an_error_of_a_deep_module_can_be_caught() -> None:
    errors = importlib.import_module("wandb.sdk.lib.config_util")
    assert issubclass(errors.ConfigError, drop_in.Error)
    with suppress(ZeroDivisionError):
        try:
            raise ZeroDivisionError
        except errors.ConfigError:
            pytest.fail("it is no such error")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("wandb.sdk.wandb_run", "Run"),
        ("wandb.wandb_run", "Run"),
        ("wandb.errors", "CommError"),
        ("wandb.sdk.data_types", "Table"),
        ("wandb.apis.public", "Api"),
    ],
)
def test_a_name_that_the_drop_in_has_is_the_same_in_every_module(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is getattr(drop_in, name)


def test_a_class_that_is_not_there_can_be_asked_for_and_derived_from() -> None:
    kind = importlib.import_module("wandb.sdk.lib").RunDisabled
    assert not isinstance(3, (str, kind))

    class Own(kind):  # type: ignore[misc, valid-type]  # a class, made at run time
        def __init__(self, value: int) -> None:
            super().__init__(value, more=1)
            self.value = value

    assert Own(3).value == 3
    assert not Own(3).whatever(1).more


def test_a_context_manager_and_what_it_gives_take_everything() -> None:
    telemetry = importlib.import_module("wandb.sdk.lib.telemetry")
    with telemetry.context(run=None) as found:
        found.feature.own = True
        found["a"] = 1
    assert list(found) == []
    assert not found


def test_a_decorator_returns_what_it_decorates(wandb: Any) -> None:
    def train() -> int:
        return 3

    assert wandb.some.decorator(train)() == 3
    assert wandb.some.decorator(name="a")(train)() == 3


def test_an_absent_name_takes_any_use(wandb: Any) -> None:
    for thing in (wandb.some.thing, wandb.some.thing(), wandb.Thing()):
        assert (list(thing), len(thing), bool(thing), "a" in thing) == ([], 0, False, False)
        assert not thing > 3
        assert not isinstance(3, wandb.some.thing)
        assert Path(thing["a"]) == Path()
    assert not wandb.AlertLevel["WARN"]()

    class Own(wandb.visual):  # type: ignore[misc]  # a class, made at run time
        value = 3

    assert Own().value == 3


def test_a_call_is_said_once(wandb: Any, said: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        wandb.some.thing(1)
    assert [line for line in said.messages if "some.thing does nothing" in line] == said.messages


def test_a_run_takes_every_call_of_wandbs(sink: Sink) -> None:
    run = drop_in.init()
    run._label(code="trainer")
    run.log_something({"a": 1}).wait()
    assert not run._settings.offline
    assert run._attach_id is None
    run.log({"thing": run.settings, "called": run.settings(), "x": 1})
    run.finish()


def test_an_artifact_takes_files() -> None:
    artifact = drop_in.Artifact("model", type="model")
    with artifact.new_file("a", mode="wb") as file:
        file.write(b"x")
    artifact.add_dir("d")
    drop_in.log_artifact(artifact, aliases=["a"]).wait()


@pytest.mark.parametrize("thing", ["Table", "Histogram", "Image"])
def test_what_is_logged_can_be_copied_and_asked_for_anything(thing: str) -> None:
    made = copy.deepcopy(getattr(drop_in, thing)())
    made.set_whatever(1)
    assert not hasattr(made, "__array_interface__")


def test_a_config_takes_the_calls_of_wandbs_own() -> None:
    config = drop_in.Config()
    config.update_locked({"a": 1}, user="sweep")
    config.merge_locked({"b": 2})
    config.persist()
    assert dict(config.user_items()) == {"a": 1, "b": 2}
    with pytest.raises(AttributeError):
        _ = config.not_there  # programs ask so whether a key is there


@pytest.mark.parametrize("module", ["wandb.integration.sb3", "wandb.sb3"])
def test_the_callback_of_stable_baselines3_is_the_drop_ins_own(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    callbacks = ModuleType("stable_baselines3.common.callbacks")
    vars(callbacks)["BaseCallback"] = type("BaseCallback", (), {})
    monkeypatch.setitem(sys.modules, callbacks.__name__, callbacks)
    monkeypatch.delitem(sys.modules, "otel_rl.integrations.wandb._sb3", raising=False)
    found = importlib.import_module(module).WandbCallback
    assert issubclass(found, callbacks.BaseCallback)
    del sys.modules["otel_rl.integrations.wandb._sb3"]


def test_libraries_find_a_version(wandb: Any) -> None:
    assert version("wandb") == wandb.__version__
    assert importlib.util.find_spec("wandb") is not None


@pytest.mark.process
def test_beside_the_real_package_nothing_is_answered_for_it() -> None:
    program = (
        "import otel_rl.integrations.wandb as drop_in, wandb, wandb.errors\n"
        "from importlib.metadata import files\n"
        "assert wandb is not drop_in and wandb.errors.Error is not drop_in.Error\n"
        "assert files('wandb')\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=True)
