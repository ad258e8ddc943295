"""``otel-rl compare`` and ``diagnose --fail-on``, as a job of CI calls them."""

import json
from pathlib import Path

import pytest

from otel_rl.records import ExperimentKey
from tests.process.commands import Finished, otel_rl
from tests.support.view_runs import LookedAt, write_run

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two healthy runs of one experiment, and one of another with a straggler all along."""
    data = tmp_path_factory.mktemp("runs") / "data"
    for n, (experiment, slow) in enumerate([("old", None), ("old", None), ("new", 2)]):
        key = ExperimentKey(experiment, str(n))
        write_run(data / str(n), LookedAt(key, steps=60, slow=slow))
    return data


def compare(data: Path, *words: str) -> Finished:
    return otel_rl("compare", *words, "--data", data, cwd=data)


def test_a_job_fails_on_a_slower_step_and_says_which(data: Path) -> None:
    done = compare(data, "old/0", "new/2", "--fail-on", "time_per_step>+5%")
    assert done.status == 3, done.err
    assert done.out.splitlines()[-1].startswith("fails: time_per_step>+5% (+")
    assert "diagnosis: no cause -> straggler trainer/2" in done.out
    assert compare(data, "new/2", "old/0", "--fail-on", "time_per_step>+5%").status == 0


def test_equal_runs_fail_nothing(data: Path) -> None:
    done = compare(data, "old/0", "old/1", "--fail-on", "time_per_step>+1%")
    assert done.status == 0, done.err
    assert "longer" not in done.out


def test_an_experiment_stands_for_all_its_runs(data: Path) -> None:
    done = compare(data, "old", "--", "new", "--json")
    found = json.loads(done.out)
    assert sorted(found["a"]) == ["old/0", "old/1"]
    assert found["b"] == ["new/2"]
    (time,) = (one for one in found["measures"] if one["name"] == "time_per_step")
    assert time["is_sure"]
    assert time["low"] > 0.05


def test_markdown_is_a_table_whatever_runs_are_called(data: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "data" / "a", LookedAt(ExperimentKey("a|b", "*x*"), steps=30))
    write_run(tmp_path / "data" / "b", LookedAt(ExperimentKey("b", "1"), steps=30))
    done = compare(tmp_path / "data", "a|b/*x*", "b/1", "--markdown")
    head, _, names, rule, *lines = done.out.splitlines()
    assert head == r"### a\|b/\*x\* and b/1"
    columns = rule.count("|")
    assert names.count("|") == columns
    assert lines[0].startswith(r"| time\_per\_step | ")
    assert lines[0].count("|") == columns


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["old/0"], "compare takes two sides"),
        (["old/0", "--"], "compare takes two sides"),
        (["old/0", "new/2", "old/1"], "compare takes two sides"),
        (["old/0", "nothing"], "There is no run 'nothing'"),
        (["old/0", "new/2", "--metric", "rewrd"], "rewrd: not every run has this measure"),
        (["old/0", "new/2", "--fail-on", "x"], "write MEASURE>+N%"),
    ],
)
def test_what_cannot_be_compared_is_told(data: Path, words: list[str], said: str) -> None:
    done = compare(data, *words)
    assert done.status == 2
    assert said in done.err


@pytest.mark.parametrize(
    ("run", "kinds", "status"),
    [
        ("new/2", "cause", 3),
        ("new/2", "nan,straggler", 3),
        ("new/2", "nan", 0),
        ("old/0", "cause", 0),
    ],
)
def test_a_job_fails_on_the_causes_that_it_names(
    data: Path, run: str, kinds: str, status: int
) -> None:
    done = otel_rl("diagnose", run, "--fail-on", kinds, "--data", data, cwd=data)
    assert done.status == status, done.err
