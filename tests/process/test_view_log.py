"""Consoles of workers, and the strip of what happened, in a real browser."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rl.bridge.config import BridgeSettings
from otel_rl.records import WorkerFailure
from otel_rl.run_id import run_id
from otel_rl.view.report import write_report
from tests.journals.small_run import LIVE, Life, begin, console, start_ns, step
from tests.support.browser import Browser
from tests.support.screenshots import served
from tests.support.slow import slow_after
from tests.support.view_runs import GRPO, T0, LookedAt, S, write_run

pytestmark = pytest.mark.process

RUN = run_id(GRPO.experiment, GRPO.trial)
LINES = "[...document.querySelectorAll('#lines tr')]"
TEXTS = f"{LINES}.map((one) => one.lastElementChild.textContent)"
STEPS, WORKERS = 60, 3


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A run whose trainer/1 fails at step 20, and is back at step 23, with lines of each step."""
    lines = [
        (f"trainer/{worker}", "stderr" if worker == 1 else "stdout", f"<b>line</b> {number}")
        for number in range(1, STEPS + 1)
        for worker in range(WORKERS)
    ]
    lost = WorkerFailure("trainer/1", T0 - 40 * S, "MemoryError", step=20, recovery_s=3.5)
    data = tmp_path_factory.mktemp("log")
    write_run(data, LookedAt(workers=WORKERS, steps=STEPS, console=lines, failures=[lost]))
    with served(data) as address:
        yield f"{address}#/run/{RUN}"


def test_the_log_shows_its_end_and_is_found_by_worker_and_text(url: str, browser: Browser) -> None:
    browser.open(f"{url}/log", "log")
    browser.wait(f"{LINES}.length === {STEPS * WORKERS}")
    box = "document.querySelector('#lines')"
    browser.wait(f"{box}.scrollTop + {box}.clientHeight >= {box}.scrollHeight - 2")
    browser.expect(f"{TEXTS}.at(-1)", f"<b>line</b> {STEPS}")
    options = browser.get("[...document.querySelector('#worker').options].map((of) => of.text)")
    assert options == ["all workers", "trainer/1 †", "trainer/0", "trainer/2"]
    browser.do(
        "const of = document.querySelector('#worker'); of.value = 'trainer/2';"
        "of.dispatchEvent(new Event('change'))"
    )
    browser.wait(f"{LINES}.length === {STEPS}")
    browser.do("document.querySelector('#search').focus()")
    browser.press("LINE</b> 7")
    browser.wait(f"{LINES}.length === 1")
    browser.wait("location.hash.includes('worker=trainer%2F2')")
    assert browser.complaints() == []


def test_a_report_has_the_lines_of_the_worker_that_a_link_names_and_of_others_again(
    tmp_path: Path, browser: Browser
) -> None:
    lines = [(f"trainer/{number % 3}", "stdout", f"line {number}") for number in range(9)]
    write_run(tmp_path, LookedAt(workers=WORKERS, console=lines))
    report = tmp_path / "report.html"
    write_report(BridgeSettings(data=tmp_path), RUN, report)
    browser.open(f"{report.as_uri()}#/run/{RUN}/log?worker=trainer%2F1", "log")
    browser.wait(f"{TEXTS}.join() === 'line 1,line 4,line 7'")
    assert "3 of 9 lines" in browser.get("document.querySelector('main').innerText")
    browser.do(
        "const of = document.querySelector('#worker'); of.value = '';"
        "of.dispatchEvent(new Event('change'))"
    )
    browser.wait(f"{LINES}.length === 9")
    assert "trainer/2" in browser.get("document.querySelector('#lines').innerText")
    assert browser.complaints() == []


def test_a_failure_leads_to_the_line_at_which_it_happened(url: str, browser: Browser) -> None:
    browser.open(f"{url}/log", "log")
    browser.do("document.querySelector('#failures a').click()")
    browser.wait(f"{LINES}.every((one) => one.classList.contains('stderr'))")
    browser.wait("document.querySelector('#lines .near')?.textContent.endsWith(' 20')")
    seen = browser.get(
        "(({top, bottom}, box) => top >= box.top && bottom <= box.bottom)"
        "(document.querySelector('.near').getBoundingClientRect(),"
        " document.querySelector('#lines').getBoundingClientRect())"
    )
    assert seen
    assert browser.complaints() == []


