"""One training script, instrumented in the five ways of ``examples/five_ways``, says the same.

All five run under one bridge: four report to it, and the fifth owns the W&B run that the bridge
joins. So one run has all values, and each must be what the script without instrumentation prints.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.commands import (
    OPEN_FOR_LONG,
    TIMEOUT_S,
    Finished,
    clean_environment,
    otel_rl,
)
from tests.support.docs_examples import blocks
from tests.support.otlp_sink import Sink, serve
from tests.support.wandb_server import WandbServer

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "examples" / "five_ways"
REPORTING = ("otel_api", "with_log", "drop_in", "instrumented")
RUN = "five-ways"

LAUNCH = """
import os, subprocess, sys

examples, *ways = sys.argv[1:]
started = []
for index, way in enumerate(ways):
    command, environment = [sys.executable], dict(os.environ)
    script = way
    if way == "instrumented":  # the API's own script, and nobody but the command knows of otel_rl
        script = "otel_api"
        command = [os.path.join(os.path.dirname(sys.executable), "opentelemetry-instrument"), *command]
        for variable in ("OTEL_PYTHON_METER_PROVIDER", "OTEL_PYTHON_TRACER_PROVIDER"):
            del environment[variable]
    if way != "own_run":
        environment |= {"OTEL_RL_INDEX": str(index), "OTEL_RL_COUNT": str(len(ways) - 1)}
    out = open(f"{way}.out", "w")
    started.append(subprocess.Popen([*command, f"{examples}/{script}.py"], env=environment, stdout=out))
sys.exit(max(process.wait() for process in started))
"""  # noqa: E501

Point = tuple[int, float, float]
"""(step, loss, reward)"""


@dataclass(frozen=True)
class FiveWays:
    """All five have trained."""

    launched: Finished
    directory: Path
    history: list[dict[str, float]]

    def printed(self, way: str) -> list[Point]:
        return points((self.directory / f"{way}.out").read_text())

    def column(self, loss: str, reward: str, step: str) -> list[Point]:
        rows = [row for row in self.history if loss in row]
        return sorted((int(row[step]), row[loss], row[reward]) for row in rows)


def points(printed: str) -> list[Point]:
    lines = [line.split() for line in printed.splitlines()]
    return [(int(step), float(loss), float(reward)) for step, loss, reward in lines]


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FiveWays]:
    directory = tmp_path_factory.mktemp("five_ways")
    with WandbServer() as server:
        variables = {
            **server.environment(),
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_SILENT": "true",
            "PATH": os.environ["PATH"],
        }
        del variables["WANDB_MODE"]  # as of somebody with a key, who has said no more
        launched = otel_rl(
            *("run", "--experiment", RUN, "--role", "trainer", "--per-worker"),
            *("--attach", "--"),
            *(sys.executable, "-c", LAUNCH, EXAMPLES, *REPORTING, "own_run"),
            cwd=directory,
            env=clean_environment(directory, **variables, **OPEN_FOR_LONG),
        )
        (run,) = server.run_ids()
        yield FiveWays(launched, directory, server.history(run))


@pytest.fixture(scope="module")
def plain() -> list[Point]:
    """What the script says that nobody has touched."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "train.py"], capture_output=True, text=True, check=True
    )
    return points(done.stdout)


def test_the_script_learns_something_in_fifty_steps(plain: list[Point]) -> None:
    assert [step for step, _, _ in plain] == list(range(1, 51))
    assert plain[-1][2] > 1.5 * plain[0][2]


@pytest.mark.slow
def test_all_five_train_alike_and_end_well(five: FiveWays, plain: list[Point]) -> None:
    assert five.launched.status == 0, five.launched.err
    assert {way: five.printed(way) for way in (*REPORTING, "own_run")} == dict.fromkeys(
        (*REPORTING, "own_run"), plain
    )


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(REPORTING)), ids=REPORTING)
def test_a_script_that_reports_has_its_values_at_its_steps(
    five: FiveWays, plain: list[Point], index: int
) -> None:
    worker = f"otel_rl/workers/trainer/{index}"
    assert five.column(f"{worker}/loss", f"{worker}/reward", "otel_rl/step") == plain


@pytest.mark.slow
def test_the_script_that_owns_the_run_has_its_values_at_its_steps(
    five: FiveWays, plain: list[Point]
) -> None:
    assert five.column("loss", "reward", "step") == plain


@pytest.mark.slow
def test_the_four_that_report_are_one_role_and_agree(five: FiveWays, plain: list[Point]) -> None:
    found = five.column("otel_rl/trainer/loss", "otel_rl/trainer/reward", "otel_rl/step")
    assert [step for step, _, _ in found] == [step for step, _, _ in plain]
    assert [loss for _, loss, _ in found] == pytest.approx([loss for _, loss, _ in plain])


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "five-ways.md"
TABLE = re.findall(r"\| `(otel-rl run .+?)` \|$", PAGE.read_text(), re.MULTILINE)
(INSTALL, INSTRUMENTED), *_ = [
    lines
    for block in blocks(PAGE, "bash")
    if "opentelemetry-instrument" in block and (lines := block.splitlines())
]


def shell(line: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    """Run a line of the page in a folder with the five scripts."""
    shutil.copytree(EXAMPLES, directory, dirs_exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", line],
        cwd=directory,
        env=clean_environment(directory, PATH=path),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in TABLE if "--attach" not in line])
def test_a_way_is_started_as_the_page_prints_it(
    line: str, plain: list[Point], tmp_path: Path
) -> None:
    done = shell(line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert points(done.stdout) == plain
    assert "rows in wandb" in done.stderr


def test_the_fifth_way_is_started_as_the_page_prints_it(tmp_path: Path) -> None:
    with serve(Sink()) as sink:
        done = shell(INSTRUMENTED.replace("http://bridge:4318", sink.url), tmp_path)
        assert done.returncode == 0, done.stderr
        assert [one.step for one in sink.measurements("loss")] == [*range(1, 51)]


def test_the_fifth_way_is_of_the_package_that_the_page_installs() -> None:
    package = INSTALL.removeprefix("pip install ").partition(" ")[0]
    commands = importlib.metadata.distribution(package).entry_points.select(group="console_scripts")
    assert "opentelemetry-instrument" in commands.names


def test_only_the_instrumentation_tells_the_scripts_apart() -> None:
    base = set((EXAMPLES / "train.py").read_text().splitlines())
    for script in EXAMPLES.glob("*.py"):
        lines = script.read_text().splitlines()
        assert len([line for line in lines if line not in base]) <= 6, script.name
        assert base <= set(lines), script.name
