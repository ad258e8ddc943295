"""Real frameworks under ``otel-rl run``, each script in a process of its own."""

import os
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.frameworks.tried import tried, versions
from tests.lab.frameworks.environment import FRAMEWORKS, Frameworks

# Imported, because these tests start processes, too.
from tests.process.commands import Finished, clean_environment
from tests.process.conftest import a_test_that_fails_leaves_no_process

__all__ = ["Runner", "a_test_that_fails_leaves_no_process", "demand"]

_VARIABLE = "OTEL_RL_LAB"
_ROOT = Path(__file__).parents[2]

_TIMEOUT_S = 600
"""Of a test. The imports alone take half a minute on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this directory; it may take longer than other tests."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.lab)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.process)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@dataclass(frozen=True)
class Runner:
    """Runs scripts with the Python that has the frameworks, and this checkout's otel_rl.

    Attributes:
        python: That interpreter.
        directory: Where scripts and runs are; the home of the processes, too.
        metadata: Makes this checkout's entry points known to that interpreter.
        sources: Before everything else on the path.
    """

    python: Path
    directory: Path
    metadata: Path
    sources: tuple[Path, ...] = ()

    def environment(self, **extra: str) -> dict[str, str]:
        """A fresh login without network, GPU or a key; ``extra`` is added."""
        return clean_environment(
            self.directory,
            PYTHONPATH=os.pathsep.join(map(str, [*self.sources, _ROOT, self.metadata])),
            CUDA_VISIBLE_DEVICES="",
            HF_HUB_OFFLINE="1",
            OMP_NUM_THREADS="1",
            RAY_USAGE_STATS_ENABLED="0",
            RAY_raylet_start_wait_time_s="300",  # a busy machine
            TOKENIZERS_PARALLELISM="false",
            **extra,
        )

    def script(self, code: str, name: str = "train.py") -> Path:
        """Write a script."""
        path = self.directory / name
        path.write_text(textwrap.dedent(code))
        return path

    def run(
        self, code: str, *options: str, env: dict[str, str] | None = None, experiment: str = "real"
    ) -> Finished:
        """Run a script under ``otel-rl run --tracker jsonl`` to its end.

        Args:
            code: Of the script.
            options: Of ``otel-rl run``.
            env: Added to the environment.
            experiment: Its name; ``jsonl_rows(directory, experiment)`` reads the run.
        """
        command: list[str | Path] = [
            self.python, "-m", "otel_rl", "run", "--experiment", experiment, "--trial", "default",
            "--tracker", "jsonl", *options, "--", self.python, self.script(code),
        ]  # fmt: skip
        return self.start(*command, env=env)

    def start(self, *command: str | Path, env: dict[str, str] | None = None) -> Finished:
        """Run any command to its end."""
        done = subprocess.run(
            list(map(str, command)),
            cwd=self.directory,
            env=self.environment(**(env or {})),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S - 30,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)


def demand(environment: Frameworks, what: str) -> None:
    """Skip where an environment is not installed; with ``OTEL_RL_LAB=required`` fail.

    Where it cannot be installed it skips in any case.

    Args:
        environment: Of the lab.
        what: What a test wants of it.
    """
    if environment.is_built():
        return
    if refusal := environment.refusal():
        pytest.skip(refusal)
    sentence = f"not installed, run `make lab` once: {what}"
    if os.environ.get(_VARIABLE) == "required":
        pytest.fail(f"{sentence} ({_VARIABLE}=required).", pytrace=False)
    pytest.skip(sentence)


@pytest.fixture(autouse=True)
def tried_as_documented(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep what a passing test with the mark ``tried`` has seen."""
    failed = request.session.testsfailed
    yield
    mark = request.node.get_closest_marker("tried")
    if mark is not None and request.session.testsfailed == failed:
        row, *packages = mark.args
        lock = mark.kwargs.get("lock", "requirements")
        tried(row, versions(tuple(packages), lock), mark.kwargs["seen"])


@pytest.fixture(scope="session")
def frameworks_python() -> Path:
    """The Python in which real frameworks are installed.

    See ``demand``.
    """
    demand(FRAMEWORKS, "the real frameworks")
    return FRAMEWORKS.python


@pytest.fixture(scope="session")
def metadata_of_this_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the path with what an installation of this checkout would register."""
    installed = distribution("otel-rl")
    directory = tmp_path_factory.mktemp("metadata")
    info = directory / f"otel_rl-{installed.version}.dist-info"
    info.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (info / name).write_text(installed.read_text(name) or "")
    return directory


@pytest.fixture
def frameworks(frameworks_python: Path, metadata_of_this_checkout: Path, tmp_path: Path) -> Runner:
    """Runs scripts that use real frameworks, in a directory of the test's own."""
    return Runner(frameworks_python, tmp_path, metadata_of_this_checkout)
