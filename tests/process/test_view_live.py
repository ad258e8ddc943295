"""The page while a run goes on, and when its server ends: nothing that one reads is taken away."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.rows.messages import Finding
from otel_rl.records import ExperimentKey, ExperimentStatus
from otel_rl.run_id import run_id
from tests.journals.small_run import ENDED, LIVE, RANKS, Life, S, begin, load, start_ns, step
from tests.support.browser import Browser
from tests.support.ports import free_ports
from tests.support.screenshots import served
from tests.support.view_runs import LookedAt, write_run

pytestmark = pytest.mark.process

RUN = run_id(LIVE.experiment, LIVE.trial)
BANNER = "(document.querySelector('#connection')?.textContent ?? '')"
PANELS = "document.querySelectorAll('[data-panel]')"
DRAWN = f"[...{PANELS}].filter((one) => one.querySelector('svg'))"


def drawn(count: int) -> str:
    """Return whether so many charts are drawn, as for a reader who scrolls down to the last.

    The evidence of a cause may come before charts are drawn, and moves them out of sight.
    """
    return f"({PANELS}[{count - 1}].scrollIntoView(), {DRAWN}.length >= {count})"


@dataclass
class Run:
    """A run that goes on, and a page of it."""

    life: Life
    url: str
    browser: Browser
    steps: int = 0

    def grow(self, steps: int) -> None:
        """Both trainers make some more steps."""
        for number in range(self.steps, self.steps + steps):
            batches = [one for rank in range(RANKS) for one in step(LIVE, rank, number)]
            self.life.take(*batches, now_ns=start_ns(LIVE) + (number + 2) * S)
        self.steps += steps

    def open(self, page: str) -> Browser:
        self.browser.open(f"{self.url}#/run/{RUN}/{page}", page.partition("/")[0])
        self.browser.wait("document.querySelector('#live').textContent !== ''")
        return self.browser


@contextmanager
def running(directory: Path) -> Iterator[Life]:
    life = Life(directory, clock_ns=time.time_ns)
    life.take(*(begin(LIVE, rank) for rank in range(RANKS)), now_ns=start_ns(LIVE))
    try:
        yield life
    finally:
        life.journal.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def run(tmp_path: Path, browser: Browser) -> Iterator[Run]:
    with running(tmp_path / "data") as life, served(tmp_path / "data") as url:
        run = Run(life, url, browser)
        run.grow(6)
        yield run


def test_drawn_charts_outlive_their_server_and_go_on_with_the_next(
    tmp_path: Path, browser: Browser
) -> None:
    (port,) = free_ports(1)
    data = tmp_path / "data"
    with running(data) as life:
        run = Run(life, f"http://127.0.0.1:{port}/", browser)
        run.grow(6)
        with served(data, port):
            run.open("overview")
            browser.wait(drawn(4))
            before = browser.get(f"{DRAWN}.map((one) => one.dataset.panel)")
        browser.wait(f"{BANNER}.includes('otel-rl view')")
        browser.do("scrollTo(0, document.body.scrollHeight)")
        browser.do("scrollTo(0, 0)")
        # What was drawn is there, and so is a page that was read before.
        assert set(before) <= set(browser.get(f"{DRAWN}.map((one) => one.dataset.panel)"))
        with served(data, port):
            browser.wait(f"{BANNER} === ''")
            run.grow(4)
            browser.do(f"{DRAWN}[0].scrollIntoView()")  # the evidence of a cause is above it
            browser.wait(f"{DRAWN}.some((one) => one.data[0].x.at(-1) >= 8)")
            assert browser.get("document.querySelectorAll('.failure').length") == 0
            assert set(before) <= set(browser.get(f"{DRAWN}.map((one) => one.dataset.panel)"))
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_lost_connection_is_told_and_not_taken_for_an_end(run: Run) -> None:
    browser = run.open("overview")
    browser.wait(drawn(1))
    browser.do(
        "const before = window.fetch; window.fetch = () => Promise.reject(new TypeError('off'));"
        "window.online = () => { window.fetch = before; }"
    )
    run.grow(1)  # the page asks, and nobody answers
    browser.wait(f"{BANNER}.includes('No connection since')")
    assert browser.get(f"{DRAWN}.length") > 0
    browser.do("online()")
    run.grow(1)
    browser.wait(f"{BANNER} === ''")
    assert browser.complaints() == []


@pytest.mark.slow
def test_the_page_that_is_one_too_many_says_so_and_goes_on(run: Run) -> None:
    browser = run.browser
    host, port = run.url.removeprefix("http://").rstrip("/").split(":")
    with ExitStack() as others:
        for _ in range(16):
            other = others.enter_context(socket.create_connection((host, int(port)), 60))
            other.sendall(f"GET /api/events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            assert b" 200 " in other.recv(100)
        browser.open(f"{run.url}#/run/{RUN}/overview", "overview")
        browser.wait(f"{BANNER} === 'Too many pages are open; this one asks now and then.'")
        run.grow(3)
        browser.wait("document.querySelector('.fact b').textContent === '8'")
        assert browser.get(BANNER).startswith("Too many pages")
    browser.wait(f"{BANNER} === ''")
    browser.wait("document.querySelector('#live').textContent === 'live'")
    assert browser.complaints() == []


@pytest.mark.slow
def test_compared_runs_are_asked_in_rounds_and_ended_ones_once(
    tmp_path: Path, browser: Browser
) -> None:
    ended = run_id("ended", "1")
    write_run(tmp_path / "data" / "a", LookedAt(ExperimentKey("ended", "1"), workers=1))
    with running(tmp_path / "data" / "b") as life, served(tmp_path / "data") as url:
        run = Run(life, url, browser)
        run.grow(6)
        column = "trainer%2Freward%2Fmean"
        browser.open(f"{url}#/?runs={RUN}.{ended}&grid=1&columns={column}", "runs")
        grid = "[...document.querySelectorAll('[data-grid]')]"
        browser.wait(f"{grid}.length > 1 && {grid}.slice(0, 2).every((one) => one.data)")
        cells = "[...document.querySelectorAll('.further')].map((one) => one.textContent)"
        browser.wait(f"{cells}.length === 2 && {cells}.some((one) => /[0-9]/.test(one))")
        browser.do(
            "const before = window.fetch; window.asked = []; window.open = {}; window.most = 0;"
            "window.fetch = async (url, ...more) => {"
            "  asked.push(url); open[url] = (open[url] ?? 0) + 1; most = Math.max(most, open[url]);"
            "  try { return await before(url, ...more); } finally { open[url] -= 1; } }"
        )
        for _ in range(3):
            steps = run.steps + 2
            run.grow(2)
            browser.wait(f"{grid}[0].data.some((one) => one.x.at(-1) >= {steps - 1})")
        asked = browser.get("asked")
        assert [one for one in asked if f"{ended}/" in one] == []
        # The chart above, the one of the grid, and the column.
        assert browser.get("most") <= 3
    assert browser.complaints() == []


@pytest.mark.slow
def test_charts_of_full_detail_are_read_as_they_are_shown(run: Run) -> None:
    browser = run.browser
    browser.open(f"{run.url}#/run/{RUN}/overview?detail=full", "overview")
    panels = (
        "[...new Set([...otelRl.answers.keys()].filter((one) => one.includes('/panel?')))]"
        ".map((one) => one.includes('detail=full'))"
    )
    charts = "otelRl.answers.get(`runs/${id}/overview?detail=full`)"
    browser.wait(
        f"(() => {{ const id = '{RUN}'; const found = {charts};"
        f"  return found && {panels}.length >= "
        "found.sections.reduce((sum, one) => sum + one.panels.length, 0); })()"
    )
    assert browser.get(f"{panels}.every(Boolean)")
    assert browser.complaints() == []


@pytest.mark.slow
def test_of_an_ended_server_pages_stay_readable_that_nobody_had_opened(
    tmp_path: Path, browser: Browser
) -> None:
    data = tmp_path / "data"
    with running(data) as life:
        with served(data) as url:
            run = Run(life, url, browser)
            run.grow(6)
            run.open("overview")
            browser.wait("otelRl.answers.size > 12")
            names = "[...otelRl.answers.keys()].map((one) => one.split('/').at(-1))"
            browser.wait(f"['workers', 'timeline'].every((one) => {names}.includes(one))")
        browser.wait(f"{BANNER}.includes('ended')")
        browser.press("2")
        browser.wait("document.body.dataset.ready === 'timeline'")
        browser.wait("document.querySelector('#timeline')?.data?.length > 0")
    assert browser.complaints() == []


@pytest.mark.slow
def test_what_is_typed_selected_and_chosen_stays_during_a_live_run(run: Run) -> None:
    browser = run.open("timeline")
    browser.wait("document.querySelector('#timeline')?.data")
    browser.do("document.querySelector('#step').focus(); window.kept = document.activeElement")
    browser.press("1")
    run.grow(2)
    browser.wait("document.querySelector('#newer') !== null")
    assert browser.get("document.activeElement === kept && kept.value") == "1"

    browser = run.open("workers")
    browser.do("document.querySelector('select').focus(); window.kept = document.activeElement")
    run.grow(2)
    browser.wait("document.querySelector('#heatmap').data[0].x.at(-1) >= 8")
    assert browser.get("document.activeElement === kept && kept.isConnected")
    assert browser.complaints() == []


@pytest.mark.slow
def test_samples_that_are_read_stay_and_newer_ones_are_counted(run: Run) -> None:
    browser = run.open("rollouts")
    rows = "[...document.querySelectorAll('#samples tbody tr')].map((one) => one.innerText)"
    browser.wait(f"{rows}.length === 12")
    browser.do(
        "const cell = document.querySelector('#samples tbody td');"
        "getSelection().selectAllChildren(cell);"
    )
    before, chosen = browser.get(rows), browser.get("getSelection().toString()")
    run.grow(3)
    browser.wait("document.querySelector('#newer')?.textContent === '6 newer, show'")
    assert browser.get(rows) == before
    assert browser.get("getSelection().toString()") == chosen
    browser.do("document.querySelector('#newer').click()")
    browser.wait(f"{rows}.length === 18")
    assert browser.get("document.querySelector('#newer')") is None
    assert browser.complaints() == []


@pytest.mark.slow
def test_controls_of_the_overview_are_made_once(run: Run) -> None:
    browser = run.open("overview")
    browser.wait(drawn(1))
    browser.do(
        "window.kept = [...document.querySelectorAll('main button, main select, main input')];"
        "document.querySelector('#log').focus(); document.querySelector('#log').click()"
    )
    run.grow(3)
    browser.wait("document.querySelector('.fact b').textContent === '8'")
    assert browser.get("kept.every((one) => one.isConnected)")
    browser.expect("document.activeElement.id", "log")
    browser.expect("document.activeElement.ariaPressed", "true")
    assert browser.complaints() == []


@pytest.mark.slow
def test_processes_have_their_host_and_the_slowest_comes_first(run: Run) -> None:
    browser = run.open("workers")
    rows = "[...document.querySelectorAll('tbody tr')].map((one) => one.innerText.split('\\t'))"
    browser.wait(f"{rows}.length === 2")
    assert [row[3] for row in browser.get(rows)] == ["host-0", "host-1"]
    for number in range(run.steps, run.steps + 20):
        now_ns = start_ns(LIVE) + (number + 2) * S
        loads = [load(LIVE, rank, number, took_s) for rank, took_s in ((0, 0.1), (1, 0.5))]
        run.life.take(*loads, now_ns=now_ns)
    browser.open(f"{run.url}#/run/{RUN}/workers?phase=trainer%2Fload", "workers")
    browser.wait(f"{rows}[0][0] === 'trainer/1'")
    assert browser.get(rows)[0][4] == "5"
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_healthy_run_is_called_so_in_the_list_and_one_not_looked_at_is_not(run: Run) -> None:
    browser = run.browser
    cell = f"document.querySelector('[data-run={json.dumps(RUN)}] td:nth-child(7)')?.innerText"
    browser.open(run.url, "runs")
    browser.expect(cell, "\u2013")
    for told, causes, words in (
        ("healthy", [], "healthy"),
        ("cause", [{"kind": "straggler", "worker": "trainer/1"}], "cause\nstraggler trainer/1"),
    ):
        run.life.processor.add_finding(LIVE, Finding(4, start_ns(LIVE), told, "words", causes))
        run.grow(1)
        browser.expect(cell, words)
    assert browser.complaints() == []


@pytest.mark.slow
def test_rows_of_an_offline_run_wait_only_if_something_keeps_them(run: Run) -> None:
    """W&B's library confirms those of an offline run together, when it closes the file."""
    browser = run.open("health")
    fact = "[...document.querySelectorAll('.fact')].find((one) => one.innerText.includes('{}'))"
    waiting = f"{fact.format('rows not confirmed')}.innerText.split('\\n')[0]"
    rows = f"{fact.format('rows')}.innerText.split('\\n')[0]"
    browser.wait(f"Number({rows}) > 0 && {waiting} === {rows}")  # no tracker was there
    deliveries = DeliveryStore(run.life.journal, "wandb", has_room=run.life.runs.has_room)
    deliveries.opened(LIVE, "/data/wandb/offline-run-20261129_120000-abc")
    run.grow(1)
    browser.expect(waiting, "0")
    deliveries.reported(LIVE, "waiting", "the disk is full")
    run.grow(1)
    browser.wait(f"{waiting} === {rows}")
    deliveries.reported(LIVE, "live", "")
    run.grow(1)
    browser.expect(waiting, "0")
    run.life.journal.close()  # as a bridge that was killed
    browser.do("location.reload()")
    browser.wait(f"{waiting} === {rows}")
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_baseline_that_goes_on_grows_in_the_charts_of_another_run(run: Run) -> None:
    run.life.take(*(begin(ENDED, rank) for rank in range(RANKS)), now_ns=start_ns(ENDED))
    for number in range(3):
        batches = [one for rank in range(RANKS) for one in step(ENDED, rank, number)]
        run.life.take(*batches, now_ns=start_ns(ENDED) + (number + 2) * S)
    browser = run.browser
    page = f"{run.url}#/run/{run_id(ENDED.experiment, ENDED.trial)}/overview?base={RUN}"
    browser.open(page, "overview")
    line = f"{PANELS}[0]?.data?.find((one) => one.line.dash === 'dash')"
    beside = f"({PANELS}[0]?.scrollIntoView(), {line}?.x.length)"
    browser.wait(f"{beside} >= 6")
    run.grow(4)
    browser.wait(f"{beside} >= 10")
    browser.do("localStorage.clear()")


def test_a_run_whose_settings_tell_its_steps_says_how_long_it_still_takes(
    tmp_path: Path, browser: Browser
) -> None:
    key = ExperimentKey("planned", "run")
    going = LookedAt(key, status=ExperimentStatus.RUNNING, config={"train": {"max_steps": 100}})
    write_run(tmp_path, going, now_ns=time.time_ns())
    with closing(SqliteJournal(tmp_path)), served(tmp_path) as url:  # a bridge has it
        browser.open(f"{url}#/run/{run_id(*key[:2])}/overview", "overview")
        facts = "[...document.querySelectorAll('.fact')].map((one) => one.innerText)"
        browser.wait(f"{facts}.some((one) => /^\\d+ of 100\\s+step$/.test(one))")
        browser.wait(f"{facts}.some((one) => /^[\\d.]+ (s|min)\\s+left$/.test(one))")
        browser.open(url, "runs")
        row = f"document.querySelector('[data-run={json.dumps(run_id(*key[:2]))}]').innerText"
        browser.wait(f"{row}.includes(' of 100')")
    assert browser.complaints() == []