@pytest.mark.parametrize(("x", "at"), [("step", 32), ("time", 32)])
def test_a_strip_over_the_charts_has_what_happened_and_leads_to_the_log(
    url: str, browser: Browser, x: str, at: int
) -> None:
    browser.open(f"{url}/overview?x={x}", "overview")
    browser.wait("document.querySelectorAll('#events .lane a').length === 2")
    kinds = "[...document.querySelectorAll('#events > .quiet')].map((one) => one.textContent)"
    browser.expect(kinds, ["a worker failed", "a worker is back"])
    places = browser.get("[...document.querySelectorAll('#events a')].map((a) => a.style.left)")
    assert [float(one.rstrip("%")) for one in places] == [
        pytest.approx(at, abs=1),
        pytest.approx(at + 5, abs=1),
    ]
    words = browser.get("document.querySelector('#events a').getAttribute('aria-label')")
    assert "trainer/1" in words
    assert "MemoryError" in words
    browser.do("document.querySelector('#events a').click()")
    browser.wait("document.body.dataset.ready === 'log'")
    browser.wait("document.querySelector('#lines .near')?.textContent.endsWith(' 20')")
    assert browser.complaints() == []


@pytest.mark.parametrize(("every", "marks"), slow_after(1, [(20, ["32%", "66%", "100%"]), (1, [])]))
def test_new_weights_are_in_the_strip_unless_every_step_has_some(
    tmp_path: Path, browser: Browser, every: int, marks: list[str]
) -> None:
    failed = WorkerFailure("trainer/1", T0 - 40 * S, "MemoryError", step=20)
    write_run(tmp_path, LookedAt(steps=60, new_weights=every, failures=[failed]))
    with served(tmp_path) as address:
        browser.open(f"{address}#/run/{RUN}/overview", "overview")
        browser.wait("document.querySelector('#events .lane a') !== null")
        found = browser.get(
            "[...document.querySelectorAll('#events a')]"
            ".filter((one) => one.ariaLabel.includes('of the weights'))"
            ".map((one) => [one.style.left, one.ariaLabel, one.hash])"
        )
        assert [left for left, *_ in found] == marks
        if found:
            assert found[0][1:] == [
                "step 20: version 1 of the weights",
                f"#/run/{RUN}/timeline/20",
            ]
        assert browser.complaints() == []


@pytest.mark.parametrize(("every", "count"), slow_after(1, [(20, 3), (1, 0)]))
def test_checkpoints_and_evaluations_are_in_the_strip_unless_every_step_has_one(
    tmp_path: Path, browser: Browser, every: int, count: int
) -> None:
    failed = WorkerFailure("trainer/1", T0 - 40 * S, "MemoryError", step=20)
    write_run(tmp_path, LookedAt(steps=60, saves=every, failures=[failed]))
    with served(tmp_path) as address:
        browser.open(f"{address}#/run/{RUN}/overview", "overview")
        browser.wait("document.querySelector('#events .lane a') !== null")
        for words in ("a checkpoint", "an evaluation"):
            found = browser.get(
                "[...document.querySelectorAll('#events a')]"
                f".filter((one) => one.ariaLabel.endsWith(': {words}'))"
                ".map((one) => [one.style.left, one.ariaLabel, one.hash])"
            )
            assert len(found) == count
            if found:
                place = ["32%", f"step 20: {words}", f"#/run/{RUN}/timeline/20"]
                assert found[0] == place
        assert browser.complaints() == []


def test_who_reads_earlier_lines_stays_there_and_newer_ones_are_counted(
    tmp_path: Path, browser: Browser
) -> None:
    life = Life(tmp_path, clock_ns=time.time_ns)

    def printed(first: int, last: int, number: int) -> None:
        now_ns = start_ns(LIVE) + (number + 1) * S
        texts = "\n".join(f"line {one}" for one in range(first, last))
        life.take(console(LIVE, 0, texts, now_ns), *step(LIVE, 0, number), now_ns=now_ns + 30 * S)

    life.take(begin(LIVE, 0), now_ns=start_ns(LIVE))
    printed(0, 100, 0)
    box = "document.querySelector('#lines')"
    try:
        with served(tmp_path) as url:
            browser.open(f"{url}#/run/{run_id(LIVE.experiment, LIVE.trial)}/log", "log")
            browser.wait(f"{LINES}.length === 100")
            printed(100, 110, 1)
            browser.wait(f"{LINES}.length === 110")
            at_end = f"{box}.scrollTop + {box}.clientHeight >= {box}.scrollHeight - 2"
            browser.wait(at_end)  # it follows
            browser.do(f"{box}.scrollTop = 40")
            # The event of the scrolling comes with the next frame.
            browser.wait(
                "window.hasFrame ?? void requestAnimationFrame(() => { hasFrame = true; })"
            )
            printed(110, 115, 2)
            browser.wait("document.querySelector('#newer')?.textContent === '5 newer, show'")
            assert browser.get(f"{box}.scrollTop") == 40
            browser.expect(f"{LINES}.length", 110)
            browser.do("document.querySelector('#newer').click()")
            browser.wait(f"{LINES}.length === 115 && {at_end}")
            assert browser.complaints() == [], json.dumps(browser.get(TEXTS))
    finally:
        life.journal.close()
