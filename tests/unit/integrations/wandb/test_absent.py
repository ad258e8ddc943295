"""What W&B has and the drop-in has not: said once, with what to do instead."""

import copy
import importlib
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


def test_an_error_of_a_deep_module_can_be_caught() -> None:
    errors = importlib.import_module("wandb.sdk.lib.config_util")
    assert issubclass(errors.ConfigError, drop_in.Error)
    with suppress(ZeroDivisionError):
        try:
            raise ZeroDivisionError
        except errors.ConfigError:
            pytest.fail("it is no such error")


def test_a_module_is_an_attribute_of_the_drop_in_under_any_name() -> None:
    mine = drop_in  # as by `import otel_rl.integrations.wandb as wandb`
    with suppress(ZeroDivisionError):
        try:
            raise ZeroDivisionError
        except (mine.errors.CommError, mine.errors.UsageError):
            pytest.fail("it is no such error")
    assert mine.errors.CommError is drop_in.CommError
    assert mine.sdk.wandb_run.Run is drop_in.Run
    assert mine.util.generate_id is drop_in.generate_id
    assert isinstance(mine.plot.line(None, "x", "y"), _absent.Skipped)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("wandb.sdk.wandb_run", "Run"),
        ("wandb.wandb_run", "Run"),
        ("wandb.errors", "CommError"),
        ("wandb.sdk.data_types", "Table"),
        ("wandb.data_types", "Image"),
        ("wandb.util", "generate_id"),
    ],
)
def test_a_name_that_the_drop_in_has_is_the_same_in_every_module(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is getattr(drop_in, name)


def test_a_class_that_is_not_carried_can_be_asked_for_and_derived_from() -> None:
    kind = importlib.import_module("wandb.sdk.lib").RunDisabled
    assert not isinstance(3, (str, kind))

    class Own(kind):  # type: ignore[misc, valid-type]  # a class, made at run time
        def __init__(self, value: int) -> None:
            super().__init__(value, more=1)
            self.value = value

    assert Own(3).value == 3


def test_an_artifact_takes_files() -> None:
    artifact = drop_in.Artifact("model", type="model")
    with artifact.new_file("a", mode="wb") as file:
        file.write(b"x")
    artifact.add_dir("d")
    drop_in.log_artifact(artifact, aliases=["a"]).wait()


@pytest.mark.parametrize("thing", ["Table", "Histogram", "Image"])
def test_what_is_logged_can_be_copied(thing: str) -> None:
    made = copy.deepcopy(getattr(drop_in, thing)())
    assert not hasattr(made, "__array_interface__")


def test_a_name_that_wandb_has_not_is_an_attribute_error_with_the_way_out(sink: Sink) -> None:
    run = drop_in.init()
    for owner, name in ((drop_in, "some_function"), (run, "some_method"), (drop_in.Table(), "x")):
        assert not hasattr(owner, name)
        with pytest.raises(AttributeError, match="under `otel-rl run --attach`"):
            getattr(owner, name)


def test_a_module_that_no_library_is_known_to_use_is_not_found_with_the_way_out() -> None:
    with pytest.raises(ModuleNotFoundError, match="under `otel-rl run --attach`"):
        importlib.import_module("wandb.apis.public")


def test_a_file_of_the_drop_in_is_no_module_of_wandb() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("wandb._run")


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
