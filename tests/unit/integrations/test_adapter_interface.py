"""The public interface for adapters is enough for one, and the shipped ones use nothing else."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import otel_rl
from otel_rl.integrations import adapter
from tests.support.otlp_sink import Sink

ROOT = Path(__file__).parents[3]

OTHERS = {
    "adapter",
    "automatic",
    "import_hook",
    "ray_tracing",
    "own_run",
    "sweeps",
    "wandb",
    "wandb_workers",
}
"""The interface, what adds adapters and trials or needs nothing, and both ways to W&B."""


def test_an_adapter_with_a_table_of_its_own_records_shared_and_own_names(sink: Sink) -> None:
    table = adapter.Dialect([adapter.Rule("losses/actor", "rl.train.loss")])
    adapter.start(adapter.WorkerNames(role="trainer"))
    adapter.Recorder("mine", table).record({"losses/actor": 0.5, "depth": 2}, 3)
    assert otel_rl.flush(timeout_s=60)
    (loss,), (depth,) = sink.measurements("rl.train.loss"), sink.measurements("depth")
    assert (loss.value, loss.step) == (0.5, 3)
    assert loss.attributes == {"otel_rl.framework.metric": "losses/actor"}
    assert (depth.value, depth.step) == (2, 3)


def test_every_shipped_adapter_is_held_to_the_interface() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (
        one
        for one in project["tool"]["importlinter"]["contracts"]
        if one["name"].startswith("Adapters need")
    )
    package = ROOT / "otel_rl" / "integrations"
    packages = {path.parent.name for path in package.glob("[a-z]*/__init__.py")}
    modules = {path.stem for path in package.glob("[a-z]*.py")} | packages
    held = {name.rpartition(".")[2] for name in contract["source_modules"]}
    assert held == modules - OTHERS


_LAST = """
import builtins

from otel_rl.integrations.adapter import before


class Logger:
    def finish(self):
        print("finished")

    def __del__(self):
        self.finish()


before(Logger, "finish", lambda logger: print("followed"))
builtins.kept = Logger()  # until after every other module has lost its globals
"""


@pytest.mark.process
def test_nothing_is_followed_once_the_interpreter_has_ended() -> None:
    """verl's ``Tracking`` calls its ``finish`` when it is collected."""
    done = subprocess.run(
        [sys.executable, "-c", _LAST], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("finished\n", "")
