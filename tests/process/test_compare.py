"""``otel-rl compare`` and ``diagnose --fail-on``, as a job of CI calls them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from tests.lab.frameworks.sources import SOURCES
from tests.process.commands import Finished, otel_rl, otel_rl_here
from tests.support.browser import Browser
from tests.support.screenshots import served
from tests.support.view_runs import HOSTILE, LookedAt, write_run

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two healthy runs of one experiment, and one of another with a straggler all along."""
    data = tmp_path_factory.mktemp("runs") / "data"
    for n, (experiment, slow) in enumerate([("old", None), ("old", None), ("new", 2)]):
        key = ExperimentKey(experiment, str(n))
        write_run(data / str(n), LookedAt(key, steps=60, slow=slow))
    return data


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def compare(data: Path, *words: str) -> Finished:
    return otel_rl_here("compare", *words, "--data", data, cwd=data)


def test_a_job_fails_on_a_slower_step_and_says_which(data: Path) -> None:
    job = ("compare", "old/0", "new/2", "--fail-on", "time_per_step>+5%")
    done = otel_rl(*job, "--data", data, cwd=data)  # a process, as a job has it
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


def told(browser: Browser) -> dict[str, str]:
    """Return the verdict of each measure in the page."""
    rows = "[...document.querySelectorAll('[data-measure]')]"
    return dict(browser.get(f"{rows}.map((one) => [one.dataset.measure, one.lastChild.innerText])"))


def test_one_file_has_the_verdicts_the_curves_and_what_differs(
    data: Path, tmp_path: Path, browser: Browser
) -> None:
    path = tmp_path / "compare.html"
    done = compare(data, "old/0", "new/2", "--html", str(path), "--by", "time")
    assert done.status == 0, done.err
    browser.hosts()
    browser.open(path.as_uri(), "compare")
    assert told(browser)["time_per_step"] == "longer"
    browser.expect("document.querySelectorAll('#verdicts article polyline').length >= 4", True)
    browser.expect("document.querySelector('#differs').innerText.includes('straggler')", True)
    assert browser.hosts() == {""}  # of the file itself
    if SOURCES["axe"].is_built():
        browser.do((SOURCES["axe"].path / "axe.min.js").read_text())
        browser.do("axe.run().then(({ violations }) => { window.found = violations; })")
        browser.expect("window.found?.map((one) => one.id)", [])
    assert browser.complaints() == []


def test_names_of_senders_are_text_in_the_file(tmp_path: Path, browser: Browser) -> None:
    for name in ("a", "b"):
        key = ExperimentKey(name, HOSTILE[:100])
        write_run(tmp_path / "data" / name, LookedAt(key, steps=50, keys=[f"loss/{HOSTILE[:60]}"]))
    path = tmp_path / "compare.html"
    done = compare(tmp_path / "data", "a", "b", "--html", str(path))
    assert done.status == 0, done.err
    browser.open(path.as_uri(), "compare")
    browser.expect("window.hacked", None)
    assert browser.complaints() == []


def test_the_page_says_of_two_chosen_sides_what_the_command_says(
    data: Path, browser: Browser
) -> None:
    found = json.loads(compare(data, "old", "--", "new", "--json").out)
    sure = {one["name"] for one in found["measures"] if one["is_sure"]}
    with served(data) as url:
        browser.open(url, "runs")
        browser.wait("document.querySelector('#side-a')")
        for side, name in (("a", "old, 2 runs"), ("b", "new/2")):
            select = f"document.querySelector('#side-{side}')"
            option = f"[...{select}.options].find((one) => one.text === '{name}')"
            browser.do(
                f"{select}.value = {option}.value; {select}.dispatchEvent(new Event('change'))"
            )
        browser.wait("document.querySelectorAll('[data-measure]').length > 0")
        words = told(browser)
        assert list(words) == [one["name"] for one in found["measures"]]
        assert {
            name for name, word in words.items() if word in {"longer", "shorter", "more"}
        } == sure
        browser.wait(f"location.hash.includes('b={run_id('new', '2')}')")
        browser.do("location.reload()")
        browser.wait("document.querySelectorAll('[data-measure]').length > 0")
        assert browser.complaints() == []


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
    done = otel_rl_here("diagnose", run, "--fail-on", kinds, "--data", data, cwd=data)
    assert done.status == status, done.err
