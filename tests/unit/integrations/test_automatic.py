"""Adapters switch themselves on in programs that have no line about otel_rl."""

import asyncio
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import wandb

import otel_rl
from otel_rl.cli.environment import adapter_environment
from otel_rl.integrations import hook, import_hook
from otel_rl.integrations.automatic import DIRECTORY, wait
from tests.support.otlp_sink import Sink

Adapter = Callable[[str], ModuleType]

ROOT = Path(__file__).parents[3]
STUBS = Path(__file__).parent / "frameworks"


@pytest.fixture
def waiting(
    sink: Sink, adapter: Adapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], Any]]:
    """Writes a module of a framework that has no stub, after adapters have begun to wait."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(import_hook, "_waiting", {})
    monkeypatch.setattr(hook, "_following", [])
    for name in ("log", "define_metric", "finish"):  # tests of W&B itself may have loaded it
        monkeypatch.setattr(wandb.Run, name, getattr(wandb.Run, name))
    before = set(sys.modules)
    wait()

    def module(name: str, code: str) -> Any:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            package = tmp_path.joinpath(*parts[:depth])
            package.mkdir(exist_ok=True)
            (package / "__init__.py").touch()
        tmp_path.joinpath(*parts[:-1], f"{parts[-1]}.py").write_text(code)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield module
    for name in set(sys.modules) - before:
        if name.split(".", 1)[0] in ("verl", "transformers", "forge"):
            del sys.modules[name]


def values(sink: Sink, name: str) -> list[tuple[int | None, float]]:
    assert otel_rl.flush(timeout_s=60)
    return [(m.step, m.value) for m in sink.measurements(name)]


VERL = """
class Tracking:
    supported_backend = ["console"]

    def __init__(self, project_name, experiment_name, default_backend="console", config=None):
        self.logger = {}

    def log(self, data, step, backend=None):
        for logger in self.logger.values():
            logger.log(data=data, step=step)
