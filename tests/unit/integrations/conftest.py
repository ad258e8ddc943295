import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import otel_rl
from otel_rl.integrations import adapter as adapters
from otel_rl.worker.session import GUARD
from tests.support.otlp_sink import Sink, serve

_HERE = Path(__file__).parent
_FRAMEWORKS = ("forge", "vllm", "transformers")
_FOREIGN = ("OTEL_", "SLURM_", "OMPI_", "WANDB_", "RANK", "WORLD_SIZE", "DP_RANK")


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    """A receiving end that the environment names, as it does under ``otel-rl run``."""
    for variable in [name for name in os.environ if name.startswith(_FOREIGN)]:
        if not variable.startswith("OTEL_RL_TEST_"):
            monkeypatch.delenv(variable)
    with serve(Sink()) as serving:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", serving.url)
        monkeypatch.setenv("OTEL_RL_EXPERIMENT", "exp")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "60000")
        monkeypatch.setenv("OTEL_RL_PROVENANCE", "off")
        monkeypatch.setenv("OTEL_RL_CONSOLE", "off")
        GUARD.forget()
        monkeypatch.setattr(adapters, "_adapters", set())  # those of other tests are not here
        monkeypatch.setattr(GUARD, "_next_log_s", {})  # what is said here is news elsewhere
        yield serving
        otel_rl.finish(timeout_s=60)
        GUARD.forget()


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports an adapter as a program does that has the framework."""
    monkeypatch.syspath_prepend(str(_HERE / "frameworks"))
    if importlib.util.find_spec("transformers") is None:
        monkeypatch.syspath_prepend(str(_HERE / "transformers_stub"))
    yield lambda name: importlib.import_module(f"otel_rl.integrations.{name}")
    stubs = [name for name in sys.modules if _is_stub(name)]
    adapters = [name for name in sys.modules if _is_adapter(name)]
    for name in stubs + adapters:
        del sys.modules[name]


def _is_adapter(name: str) -> bool:
    """The W&B drop-in and the hook of imports stay: others hold on to their modules."""
    kept = ("otel_rl.integrations.wandb.", "otel_rl.integrations.import_hook.")
    return name.startswith("otel_rl.integrations.") and not f"{name}.".startswith(kept)


def _is_stub(name: str) -> bool:
    if name.split(".", 1)[0] not in _FRAMEWORKS:
        return False
    return str(getattr(sys.modules[name], "__file__", "")).startswith(str(_HERE))


WRITER = """
class SummaryWriter:
    def __init__(self, logdir):
        self.logdir, self.written = logdir, []

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None):
        self.written.append((tag, float(scalar_value), global_step))

    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None, walltime=None):
        for tag, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{tag}", value, global_step)

    def add_histogram(self, tag, values, global_step=None, bins="tensorflow", walltime=None):
        self.written.append((tag, list(values), global_step))

    def add_hparams(self, hparam_dict, metric_dict, run_name=None, global_step=None):
        for name, value in metric_dict.items():
            SummaryWriter("of hparams").add_scalar(name, value, global_step)
"""


@pytest.fixture
def tensorboardx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Imports a writer's module that the process has not imported yet."""
    package = tmp_path / "tensorboardX"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "writer.py").write_text(WRITER)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda: importlib.import_module("tensorboardX.writer")
    for name in ("tensorboardX", "tensorboardX.writer"):
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def no_adapter_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters and programs of other tests are not those of this process."""
    for name in ("_adapters", "_switched_on"):
        monkeypatch.setattr(importlib.import_module("otel_rl.integrations.adapter"), name, set())
