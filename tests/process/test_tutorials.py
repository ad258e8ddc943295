"""Each tutorial is followed from top to bottom: its commands print what it shows.

Those that need TRL or Ray are in ``tests/frameworks/test_tutorials.py``.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.process.commands import Row, as_a_user, jsonl_rows
from tests.support.docs_examples import Said, cells, follow, is_shown
from tests.support.screenshots import picture

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"


def followed(name: str, directory: Path) -> list[Said]:
    """What the commands of a tutorial have said. Each must end well, and print what is shown."""
    directory.mkdir()
    all_said = []
    for said in follow(TUTORIALS / f"{name}.md", directory, as_a_user(directory)):
        assert said.status == 0, f"{said.command}\n{said.printed}"
        assert is_shown(said), f"{said.command}\n{said.printed}\nIS NOT\n{said.shown}"
        all_said.append(said)
    assert all_said
    return all_said


def at_steps(rows: Sequence[Row], keys: set[str]) -> list[int]:
    return [row.step for row in rows if keys <= row.values.keys()]


def test_the_first_run(tmp_path: Path) -> None:
    directory = tmp_path / "first-run"
    followed("first-run", directory)
    rows = jsonl_rows(directory, "first", "mine")
    each = {"trainer/loss", "length", "trainer/tokens/rate", "trainer/iteration/duration"}
    assert at_steps(rows, each) == [*range(1, 21)]
    assert {row.values["trainer/loss"] * row.step for row in rows if each <= row.values.keys()} == {
        1.0
    }
    picture(directory, "first/mine", "first-run")


def test_from_wandb(tmp_path: Path) -> None:
    directory = tmp_path / "from-wandb"
    followed("from-wandb", directory)
    rows = jsonl_rows(directory, "bandit", "one")
    assert at_steps(rows, {"loss", "reward/mean", "Train Loss"}) == [*range(1, 21)]


@pytest.mark.slow
@pytest.mark.timeout(1_200)  # a minute on a quiet machine
def test_find_a_straggler(tmp_path: Path) -> None:
    followed("find-a-straggler", tmp_path / "find-a-straggler")


def test_the_notebook_prints_what_it_shows(tmp_path: Path) -> None:
    notebook = cells(ROOT / "examples" / "first_run.ipynb")
    script = tmp_path / "cells.py"
    end = "END OF A CELL"
    script.write_text(f"\nprint({end!r})\n".join(one.command for one in notebook))
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=as_a_user(tmp_path),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(f"{end}\n")
    for one, said in zip(notebook, printed, strict=True):
        assert is_shown(Said(one.command, 0, one.shown, said)), f"{said}\nIS NOT\n{one.shown}"
