"""Tutorials, and how-to pages, are followed from top to bottom: commands print what they show.

Those that need a framework are in ``tests/frameworks/test_tutorials.py``, and what
``find-a-straggler`` leaves behind is looked at in ``test_view_demo.py``.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.process.commands import Row, as_a_user, jsonl_rows
from tests.support.docs_examples import IN_THE_LAB, Said, cells, follow, followed_pages, is_shown
from tests.support.screenshots import picture

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def followed(page: str, directory: Path) -> list[Said]:
    """What the commands of a page have said. Each must end well, and print what is shown."""
    directory.mkdir()
    all_said = []
    for said in follow(DOCS / f"{page}.md", directory, as_a_user(directory)):
        assert said.status == 0, f"{said.command}\n{said.printed}"
        assert is_shown(said), f"{said.command}\n{said.printed}\nIS NOT\n{said.shown}"
        all_said.append(said)
    assert all_said
    return all_said


def at_steps(rows: Sequence[Row], keys: set[str]) -> list[int]:
    return [row.step for row in rows if keys <= row.values.keys()]


def test_the_first_run(tmp_path: Path) -> None:
    directory = tmp_path / "first-run"
    followed("tutorials/first-run", directory)
    rows = jsonl_rows(directory, "first", "mine")
    each = {"trainer/loss", "length", "trainer/tokens/rate", "trainer/iteration/duration"}
    assert at_steps(rows, each) == [*range(1, 21)]
    assert {row.values["trainer/loss"] * row.step for row in rows if each <= row.values.keys()} == {
        1.0
    }
    picture(directory, "first/mine", "first-run")


@pytest.mark.slow
def test_from_wandb(tmp_path: Path) -> None:
    directory = tmp_path / "from-wandb"
    followed("tutorials/from-wandb", directory)
    rows = jsonl_rows(directory, "bandit", "one")
    assert at_steps(rows, {"loss", "reward/mean", "Train Loss"}) == [*range(1, 21)]
    picture(directory, "bandit/one", "from-wandb", height=1560)


SEEN = {
    "compare": ([], ""),
    "hook": (["grpo-7b/1"], "loss"),
    "read-a-log": ([], ""),
    "replay": (["grpo-7b/1"], "trainer/loss"),
    "second-tracker": (["grpo-7b/1"], "trainer/loss"),
    "sweeps": (["bandit/seed-0", "bandit/seed-1", "bandit/seed-2"], "trainer/loss"),
    "troubleshooting": ([], ""),
}
"""The runs of a how-to page, and what each of them has at the steps 1 to 3."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(followed_pages(DOCS / "how-to") - IN_THE_LAB))
def test_a_how_to_page(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    followed(f"how-to/{name}", directory)
    runs, key = SEEN[name]
    for run in runs:
        rows = jsonl_rows(directory, *run.split("/"))
        assert at_steps(rows, {key}) == [1, 2, 3]


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
