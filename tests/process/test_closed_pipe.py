"""Commands whose output is closed, full, or piped into a program that has read enough."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.commands import OTEL_RL, clean_environment, jsonl_rows
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

# The doctor looks at these ports, which anything else on the machine may have.
FREE = {"OTEL_RL_BRIDGE__LISTEN__HTTP": "0", "OTEL_RL_BRIDGE__LISTEN__GRPC": "0"}


def without_a_reader(directory: Path, *arguments: str) -> tuple[int, bytes]:
    """The exit status of a command whose reader has gone before it begins, and its errors."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [*OTEL_RL, *arguments],
            cwd=directory,
            env=clean_environment(directory, **FREE),
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=200,
            check=False,
        )
    finally:
        os.close(write)
    return done.returncode, done.stderr


def test_a_reader_that_has_read_enough_sees_no_traceback(tmp_path: Path) -> None:
    assert without_a_reader(tmp_path, "doctor", "--tracker", "jsonl") == (141, b"")


PROGRAM = """
import otel_rl

otel_rl.init(role="trainer")
for step in range(20):
    otel_rl.log({"loss": 1.0}, step=step)
    print("step", step, flush=True)
"""
RUN = ["run", "--experiment", "e", "--trial", "default", "--tracker", "jsonl", "--", sys.executable]


def shell(directory: Path, redirection: str, *arguments: str) -> tuple[int, str]:
    """The exit status of a command with a redirection, and what it wrote on standard error."""
    command = f"{shlex.join([*OTEL_RL, *arguments])} {redirection}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],  # any shell
        cwd=directory,
        env=clean_environment(directory, **FREE),
        stderr=subprocess.PIPE,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a program, and with a run of it whose standard error was closed."""
    directory = tmp_path_factory.mktemp("trained")
    (directory / "train.py").write_text(PROGRAM)
    assert shell(directory, "> out 2>&-", *RUN, "train.py")[0] == 0
    return directory


@pytest.mark.slow
def test_a_run_with_closed_standard_error_is_whole(trained: Path) -> None:
    assert [row.step for row in jsonl_rows(trained, "e") if "trainer/loss" in row.values] == [
        *range(20)
    ]
    assert (trained / "out").read_text().splitlines()[-1] == "step 19"


@pytest.mark.parametrize("redirection", slow_after(1, ["<&- >&- 2>&-", ">&-", "2> /dev/full"]))
def test_commands_with_closed_streams_end_well(trained: Path, redirection: str) -> None:
    for command in (["runs"], ["runs", "--watch"], ["doctor", "--tracker", "jsonl"]):
        status, said = shell(trained, redirection, *command)
        assert (command, status, "Traceback" in said) == (command, 0, False)


def test_output_that_cannot_be_written_is_an_error_in_a_line(trained: Path) -> None:
    status, said = shell(trained, "> /dev/full", "runs")
    assert (status, said.count("\n")) == (1, 1)
    assert "No space left on device" in said


def test_a_watched_table_whose_reader_is_gone_ends_as_other_commands(trained: Path) -> None:
    assert without_a_reader(trained, "runs", "--watch") == (141, b"")


@pytest.mark.slow
def test_a_run_whose_messages_have_no_reader_is_whole(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        PROGRAM.replace("print", "dict").replace('"step", step, flush', "flush")
    )
    assert shell(tmp_path, "2>&1 | head -n 1 > /dev/null", *RUN, "train.py") == (0, "")
    assert [row.step for row in jsonl_rows(tmp_path, "e") if "trainer/loss" in row.values] == [
        *range(20)
    ]