"""


def test_verl_reports_whatever_its_loggers_are(sink: Sink, waiting: Any) -> None:
    tracking = waiting("verl.utils.tracking", VERL)
    tracking.Tracking("project", "experiment", ["console"]).log({"actor/pg_loss": 0.5}, 4)
    assert values(sink, "rl.train.loss") == [(4, 0.5)]


def test_verl_reports_once_where_its_loggers_name_it(sink: Sink, waiting: Any) -> None:
    tracking = waiting("verl.utils.tracking", VERL)
    tracking.Tracking("project", "experiment", ["console", "otel_rl"]).log({"x": 0.5}, 4)
    assert values(sink, "x") == [(4, 0.5)]


def test_verl_trains_on_where_the_worker_cannot_start(
    sink: Sink, waiting: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_RL_ROLE", "no role\n")
    tracking = waiting("verl.utils.tracking", VERL)
    tracking.Tracking("project", "experiment").log({"x": 0.5}, 4)
    assert "OTEL_RL_ROLE" in caplog.text


@pytest.fixture
def trainer(waiting: Any) -> type:
    """A Trainer as transformers has it; with the real one, tests/frameworks trains."""
    if "stub" not in str(importlib.import_module("transformers").__file__):
        pytest.skip("the real transformers is installed")
    kind: type = importlib.import_module("transformers.trainer").Trainer
    return kind


def test_a_trainer_gets_the_callback(sink: Sink, trainer: Any) -> None:
    trainer().train()
    assert values(sink, "rl.train.loss") == [(7, 0.5)]


def test_a_trainer_that_has_the_callback_gets_no_second(
    sink: Sink, trainer: Any, adapter: Adapter
) -> None:
    trainer(callbacks=[adapter("trl").OtelCallback()]).train()
    assert values(sink, "rl.train.loss") == [(7, 0.5)]


def test_a_trainer_that_gets_the_callback_later_reports_once(
    sink: Sink, trainer: Any, adapter: Adapter
) -> None:
    made = trainer()
    made.add_callback(adapter("trl").OtelCallback())
    made.train()
    assert values(sink, "rl.train.loss") == [(7, 0.5)]


def test_verl_in_a_program_that_starts_its_worker_reports_by_that_alone(
    sink: Sink, waiting: Any
) -> None:
    otel_rl.init(role="trainer")
    tracking = waiting("verl.utils.tracking", VERL).Tracking("project", "experiment")
    assert tracking.logger == {}


@pytest.mark.parametrize("has_run", [True, False], ids=["beside a run", "without one"])
def test_verl_reports_where_the_hook_of_wandb_has_no_run(
    sink: Sink, waiting: Any, monkeypatch: pytest.MonkeyPatch, has_run: bool
) -> None:
    wandb: Any = ModuleType("wandb")
    wandb.Run = type("Run", (), {"log": None, "define_metric": None, "finish": None})
    wandb.run = wandb.Run() if has_run else None
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    importlib.import_module("otel_rl.integrations.hook").record_wandb()
    tracking = waiting("verl.utils.tracking", VERL).Tracking("project", "experiment")
    assert [*tracking.logger] == ([] if has_run else ["otel_rl"])


def test_a_second_tracking_of_verl_reports_as_the_first(sink: Sink, waiting: Any) -> None:
    kind = waiting("verl.utils.tracking", VERL).Tracking
    kind("project", "experiment").log({"x": 1.0}, 1)
    kind("project", "experiment").log({"x": 2.0}, 2)
    assert values(sink, "x") == [(1, 1.0), (2, 2.0)]


def test_torchforge_reports_from_every_rank(sink: Sink, waiting: Any) -> None:
    metrics = importlib.import_module("forge.observability.metrics")

    async def train() -> None:
        collector = metrics.MetricCollector()
        console = {"console": {"logging_mode": metrics.LoggingMode.GLOBAL_REDUCE}}
        await collector.init_backends({}, console, 0, process_name="RLTrainer_1_r0")
        for backend in collector.backends:
            backend.log_stream(metrics.Metric("x", 0.5, metrics.Reduce.MEAN), 2)

    asyncio.run(train())
    assert values(sink, "x") == [(2, 0.5)]
    assert sink.measurements("x")[0].resource["rl.worker.role"] == "trainer"


def test_a_framework_whose_classes_are_others_is_left_alone_and_named(
    sink: Sink, waiting: Any, caplog: pytest.LogCaptureFixture
) -> None:
    module = waiting("verl.utils.tracking", "NAME = 1")
    assert module.NAME == 1
    assert "Metrics of verl.utils.tracking are not recorded" in caplog.text


# The start of Python


def python(
    code: str, cwd: Path, *options: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "PYTHON"))}
    environment = clean | {"OTEL_RL_EXPERIMENT": "e"} | variables
    environment |= adapter_environment(environment, is_wanted=True)
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.process
def test_a_process_without_a_framework_loads_nothing(tmp_path: Path) -> None:
    code = "import sys, json; print([m for m in sys.modules if 'otel_rl' in m or 'telemetry' in m])"
    done = python(code, tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.process
def test_the_directory_is_on_no_path_but_that_of_children(tmp_path: Path) -> None:
    code = f"import os, sys; print({str(DIRECTORY)!r} in sys.path, os.environ['PYTHONPATH'])"
    done = python(code, tmp_path, PYTHONPATH="/somewhere")
    assert done.stdout == f"False {DIRECTORY}{os.pathsep}/somewhere\n"


@pytest.mark.process
def test_the_next_sitecustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.own = __file__")
    done = python("import sys, sitecustomize; print(sys.own == sitecustomize.__file__)",
                  tmp_path, PYTHONPATH=str(tmp_path))  # fmt: skip
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.process
def test_a_framework_is_waited_for_without_loading_a_worker(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").touch()
    code = "import sys, verl; print([m for m in sys.modules if m in %s])"
    code %= repr(("otel_rl.integrations.automatic", "otel_rl.worker.session", "requests"))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = python(code, tmp_path, PYTHONPATH=path)
    assert (done.stdout, done.stderr) == ("['otel_rl.integrations.automatic']\n", "")


@pytest.mark.process
def test_a_python_without_otel_rl_goes_on_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").touch()
    done = python("import verl; print('trained')", tmp_path, "-S", PYTHONPATH=str(tmp_path))
    assert done.stdout == "trained\n"  # without site nothing is waited for
    blocked = "import sys; sys.modules['otel_rl'] = None; import verl; print('trained')"
    done = python(blocked, tmp_path, PYTHONPATH=str(tmp_path))
    assert done.stdout == "trained\n"
    assert "verl is not recorded" in done.stderr


def test_no_is_a_no() -> None:
    assert adapter_environment({}, is_wanted=False) == {"OTEL_RL_ADAPTERS": "off"}
    assert adapter_environment({"OTEL_RL_ADAPTERS": "off"}, is_wanted=True) == {
        "OTEL_RL_ADAPTERS": "off"
    }


def test_an_empty_path_stays_without_the_working_directory() -> None:
    found = adapter_environment({"PYTHONPATH": ""}, is_wanted=True)
    assert found["PYTHONPATH"] == str(DIRECTORY)


def trial_of(environment: dict[str, str]) -> str:
    """The trial in the environment of a Python that an agent of W&B has started."""
    base = {"OTEL_RL_EXPERIMENT": "exp", "OTEL_RL_TRIAL": "monday", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", "import os; print(os.environ['OTEL_RL_TRIAL'])"]
    done = subprocess.run(
        command,
        env={**base, **adapter_environment(base, is_wanted=True), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.process
def test_a_run_of_a_sweep_of_wandb_is_a_trial_of_its_own() -> None:
    assert trial_of({}) == "monday"
    assert trial_of({"WANDB_RUN_ID": "r1"}) == "monday"
    assert trial_of({"WANDB_SWEEP_ID": "s", "WANDB_RUN_ID": "r1"}) == "monday-r1"


@pytest.fixture
def no_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that another test has loaded would be the one that is waited for."""
    for name in [name for name in sys.modules if name.split(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)


# ``no_wandb`` is there before ``waiting``.
def test_each_call_of_the_function_of_a_wandb_agent_is_a_trial_of_its_own(
    no_wandb: None, sink: Sink, waiting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_TRIAL", "monday")
    monkeypatch.setenv("OTEL_RL_EXIT_TIMEOUT", "60")
    agent = waiting("wandb.wandb_agent", WANDB).agent
    del sys.modules["wandb"], sys.modules["wandb.wandb_agent"]

    def train() -> None:
        otel_rl.init(role="trainer")
        otel_rl.log({"loss": 1.0}, step=1)

    agent("s", train)
    found = [m.resource["rl.trial.name"] for m in sink.measurements("loss")]
    assert found == ["monday-r0", "monday-r1"]


WANDB = """
import os

def agent(sweep_id, function=None):
    for number in range(2):
        os.environ["WANDB_RUN_ID"] = f"r{number}"
        function()
    del os.environ["WANDB_RUN_ID"]
"""
