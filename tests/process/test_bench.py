"""``make bench`` writes build/bench.json as documented. What it measures is no test's business."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# The others start whole runs of W&B, which is what a bench is for and not what is tested here.
pytestmark = [pytest.mark.process, pytest.mark.slow]

PARTS = ["export", "phases", "loop", "start"]
FIELDS = {"name", "unit", "ours", "theirs", "against", "ratio", "goal", "limits", "met", "spread"}
PART_FIELDS = {"title", "commit", "date", "machine", "load", "figures"}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    out = tmp_path_factory.mktemp("bench") / "build" / "bench.json"
    command = [sys.executable, "-m", "bench", "--tiny", "--out", str(out), *PARTS]
    root = Path(__file__).parents[2]
    subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL, timeout=500)
    found: dict[str, dict[str, object]] = json.loads(out.read_text())
    return found


@pytest.fixture
def rows(parts: dict[str, dict[str, object]]) -> list[dict[str, object]]:
    figures: list[dict[str, object]] = []
    for part in parts.values():
        figures += part["figures"]  # type: ignore[arg-type]
    return figures


def test_every_part_tells_its_commit_and_machine(parts: dict[str, dict[str, object]]) -> None:
    assert [*parts] == PARTS
    assert all(part.keys() == PART_FIELDS and part["commit"] for part in parts.values())


def test_every_row_has_the_documented_fields(rows: list[dict[str, object]]) -> None:
    assert rows
    assert all(row.keys() == FIELDS for row in rows)


def test_names_are_unique(rows: list[dict[str, object]]) -> None:
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)


def test_a_goal_is_met_if_what_it_limits_is_not_above_it(rows: list[dict[str, object]]) -> None:
    for row in rows:
        limited, goal = row[str(row["limits"])], row["goal"]
        if goal is None:
            assert row["met"] is None
        else:
            assert isinstance(limited, float)
            assert isinstance(goal, float)
            assert row["met"] is (limited <= goal)
