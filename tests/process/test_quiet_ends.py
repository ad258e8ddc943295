"""The last lines of ``otel-rl run``: where the run is, and what went wrong, each once."""

import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.process.commands import otel_rl

pytestmark = pytest.mark.process


def last_lines(directory: Path, program: str, *trackers: str) -> Sequence[str]:
    """Return what ``otel-rl`` says after the command has said that it is at its end.

    On a busy machine a run is opened only then, and rows are left: lines that say so are left out.
    """
    script = directory / "train.py"
    begin = """
        import sys
        import otel_rl

        otel_rl.init(role="trainer")
    """
    script.write_text(textwrap.dedent(begin) + textwrap.dedent(program))
    chosen: list[str | Path] = [word for name in trackers for word in ("--tracker", name)]
    done = otel_rl(
        *("run", "--experiment", "e", *chosen, "--", sys.executable, script), cwd=directory
    )
    lines = done.err.partition("the end\n")[2].splitlines()
    progress = r"otel-rl: ((page of )?run e/default: \S+|writing the rest: .*)"
    return [line for line in lines if not re.fullmatch(progress, line)]


def test_a_normal_end_is_a_line_for_each_tracker_and_one_more(tmp_path: Path) -> None:
    program = """
        for step in range(3):
            otel_rl.log({"loss": 1.0}, step=step)
        print("the end", file=sys.stderr)
    """
    wandb, jsonl, *more = last_lines(tmp_path, program, "wandb", "jsonl")
    assert wandb.startswith("otel-rl: run e/default: ")
    assert "upload it with: wandb sync wandb/offline-run-" in wandb
    assert jsonl.startswith("otel-rl: run e/default: ")
    assert " in jsonl: " in jsonl
    assert len(more) <= 1, more
    assert all("otel-rl view .otel_rl/" in line for line in more)


@pytest.mark.slow
def test_one_row_is_a_row(tmp_path: Path) -> None:
    program = """
        otel_rl.log({"loss": 1.0}, step=0)
        print("the end", file=sys.stderr)
    """
    assert last_lines(tmp_path, program, "jsonl")[0].startswith(
        "otel-rl: run e/default: 1 row in jsonl: "
    )


def test_a_crash_is_said_once_whatever_the_number_of_trackers(tmp_path: Path) -> None:
    program = """
        otel_rl.log({"loss": 1.0}, step=0)
        print("the end", file=sys.stderr)
        raise RuntimeError("out of memory")
    """
    said = last_lines(tmp_path, program, "tensorboard", "jsonl")
    assert [line for line in said if "crashed: trainer/0, RuntimeError" in line] == [
        "otel-rl:   crashed: trainer/0, RuntimeError after step 0"
    ]
    assert not [line for line in said if "WARNING" in line]
    assert [line for line in said if line.startswith("otel-rl: ") and "out of memory" in line] == [
        "otel-rl:     out of memory"
    ]


@pytest.mark.slow
def test_a_run_without_a_metric_is_said_once(tmp_path: Path) -> None:
    said = last_lines(tmp_path, 'print("the end", file=sys.stderr)', "jsonl")
    assert len([line for line in said if "ended with no metric" in line]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "state", "said"),
    [
        ("raise RuntimeError('boom')", "crashed", "crashed: trainer/0"),
        ("", "finished", "ended with no metric"),
    ],
)
def test_a_run_that_ends_before_its_command_is_said_once(
    tmp_path: Path, ends: str, state: str, said: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import contextlib, io, subprocess, sys, time

        from otel_rl.cli.main import main

        worker = "import otel_rl; otel_rl.init(role='trainer'); {ends}"
        subprocess.run([sys.executable, "-c", worker])
        listed = io.StringIO()
        while '"{state}"' not in listed.getvalue():
            time.sleep(0.05)
            with contextlib.redirect_stdout(listed):
                main(["runs", "--json"])
        """)
    )
    done = otel_rl(
        *("run", "--experiment", "e", "--tracker", "jsonl", "--", sys.executable, script),
        cwd=tmp_path,
    )
    assert done.err.count(said) == 1, done.err
    assert "WARNING" not in done.err
