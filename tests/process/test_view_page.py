"""The page in a real browser: what a person sees, and what a hostile name cannot do."""

import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

import otel_rl
from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.records import ExperimentKey, ExperimentStatus
from otel_rl.run_id import run_id
from otel_rl.semconv import names
from otel_rl.view.pages import Pages
from otel_rl.view.report import report_html
from tests.journals.small_run import LIVE, RANKS, STEPS, Life, start_ns, step
from tests.lab.frameworks.sources import SOURCES
from tests.process.commands import OTEL_RL, clean_environment
from tests.support.browser import Browser
from tests.support.slow import slow_after
from tests.support.view_runs import GRPO, HOSTILE, MEASURED, T0, LookedAt, S, write_run

pytestmark = pytest.mark.process

HOSTILE_KEY = ExperimentKey(HOSTILE, "<b>1</b>")
LARGE = ExperimentKey("large", "1")
WORKERS = 1_000
PAGES = ("overview", "timeline", "workers", "rollouts", "log", "health")

# Texts, out of charts, with less contrast than 4.5.
_PALE = """(() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b]
    .map((one) => (one /= 255) <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, place) => sum + one * [0.2126, 0.7152, 0.0722][place], 0);
  const ground = (of) => {
    for (; of; of = of.parentElement) {
      const color = parts(getComputedStyle(of).backgroundColor);
      if (color[3] !== 0) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const one of document.querySelectorAll('body *:not(svg *)')) {
    const hasText = [...one.childNodes].some((of) => of.nodeType === 3 && of.data.trim());
    if (!hasText || !one.checkVisibility() || one.disabled) continue;
    const [a, b] = [light(parts(getComputedStyle(one).color)), light(ground(one))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push(`${one.textContent.slice(0, 40)}: ${contrast.toFixed(2)}`);
  }
  return found;
})()"""

# Controls, pictures and columns without a name, or with one that lacks their text.
_NAMELESS = """[...document.querySelectorAll(
  'button, a, input, select, th, [role=img], [role=application], [role=meter], [role=region]'
)].filter((one) => one.checkVisibility()).filter((one) => {
  const label = one.getAttribute('aria-label') ?? one.labels?.[0]?.textContent;
  const text = one.matches('select, input, [role]') ? '' : one.textContent.trim();
  return !(label || text) || (label && text.length > 1 && !label.includes(text));
}).map((one) => one.outerHTML.slice(0, 120))"""


@dataclass(frozen=True)
class Viewed:
    """``otel-rl view`` and a browser."""

    url: str
    data: Path
    browser: Browser

    def open(self, key: ExperimentKey, page: str) -> Browser:
        run = run_id(key.experiment, key.trial)
        self.browser.open(f"{self.url}#/run/{run}/{page}", page)
        if page == "workers":  # words are there before the code of charts
            heatmap = "document.querySelector('#heatmap')"
            self.browser.wait(f"{heatmap} === null || {heatmap}.data?.length > 0")
        return self.browser


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewed]:
    home = tmp_path_factory.mktemp("view")
    samples: list[Mapping[str, str | float]] = [
        {"prompt": f"add {n} and {n}", "completion": f"{2 * n}", "reward": n / 40}
        for n in range(40)
    ]
    data = home / "data"
    write_run(data / "a", LookedAt(steps=60, slow=2, samples=samples))
    write_run(data / "b", LookedAt(LARGE, workers=WORKERS, steps=5, slow=613))
    hostile: list[dict[str, str | float]] = [
        {"prompt": HOSTILE, "completion": HOSTILE, HOSTILE: HOSTILE, "reward": 1.0}
    ]
    write_run(
        data / "c",
        LookedAt(HOSTILE_KEY, keys=[HOSTILE, "a/<b>b</b>"], samples=hostile),
    )
    write_run(data / "d", LookedAt(ExperimentKey("broken"), status=ExperimentStatus.CRASHED))
    with serving(data, home) as url, Browser(home / "profile") as browser:
        yield Viewed(url, data, browser)


@contextmanager
def serving(data: Path, home: Path, **variables: str) -> Iterator[str]:
    """Run ``otel-rl view`` and return its address."""
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [*OTEL_RL, "view", data, "--listen", "127.0.0.1:0"],
            stderr=subprocess.PIPE,
            stdout=log,
            env=clean_environment(home, **variables),
            text=True,
        )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found is not None, line
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_list_leads_to_a_run(viewed: Viewed) -> None:
    browser = viewed.browser
    browser.open(viewed.url, "runs")
    runs = len([*viewed.data.iterdir()])
    assert browser.get("document.querySelectorAll('[data-run]').length") == runs >= 4
    browser.expect("document.querySelector('#compare').data?.length", 3)
    browser.do("[...document.querySelectorAll('a')].find((a) => a.textContent === 'grpo').click()")
    browser.wait("document.body.dataset.ready === 'overview'")
    browser.expect("document.querySelector('h1').textContent", "grpo")
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_run_is_found_by_its_text(viewed: Viewed) -> None:
    browser = viewed.browser
    browser.open(viewed.url, "runs")
    browser.do(
        "const find = document.querySelector('#search'); find.value = 'BROK';"
        "find.dispatchEvent(new Event('input'))"
    )
    shown = "[...document.querySelectorAll('[data-run]')].filter((one) => one.offsetHeight)"
    browser.expect(f"{shown}.map((one) => one.querySelector('a').textContent)", ["broken"])
    browser.expect("document.querySelector('#compare').data?.length", 3)
    assert browser.complaints() == []


ROWS = "[...document.querySelectorAll('[data-run]')]"


@pytest.mark.slow
def test_runs_are_sorted_by_a_column_and_the_focus_stays(viewed: Viewed) -> None:
    browser = viewed.browser
    browser.open(viewed.url, "runs")
    names = f"{ROWS}.map((one) => one.querySelector('a').textContent)"
    steps = f"{ROWS}.map((one) => Number(one.children[3].textContent))"
    as_given = browser.get(names)
    browser.do("document.querySelector('[data-focus=\"sort Step\"]').focus()")
    browser.press(Keys.ENTER)
    found = browser.get(steps)
    assert found == sorted(found, reverse=True) != browser.get(f"{steps}.reverse()")
    browser.expect("document.querySelector('[aria-sort]').ariaSort", "descending")
    browser.press(Keys.ENTER)  # the table was drawn anew, and the button has the focus again
    browser.expect(steps, sorted(found))
    browser.press(Keys.ENTER)
    browser.expect(names, as_given)
    assert browser.complaints() == []


@pytest.mark.slow
def test_runs_far_down_the_list_have_a_reward_and_a_verdict(viewed: Viewed, tmp_path: Path) -> None:
    for number in range(30):
        key = ExperimentKey("many", str(number))
        write_run(tmp_path / "data", LookedAt(key, workers=1, steps=number + 1), now_ns=T0 + number)
    browser = viewed.browser
    with serving(tmp_path / "data", tmp_path) as url:
        browser.open(url, "runs")
        rewards = f"{ROWS}.map((one) => one.children[5].textContent)"
        browser.wait(f"{rewards}.length === 30 && {rewards}.every((one) => isFinite(one))")
        browser.do("document.querySelector('[data-focus=\"sort Reward\"]').click()")
        found = [float(text) for text in browser.get(rewards)]
        assert found == sorted(found, reverse=True)
        assert browser.complaints() == []


@pytest.mark.slow
def test_without_spans_the_timeline_shows_how_to_mark_phases(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "timeline")
    assert "otel_rl.phase(" in browser.get("document.querySelector('pre').textContent")
    assert browser.complaints() == []


def test_charts_and_the_verdict_are_drawn_from_this_machine_alone(viewed: Viewed) -> None:
    viewed.browser.hosts()
    browser = viewed.open(GRPO, "overview")
    browser.wait("document.querySelector('[data-panel]')?.data?.length > 0")
    browser.expect("document.querySelector('[data-panel]').data[0].y.length", 60)
    browser.wait("document.querySelector('#verdict').textContent.includes('straggler')")
    assert "trainer/2" in browser.get("document.querySelector('#verdict').textContent")
    assert browser.hosts() == {viewed.url.split("/")[2]}
    assert browser.complaints() == []


@pytest.mark.slow
def test_where_a_cause_began_is_marked_in_every_chart(viewed: Viewed) -> None:
    key = ExperimentKey("worse")
    write_run(viewed.data / "worse", LookedAt(key, steps=60, slow=2, slow_from=31))
    browser = viewed.open(key, "overview")
    marks = (
        "[...document.querySelectorAll('[data-panel]')]"
        ".map((one) => (one.layout?.shapes ?? []).map((mark) => mark.x0))"
    )
    browser.wait("document.querySelector('#verdict li')")
    # The evidence may come before charts are drawn, and moves them out of sight.
    scrolled = "document.querySelector('#first').scrollIntoView()"
    browser.wait(f"({scrolled}, {marks}.length === 3 && {marks}.every((one) => one.length === 1))")
    assert {at for of_one in browser.get(marks) for at in of_one} == {31}


def test_a_cause_leads_to_the_time_of_its_phase_by_worker(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "overview")
    browser.wait("document.querySelector('#verdict li a')")
    browser.expect("document.querySelector('#verdict b').textContent", "straggler trainer/2")
    browser.do("document.querySelector('#verdict li a').click()")
    browser.wait("document.body.dataset.ready === 'workers'")
    browser.expect("document.querySelector('select').value", "trainer/train")
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_cause_without_such_a_phase_leads_to_the_longest(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "workers")
    browser.do("location.hash = location.hash + '/trainer%2Fbatch'")
    browser.wait("document.querySelector('select')?.value === 'trainer/train'")
    browser.wait("document.querySelector('#heatmap')?.data?.length > 0")


def test_the_straggler_is_a_row_of_the_heatmap(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "workers")
    means = browser.get(
        "document.querySelector('#heatmap').data[0].z"
        ".map((row) => row.reduce((sum, one) => sum + one, 0) / row.length)"
    )
    assert means.index(max(means)) == 2
    assert max(means) > 3 * min(means)
    assert browser.complaints() == []


@pytest.mark.slow
def test_workers_that_all_take_as_long_are_not_red(viewed: Viewed) -> None:
    browser = viewed.open(HOSTILE_KEY, "workers")
    (share,) = browser.get(
        "document.querySelector('#heatmap').data.map((one) => Math.max(...one.z.flat()) / one.zmax)"
    )
    assert 0.2 < share < 0.5


@pytest.mark.slow
def test_of_a_thousand_workers_the_straggler_is_drawn(viewed: Viewed) -> None:
    browser = viewed.open(LARGE, "workers")
    assert "trainer/613" in browser.get("document.querySelector('#heatmap').data[0].text.flat()")
    assert browser.complaints() == []


@pytest.mark.slow
def test_without_phases_the_worker_that_deviates_is_a_row(viewed: Viewed) -> None:
    plain = ExperimentKey("plain")
    run = LookedAt(plain, workers=64, slow=41, has_phases=False)
    write_run(viewed.data / "plain", run)
    browser = viewed.open(plain, "workers")
    rows = browser.get("document.querySelector('#heatmap').data[0].z")
    assert [place for place, row in enumerate(rows) if min(row) > 2] == [0]
    browser.expect("document.querySelector('#heatmap').data[0].text[0][0]", "trainer/41")
    browser.expect("document.querySelector('select').selectedOptions[0].text", MEASURED)
    assert browser.complaints() == []


@pytest.mark.slow
def test_of_many_workers_the_slowest_is_the_first_row(viewed: Viewed) -> None:
    browser = viewed.open(LARGE, "workers")
    browser.wait("document.querySelector('#heatmap').data")
    first = "document.querySelector('#heatmap').data[0].text[0][0]"
    browser.expect(first, "trainer/613")
    rows = "document.querySelectorAll('select')[1]"
    browser.expect(f"{rows}.value", "first")
    browser.do(f"{rows}.value = 'name'; {rows}.dispatchEvent(new Event('change'))")
    browser.wait(f"{first} !== 'trainer/613'")
    assert viewed.open(GRPO, "workers").get(f"{rows}.value") == "name"
    assert browser.complaints() == []


TOLD = "document.querySelector('#told').textContent"


def test_a_chart_is_read_by_keys(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "overview")
    browser.wait("document.querySelector('[data-panel]')?.tabIndex === 0")
    browser.do("document.querySelector('[data-panel]').focus()")
    browser.press(Keys.ARROW_LEFT)
    browser.wait(rf"/^step 60: [\d.]+$/.test({TOLD})")
    browser.wait("document.querySelector('[data-panel] .hoverlayer').children.length > 0")
    browser.press(Keys.HOME)
    browser.expect(TOLD, "step 1: 0")
    browser.press(Keys.ARROW_RIGHT)
    browser.expect(TOLD, "step 2: 0.5")
    browser.press("+")
    limits = "document.querySelector('[data-panel]').layout.xaxis.range"
    browser.wait(f"{limits}[1] - {limits}[0] < 50")
    browser.press("0")
    browser.wait(f"{limits}[1] - {limits}[0] >= 59")
    browser.press(Keys.ENTER)
    browser.expect("document.querySelector('#picked b').textContent", "Step 2")
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_cell_of_the_heatmap_is_chosen_by_keys(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "workers")
    browser.wait("document.querySelector('#heatmap').tabIndex === 0")
    browser.do("document.querySelector('#heatmap').focus()")
    browser.press(Keys.ARROW_DOWN + Keys.ARROW_DOWN + Keys.ARROW_LEFT)
    browser.wait(rf"/^trainer\/2, step 59: 4\.\d+ s$/.test({TOLD})")
    browser.press(Keys.ENTER)
    browser.wait("location.hash.endsWith('/timeline/59')")
    browser.wait("document.body.dataset.ready === 'timeline'")
    assert browser.complaints() == []


@pytest.mark.slow
def test_compared_keys_have_their_unit(viewed: Viewed) -> None:
    browser = viewed.browser
    browser.open(viewed.url, "runs")
    key = "trainer/iteration/duration"
    browser.do(
        f"const one = document.querySelector('#key'); one.value = '{key}';"
        "one.dispatchEvent(new Event('change'))"
    )
    axis = "document.querySelector('#compare').layout.yaxis.title.text"
    browser.wait(f"{axis} === '{key} (s)'")
    chosen = "document.querySelector('#key').selectedOptions[0].textContent"
    browser.expect(chosen, f"{key} (s)")
    assert browser.complaints() == []


def test_rollouts_are_found(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "rollouts")
    browser.press("/")
    browser.wait("document.activeElement.id === 'search'")
    browser.press("add 7 and")
    browser.wait("document.querySelectorAll('#samples tbody tr').length === 1")
    browser.wait("document.querySelector('#samples tbody').textContent.includes('14')")


@pytest.mark.slow
def test_samples_of_a_step_are_shown_and_the_worst_first(viewed: Viewed) -> None:
    stepped = ExperimentKey("stepped")
    samples: list[Mapping[str, str | float]] = [
        {"step": step, "completion": f"{step}/{part}", "reward": part / 4}
        for step in range(1, 11)
        for part in range(4)
    ]
    write_run(viewed.data / "stepped", LookedAt(stepped, steps=10, samples=samples))
    browser = viewed.open(stepped, "rollouts")
    rows = (
        "[...document.querySelectorAll('#samples tbody tr')].map((row) => row.cells[1].innerText)"
    )
    browser.do("document.querySelector('#step').focus()")
    browser.press("7")
    browser.wait(f'JSON.stringify({rows}) === \'["7/3","7/2","7/1","7/0"]\'')
    browser.do(
        "const order = [...document.querySelectorAll('select')].at(-1);"
        "order.value = 'lowest'; order.dispatchEvent(new Event('change'))"
    )
    browser.wait(f"{rows}[0] === '7/0'")
    assert browser.complaints() == []


def test_answers_to_one_prompt_are_one_row_and_stand_side_by_side(viewed: Viewed) -> None:
    grouped = ExperimentKey("grouped")
    samples: list[Mapping[str, str | float]] = [
        {"step": 1, "prompt": f"p{prompt}", "completion": "x" * part, "reward": part / 4 + prompt}
        for prompt in range(3)
        for part in range(1, 5)
    ]
    samples.append({"step": 2, "prompt": "p0", "completion": "later", "reward": 0.0})
    write_run(viewed.data / "grouped", LookedAt(grouped, steps=1, samples=samples))
    browser = viewed.open(grouped, "rollouts")
    browser.wait("document.querySelector('#bystep').data?.length === 5")
    browser.do(
        "[...document.querySelectorAll('button')].find((of) => of.textContent === 'by prompt')"
        ".click()"
    )
    rows = (
        "[...document.querySelectorAll('#groups tbody tr')].map((of) => of.innerText.split('\\t'))"
    )
    browser.wait(f"{rows}.length === 4")
    told = {(row[0].split()[0], row[1]): row[2:] for row in browser.get(rows)}
    assert told["p1", "1"] == ["4", "1.625", "0.75", "2", "2.5"]
    assert told["p0", "2"][0] == "1"
    browser.do("document.querySelector('#groups [aria-expanded]').click()")
    browser.wait("document.querySelectorAll('.side .text').length > 0")
    browser.wait("location.hash.includes('rows=prompt')")
    assert browser.complaints() == []


@pytest.mark.slow
def test_who_opens_a_rollout_by_keys_is_in_it_and_then_goes_on_where_it_was(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "rollouts")
    browser.wait("document.querySelectorAll('.open').length === 40")
    browser.do("document.querySelectorAll('.open')[30].focus()")
    browser.press(Keys.ENTER)
    browser.wait("document.activeElement.matches('#opened .close')")
    browser.press(Keys.ENTER)
    browser.wait("document.querySelector('#opened') === null")
    assert (
        browser.get("[...document.querySelectorAll('.open')].indexOf(document.activeElement)") == 30
    )


@pytest.mark.slow
def test_a_chart_is_saved_as_a_picture_on_white_and_as_values(viewed: Viewed) -> None:
    long = ExperimentKey("saved")
    write_run(viewed.data / "saved", LookedAt(long, steps=1_300, workers=1))
    browser = viewed.open(long, "overview")
    browser.wait("document.querySelector('[data-panel]')?.data?.length === 2")
    names = browser.get("document.querySelector('[data-panel]').data.map((one) => one.name)")
    assert [name.split(": ")[1] for name in names] == ["lowest, highest", "mean"]
    browser.do(
        "window.saved = {}; otelRl.saving.download = (name, url) => { saved[name] = url; };"
        "for (const one of document.querySelector('.chart .saving').children) one.click()"
    )
    browser.wait("Object.keys(saved).length === 2")
    picture, values = browser.get(
        "Object.keys(saved).sort().reverse().map((name) => decodeURIComponent(saved[name]))"
    )
    assert picture.startswith("data:image/svg+xml")
    assert "rgb(255, 255, 255)" in picture
    assert "Reward mean, trainer" in picture
    lines = values.partition(",")[2].splitlines()
    assert lines[:2] == ["step,key,value", "1,trainer/reward/mean,0"]
    assert len(lines) == 1_301
    assert browser.complaints() == []


@pytest.mark.slow
def test_runs_that_are_compared_show_what_differs_in_their_config(viewed: Viewed) -> None:
    for number, rate in enumerate((0.5, 2.0)):
        key = ExperimentKey("sweep", f"lr{rate}")
        run = LookedAt(key, config={"lr": rate, "group": 8})
        write_run(viewed.data / key.trial, run, now_ns=T0 + (100 + number) * S)
    browser = viewed.browser
    browser.open(viewed.url, "runs")
    table = "document.querySelector('#differences')"
    browser.wait(f"{table}.querySelectorAll('tbody tr').length > 0")
    rows = browser.get(
        f"[...{table}.querySelectorAll('tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    assert ["lr", "2.0", "0.5"] in [row[:3] for row in rows]
    assert browser.complaints() == []


@pytest.mark.slow
def test_on_paper_every_chart_is_drawn_and_the_theme_is_light(viewed: Viewed) -> None:
    paper = ExperimentKey("paper")
    write_run(
        viewed.data / "paper",
        LookedAt(paper, keys=[f"trainer/{a}{b}" for a in "abcdefgh" for b in "vwxyz"]),
    )
    browser = viewed.open(paper, "overview")
    drawn = "[...document.querySelectorAll('[data-panel]')].filter((one) => one.data).length"
    assert browser.get(drawn) < 43
    browser.do(
        "document.documentElement.dataset.theme = 'dark';"
        f"window.print = () => {{ window.onPaper = {drawn}; }};"
        "document.dispatchEvent(new KeyboardEvent('keydown', { key: 'p', ctrlKey: true }))"
    )
    browser.wait("window.onPaper !== undefined")
    browser.expect("window.onPaper", 43)
    theme = "document.documentElement.dataset.theme"
    browser.do("dispatchEvent(new Event('beforeprint'))")
    browser.expect(theme, "light")
    browser.do("dispatchEvent(new Event('afterprint'))")
    browser.expect(theme, "dark")
    assert browser.complaints() == []


@pytest.mark.slow
def test_keys_lead_everywhere(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "overview")
    for key, page in zip("23456", PAGES[1:], strict=True):
        browser.press(key)
        browser.wait(f"document.body.dataset.ready === '{page}'")
    browser.press("r")
    browser.wait("document.body.dataset.ready === 'runs'")
    browser.press("?")
    browser.wait("document.querySelector('#keys').open")
    assert browser.complaints() == []


@pytest.mark.slow
def test_dark_is_dark_and_is_remembered(viewed: Viewed) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    browser = viewed.open(GRPO, "workers")
    browser.do("localStorage.clear(); document.documentElement.dataset.theme = 'light'")
    light = browser.get(ground)
    browser.press("t")
    browser.wait("document.documentElement.dataset.theme === 'dark'")
    dark = browser.get(ground)
    viewed.open(GRPO, "overview")
    assert browser.get(ground) == dark != light
    browser.do("localStorage.clear()")


@pytest.mark.slow
def test_a_phone_scrolls_in_one_direction(viewed: Viewed) -> None:
    browser = viewed.browser
    browser.as_phone(390)
    try:
        browser.open(viewed.url, "runs")
        assert browser.get("document.documentElement.scrollWidth <= innerWidth")
        labels = "[...document.querySelectorAll('.list td[data-label]')]"
        before = f"{labels}.map((one) => getComputedStyle(one, '::before').content)"
        assert {text.strip() for text in browser.get(before)} == {'"step "', '"reward "'}
        badges = "[...document.querySelectorAll('.list .badge')].map((one) => one.parentElement)"
        right = f"{badges}.map((one) => one.getBoundingClientRect().right)"
        assert max(browser.get(right)) <= 390  # states and verdicts are seen
        for page in PAGES:
            viewed.open(GRPO, page)
            browser.expect("[document.documentElement.scrollWidth, innerWidth]", 2 * [390])
            tab = "document.querySelector('.tabs [aria-current]').getBoundingClientRect()"
            browser.wait(f"{tab}.left >= 0 && {tab}.right <= 390")
    finally:
        browser.as_phone(0)


@pytest.mark.parametrize("page", PAGES)
def test_a_hostile_name_is_text(viewed: Viewed, page: str) -> None:
    browser = viewed.open(HOSTILE_KEY, page)
    browser.wait("document.querySelector('h1').textContent.startsWith('<script>')")
    if page == "overview":
        browser.do("scrollTo(0, document.body.scrollHeight)")
        browser.wait("[...document.querySelectorAll('[data-panel]')].every((one) => one.data)")
    assert browser.get("window.hacked") is None
    assert browser.get("document.querySelectorAll('main img, main script').length") == 0
    assert browser.get("document.querySelectorAll('main [href^=\"javascript\" i]').length") == 0
    assert browser.complaints() == []


def test_what_is_new_is_seen_without_a_reload(viewed: Viewed) -> None:
    browser = viewed.browser
    browser.open(viewed.url, "runs")
    browser.wait("document.querySelector('#live').textContent === 'live'")
    write_run(viewed.data / "new", LookedAt(ExperimentKey("newcomer")), now_ns=T0 + S)
    browser.wait("document.querySelector('main').textContent.includes('newcomer')")


def test_runs_are_compared_by_any_key_each_in_its_colour(viewed: Viewed) -> None:
    browser = viewed.browser
    browser.open(viewed.url, "runs")
    browser.expect("document.querySelector('#key').value", "trainer/reward/mean")
    color = "document.querySelector('#compare').data.at(-1).line.color"
    browser.wait("document.querySelector('#compare').data?.length > 0")
    before = browser.get(color)
    browser.do(
        "const key = document.querySelector('#key'); key.value = 'trainer/iteration/duration';"
        "key.dispatchEvent(new Event('change'));"
        "document.querySelector('[data-run] input').click()"
    )
    plot = "document.querySelector('#compare')"
    browser.wait(f"{plot}.layout.yaxis.title.text === 'trainer/iteration/duration (s)'")
    browser.wait(f"{plot}.data.length === 2")
    browser.expect(color, before)
    assert browser.complaints() == []


@pytest.mark.slow
def test_the_link_of_a_run_waits_for_its_first_report(viewed: Viewed) -> None:
    late = ExperimentKey("late")
    run = run_id(late.experiment, late.trial)
    viewed.browser.open(f"{viewed.url}#/run/{run}/overview", "waiting")
    assert "Nothing was reported" in viewed.browser.get("document.body.textContent")
    viewed.browser.wait("document.querySelector('#others a[href^=\"#/run/\"]') !== null")
    viewed.browser.wait("document.querySelector('#live').textContent === 'live'")
    write_run(viewed.data / "late", LookedAt(late), now_ns=T0 + 2 * S)
    viewed.browser.wait("document.body.dataset.ready === 'overview'")
    assert viewed.browser.get("document.querySelector('#waiting')") is None


@pytest.mark.slow
def test_where_a_line_is_not_a_number_is_a_cross(viewed: Viewed) -> None:
    diverged = ExperimentKey("diverged")
    write_run(viewed.data / "nan", LookedAt(diverged, diverges_at=15), now_ns=T0 + 3 * S)
    browser = viewed.open(diverged, "overview")
    browser.wait("document.querySelector('[data-panel]')?.data?.length === 2")
    browser.expect("document.querySelector('[data-panel]').data[1].x", [*range(15, 21)])
    assert "NaNreward, since step 15" in browser.get("document.querySelector('.facts').textContent")
    assert browser.complaints() == ["NaN"]  # the loss
    browser.open(viewed.url, "runs")
    line = f"document.querySelector('[data-run=\"{run_id('diverged', 'default')}\"]')"
    browser.expect(f"{line}.children[5].textContent", "NaNsince step 15")
    browser.do(f"{line}.querySelector('input:not(:checked)')?.click()")
    crosses = "document.querySelector('#compare').data.find((one) => one.yaxis === 'y2')"
    browser.wait(f"{crosses}?.name.startsWith('diverged/')")
    browser.wait(f"{crosses}.x.length === 6")


@pytest.mark.slow
def test_crosses_of_runs_that_are_drawn_together_have_the_name_of_their_group(
    viewed: Viewed,
) -> None:
    keys = [ExperimentKey("seeds", str(seed)) for seed in range(2)]
    for key in keys:
        run = LookedAt(key, diverges_at=15, config={"lr": 0.001})
        write_run(viewed.data / f"seed-{key.trial}", run, now_ns=T0 + 3 * S)
    chosen = ".".join(run_id(key.experiment, key.trial) for key in keys)
    browser = viewed.browser
    browser.open(f"{viewed.url}#/?runs={chosen}&group=lr", "runs")
    plot = "document.querySelector('#compare')"
    browser.wait(f"{plot}?.data?.some((one) => one.yaxis === 'y2')")
    names = browser.get(f"{plot}.data.filter((one) => one.yaxis === 'y2').map((of) => of.name)")
    assert names == ["lr 0.001, 2 runs: NaN or infinite"]


@pytest.mark.slow
def test_a_report_says_of_when_it_is(viewed: Viewed) -> None:
    """What it calls a minute ago is so when it is made, not when it is read."""
    run = run_id(GRPO.experiment, GRPO.trial)
    pages = Pages(BridgeSettings(data=viewed.data / "a"), clock_ns=lambda: T0 + S)
    path = viewed.data.parent / "report.html"
    path.write_text(report_html(pages, run), encoding="utf-8")
    viewed.browser.open(path.as_uri(), "overview")
    assert "14 Nov 2023" in viewed.browser.get("document.querySelector('#live').textContent")
    assert " ago" not in viewed.browser.get("document.querySelector('.facts').textContent")
    viewed.browser.wait("document.querySelector('[data-evidence=workers]')?.data?.length === 4")
    assert viewed.browser.complaints() == []


def test_a_report_has_the_steps_of_the_fault_the_settings_and_the_log(
    viewed: Viewed, tmp_path: Path
) -> None:
    console = [("trainer/1", "stderr", "CUDA error"), ("trainer/2", "stdout", "slow today")]
    slow = LookedAt(steps=60, slow=2, slow_from=31, has_spans=True, config={"lr": 0.5})
    write_run(tmp_path, replace(slow, console=console))
    before = LookedAt(ExperimentKey(GRPO.experiment, "0"), config={"lr": 2.0, "seed": 1})
    write_run(tmp_path, before, now_ns=T0 - 1_000 * S)
    pages = Pages(BridgeSettings(data=tmp_path), clock_ns=lambda: T0 + S)
    path = tmp_path / "report.html"
    path.write_text(report_html(pages, run_id(GRPO.experiment, GRPO.trial)), encoding="utf-8")
    browser = viewed.browser
    browser.open(path.as_uri(), "overview")
    changes = "[...document.querySelectorAll('[data-change]')]"
    browser.wait(f"{changes}.filter((one) => one.data).length === 2")
    headings = browser.get("[...document.querySelectorAll('.change h3')].map((of) => of.innerText)")
    assert "step 31" in headings[1]
    assert "lr" in browser.get("document.querySelector('#provenance').textContent")
    cells = "[...row.cells].map((cell) => cell.innerText)"
    rows = f"[...document.querySelectorAll('#differences tr')].map((row) => {cells})"
    assert browser.get(rows) == [
        ["key", "this run", f"{GRPO.experiment}/0"],
        ["lr", "0.5", "2.0"],
        ["seed", "–", "1"],  # noqa: RUF001  # as the page has it
    ]
    browser.do("document.querySelector('[data-panel]').scrollIntoView()")  # drawn once seen
    browser.wait("document.querySelector('[data-panel]')?.data?.length > 0")
    browser.do(
        "otelRl.saving.download = (name, url) => { window.saved = decodeURIComponent(url); };"
        "document.querySelector('[aria-label^=csv]').click()"
    )
    browser.wait("window.saved !== undefined")
    lines = browser.get("saved").partition(",")[2].splitlines()
    assert lines[:2] == ["step,line,value", "1,trainer/reward/mean,0"]
    assert len(lines) == 61
    browser.do(
        "const of = document.querySelector('#smooth'); of.value = 0.5;"
        "of.dispatchEvent(new Event('input', { bubbles: true }));"
        "document.querySelector('[data-panel]').scrollIntoView()"
    )
    browser.wait("document.querySelector('[data-panel]').data.length === 2")
    browser.do("window.saved = undefined; document.querySelector('[aria-label^=csv]').click()")
    browser.wait("window.saved !== undefined")
    assert browser.get("saved").partition(",")[2].splitlines() == lines  # and not the smooth line
    browser.press("5")
    browser.wait("document.body.dataset.ready === 'log'")
    lines = browser.get("document.querySelector('#lines').innerText")
    assert "CUDA error" in lines
    assert "slow today" in lines
    assert browser.complaints() == []


def test_without_plotly_the_page_has_everything_but_charts(viewed: Viewed, tmp_path: Path) -> None:
    run = run_id(GRPO.experiment, GRPO.trial)
    page = Pages(BridgeSettings(data=viewed.data / "a"), clock_ns=lambda: T0 + S)
    path = tmp_path / "report.html"
    scripts = report_html(page, run).rpartition("<script>")
    path.write_text(f"{scripts[0]}<script>throw new Error('not loaded');</script>")
    browser = viewed.browser
    browser.open(path.as_uri(), "overview")
    browser.wait("document.querySelector('.verdict h2') !== null")
    assert "No chart can be drawn" in browser.get("document.querySelector('#no-charts').innerText")
    browser.do("document.querySelector('.chart [aria-label^=svg]').click()")
    browser.wait("document.querySelector('.chart .failure')?.textContent.includes('not drawn')")
    for other in browser.get("[...document.querySelectorAll('.tabs a')].map((one) => one.hash)"):
        browser.do(f"location.hash = '{other}'")
        browser.wait(f"document.body.dataset.ready === '{other.rpartition('/')[2]}'")
    assert browser.get("otelRl.errors") == ["Uncaught Error: not loaded"]


@pytest.mark.slow
def test_a_run_beyond_the_list_is_found_by_its_name(viewed: Viewed) -> None:
    browser = viewed.browser
    browser.open(viewed.url, "runs")
    browser.do(
        "const get = otelRl.get; otelRl.get = async (path, query) => {"
        "  const found = await get(path, query);"
        "  if (path !== 'runs' || query?.search) return found;"
        "  return { ...found, runs: found.runs.slice(0, 1), left_out: found.runs.length - 1 };"
        "}; dispatchEvent(new HashChangeEvent('hashchange'))"
    )
    browser.wait("document.querySelector('.list')?.textContent.includes('older runs')")
    names = (
        "[...document.querySelectorAll('[data-run]')].filter((one) => one.offsetHeight)"
        ".map((one) => one.querySelector('a').textContent)"
    )
    first = browser.get(names)
    search(browser, "broken")
    browser.wait(f"{names}.join() === 'broken'")
    search(browser, "")
    browser.wait(f"{names}.length === 1 && {names}.join() !== 'broken'")
    browser.expect(names, first)
    assert browser.complaints() == []


def search(browser: Browser, text: str) -> None:
    browser.do(
        f"const find = document.querySelector('#search'); find.value = '{text}';"
        "find.dispatchEvent(new Event('input'))"
    )


def test_a_step_of_a_chart_leads_to_its_spans_and_samples(viewed: Viewed) -> None:
    sampled = ExperimentKey("sampled")
    samples: list[Mapping[str, str | float]] = [
        {"step": step, "completion": f"of {step}"} for step in range(1, 11)
    ]
    write_run(viewed.data / "sampled", LookedAt(sampled, steps=10, samples=samples))
    browser = viewed.open(sampled, "overview")
    browser.wait("document.querySelector('[data-panel]')?.data?.length > 0")
    browser.do("document.querySelector('[data-panel]').emit('plotly_click', {points: [{x: 7}]})")
    links = "[...document.querySelectorAll('#picked a')].map((one) => one.hash).join(' ')"
    run = run_id(sampled.experiment, sampled.trial)
    browser.expect(links, f"#/run/{run}/timeline/7 #/run/{run}/rollouts/7")
    browser.press(Keys.ESCAPE)
    browser.expect(links, "")
    # By keys one is led to the links, and back to the chart.
    browser.do("document.querySelector('[data-panel]').focus()")
    browser.press(Keys.HOME + Keys.ENTER)
    browser.wait("document.activeElement.matches('#picked a[href$=\"timeline/1\"]')")
    browser.press(Keys.ESCAPE)
    browser.wait("document.activeElement === document.querySelector('[data-panel]')")
    browser.open(f"{viewed.url}#/run/{run}/rollouts/7", "rollouts")
    browser.expect("document.querySelector('#step').value", "7")
    rows = "[...document.querySelectorAll('#samples tbody tr')].map((one) => one.innerText)"
    assert [row.split() for row in browser.get(rows)] == [["7", "of", "7"]]
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_step_whose_spans_are_gone_is_told_with_its_trace(viewed: Viewed) -> None:
    life = Life(viewed.data / "gone")
    for number in range(STEPS):
        batches = [batch for rank in range(RANKS) for batch in step(LIVE, rank, number)]
        life.take(*batches, now_ns=start_ns(LIVE) + (number + 2) * S)
    life.take(now_ns=start_ns(LIVE) + 60 * S)
    gone = "DELETE FROM log WHERE kind = 'spans'"  # those of chosen steps stay
    life.journal.write(lambda of: of.execute(gone).close())
    life.journal.close()
    browser = viewed.browser
    run = run_id(LIVE.experiment, LIVE.trial)
    browser.open(f"{viewed.url}#/run/{run}/timeline/6", "timeline")
    assert browser.complaints() == []
    told = browser.get("document.querySelector('.notice').textContent")
    assert "has no spans of step 6, but of steps 0 to 5, 7" in told
    assert re.search(
        r"It took 1.0 s, most of it trainer/train of trainer/\d.*: [0-9a-f]{32}$", told
    )


@pytest.mark.slow
def test_traces_of_the_evidence_lead_to_their_backend(viewed: Viewed, tmp_path: Path) -> None:
    trace_url = "https://traces.example/{trace_id}"
    run = run_id(GRPO.experiment, GRPO.trial)
    with serving(viewed.data / "a", tmp_path, OTEL_RL_BRIDGE__ROWS__TRACE_URL=trace_url) as url:
        browser = viewed.browser
        browser.open(f"{url}#/run/{run}/overview", "overview")
        link = "document.querySelector('#verdict .trace')"
        browser.wait(f"{link} !== null")
        trace = browser.get(f"{link}.innerText")
        assert re.fullmatch("[0-9a-f]{32}", trace)
        assert browser.get(f"{link}.href") == trace_url.format(trace_id=trace)
        assert browser.complaints() == []


@pytest.mark.slow
def test_the_page_says_what_it_lacks(viewed: Viewed) -> None:
    many = ExperimentKey("many")
    keys = [f"key{n}" for n in range(4_200)]
    write_run(viewed.data / "many", LookedAt(many, steps=2, keys=keys, samples=[{"id": "a"}] * 2))
    with closing(sqlite3.connect(viewed.data / "many" / JOURNAL_FILE)) as connection:
        of = "SELECT MIN(number) FROM log WHERE kind = 'rollouts'"
        connection.execute(f"UPDATE log SET body = ? WHERE number = ({of})", (b"x",))
        connection.commit()
    browser = viewed.open(many, "rollouts")
    browser.expect("document.querySelector('#damaged')?.innerText.split(': ')[1]", "1")
    viewed.open(many, "health")
    browser.wait("/: 2\\d\\d$/.test(document.querySelector('#left-out')?.innerText)")
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_run_is_saved_as_one_file_from_its_page(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "overview")
    browser.wait("document.querySelector('#save')?.download === 'grpo-1.html'")
    saved = viewed.data.parent / "saved.html"
    saved.write_text(
        browser.get("fetch(document.querySelector('#save').href).then((one) => one.text())"),
        encoding="utf-8",
    )
    browser.open(saved.as_uri(), "overview")
    browser.wait("document.querySelector('[data-panel]')?.data?.length > 0")
    assert browser.get("document.querySelector('#save')") is None
    assert browser.complaints() == []


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_have_the_contrast_that_wcag_asks_for(viewed: Viewed, theme: str) -> None:
    browser = viewed.browser
    browser.open(viewed.url, "runs")
    browser.do(f"localStorage.setItem('otel_rl.theme', '{theme}')")
    browser.open(viewed.url, "runs")
    assert browser.get(_PALE) == []
    for page in PAGES:
        viewed.open(GRPO, page)
        if page == "overview":
            browser.wait("document.querySelector('#verdict li')")
        assert browser.get(_PALE) == [], page
    browser.do("localStorage.clear()")


@pytest.mark.slow
def test_a_screen_reader_has_a_name_for_everything(viewed: Viewed) -> None:
    viewed.browser.open(viewed.url, "runs")
    assert viewed.browser.get(_NAMELESS) == []
    for page in PAGES:
        assert viewed.open(GRPO, page).get(_NAMELESS) == [], page


@pytest.mark.parametrize("theme", slow_after(1, ["light", "dark"]))
def test_axe_finds_nothing_on_any_page(viewed: Viewed, theme: str) -> None:
    """Its rules are those of WCAG up to 2.2, levels A and AA, and its best practices."""
    axe = SOURCES["axe"]
    if not axe.is_built():
        pytest.skip(axe.not_verified())
    rules = (axe.path / "axe.min.js").read_text()
    browser = viewed.browser
    browser.open(viewed.url, "runs")
    browser.do(f"localStorage.setItem('otel_rl.theme', '{theme}')")
    for page in ("runs", *PAGES):
        if page == "runs":
            browser.open(viewed.url, page)
        else:
            viewed.open(GRPO, page)
        browser.do(rules)
        browser.do(
            "window.found = null; axe.run().then(({ violations }) => { found = violations; })"
        )
        browser.wait("found !== null")
        told = browser.get(
            "found.map((one) => [one.id, one.nodes.map((of) => of.html).slice(0, 3)])"
        )
        assert told == [], page
    browser.do("localStorage.clear()")


@pytest.mark.slow
def test_a_long_sample_is_short_until_it_is_opened(viewed: Viewed) -> None:
    long = ExperimentKey("verbose")
    samples: list[Mapping[str, str | float]] = [
        {"completion": f"{n} " + "word " * 2_000, "reward": n / 4} for n in range(4)
    ]
    write_run(viewed.data / "verbose", LookedAt(long, samples=samples))
    browser = viewed.open(long, "rollouts")
    height = "document.querySelector('#samples tbody tr').offsetHeight"
    short = browser.get(height)
    assert short < 150
    browser.do("document.querySelector('#samples .more').click()")
    browser.wait(f"{height} > 5 * {short}")
    assert browser.complaints() == []


@pytest.mark.slow
def test_the_histogram_is_of_the_samples_that_are_found(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "rollouts")
    bars = "document.querySelector('#rewards').data[0].x.length"
    browser.expect(bars, 40)
    search(browser, "add 7 and")
    browser.wait(f"{bars} === 1")
    assert browser.complaints() == []


@pytest.mark.slow
def test_workers_opens_at_the_cause_and_marks_its_begin(viewed: Viewed) -> None:
    key = ExperimentKey("late_straggler")
    write_run(viewed.data / "late_straggler", LookedAt(key, steps=60, slow=2, slow_from=31))
    browser = viewed.open(key, "workers")
    browser.expect("document.querySelector('select').value", "trainer/train")
    browser.expect("document.querySelector('#heatmap').layout.shapes[0].x0", 30.5)
    ratios = browser.get("document.querySelector('#heatmap').data[0].z[2]")
    assert max(ratios[:30]) < 1.2
    assert min(ratios[30:]) > 3
    note = browser.get("document.querySelector('main p.quiet').textContent")
    assert "Slowest: trainer/2, " in note
    assert browser.complaints() == []


@pytest.mark.slow
def test_nobody_is_called_slow_where_all_become_slow_at_once(viewed: Viewed) -> None:
    key = ExperimentKey("all_slow")
    write_run(viewed.data / "all_slow", LookedAt(key, steps=20, slow_step=10))
    browser = viewed.open(key, "workers")
    assert "Slowest" not in browser.get("document.querySelector('main').textContent")


@pytest.mark.slow
def test_phases_have_colours_of_their_own_that_are_seen_on_both_grounds(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "overview")
    colors = browser.get("Object.values(otelRl.charts.phases)")
    assert len(colors) == len({*colors}) >= 24
    assert {*names.PHASES} <= {*browser.get("Object.keys(otelRl.charts.phases)")}

    def light(color: str) -> float:
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (
            one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for color in colors:
        for ground in ("#ffffff", "#171e26"):
            low, high = sorted((light(color), light(ground)))
            assert (high + 0.05) / (low + 0.05) >= 3, (color, ground)


@pytest.mark.slow
def test_by_time_the_begin_of_a_cause_is_marked_too(viewed: Viewed) -> None:
    key = ExperimentKey("by_time")
    write_run(viewed.data / "by_time", LookedAt(key, steps=60, slow=2, slow_from=31))
    run = run_id(key.experiment, key.trial)
    browser = viewed.browser
    browser.open(f"{viewed.url}#/run/{run}/overview?x=time", "overview")
    marks = "(document.querySelector('[data-panel]')?.layout?.shapes ?? [])"
    browser.wait(f"{marks}.length === 1")
    at = browser.get(f"+new Date({marks}[0].x0)")
    assert at == (T0 - 29 * S) / 1e6
    assert browser.complaints() == []


@pytest.mark.slow
def test_short_times_are_told_in_milliseconds(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "health")
    told = browser.get("[0, 15e-6, 0.0042, 0.05, 12].map((one) => otelRl.duration(one))")
    assert told == ["0.0 s", "0.015 ms", "4.2 ms", "0.050 s", "12 s"]


@pytest.mark.slow
def test_a_constant_is_not_magnified(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "overview")
    ranges = browser.get(
        "[[0.95, 0.95, 0.9500005], [0, 0, 0]].map((ys) => "
        "otelRl.charts.heightOf([{ y: ys }], {}, {}).range)"
    )
    assert ranges[0][1] - ranges[0][0] > 0.05
    assert ranges[1] == [0, 1]


@pytest.mark.slow
def test_a_zoom_at_the_last_point_shows_nothing_beyond_it(viewed: Viewed) -> None:
    browser = viewed.open(GRPO, "overview")
    browser.wait("document.querySelector('[data-panel]')?.tabIndex === 0")
    browser.do("document.querySelector('[data-panel]').focus()")
    browser.press(Keys.END + "+")
    limits = "document.querySelector('[data-panel]').layout.xaxis.range"
    browser.wait(f"{limits}[0] > 30 && {limits}[1] === 60")


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 10])
def test_a_chart_of_phases_has_a_legend(viewed: Viewed, count: int) -> None:
    key = ExperimentKey(f"{count} phases")
    phases = [*names.PHASES][: count + 1] if count > 1 else ["train"]  # one is no part of a step
    write_run(
        viewed.data / f"phases-{count}",
        LookedAt(key, phases=[f"phase/trainer/{phase}" for phase in phases], has_phases=False),
    )
    browser = viewed.open(key, "overview")
    card = (
        "[...document.querySelectorAll('.chart')]"
        ".find((one) => one.querySelector('h3').textContent.startsWith('Time by phase'))"
    )
    browser.wait(f"{card}?.querySelectorAll('.legend li').length === {count}")
    shades = browser.get(
        f"[...{card}.querySelectorAll('.legend i')].map((one) => one.getAttribute('style'))"
    )
    assert len({*shades}) == count


@pytest.mark.slow
def test_a_span_has_its_colour_where_it_works_and_not_where_a_part_of_it_waits(
    viewed: Viewed,
) -> None:
    key = ExperimentKey("waits")
    run = LookedAt(key, steps=40, slow=2, slow_from=21, has_spans=True, has_waits=True)
    write_run(viewed.data / "waits", run)
    browser = viewed.open(key, "timeline")
    plot = "document.querySelector('#timeline')"
    browser.wait(f"{plot}?.data !== undefined")
    full = browser.get(
        f"{plot}.data.filter((one) => one.name === 'train').flatMap((one) => one.x.map("
        "(length, n) => [one.marker.opacity[n], length]))"
        ".filter(([opacity, length]) => opacity > 0.5 && length > 0.01).map(([, length]) => length)"
    )
    assert len(full) == 8  # of four workers in two steps
    assert max(full) == pytest.approx(2.0, abs=0.1)  # half of the slow one's four seconds
    assert sorted(full)[5] < 0.6


@pytest.mark.slow
def test_an_empty_page_recommends_what_exists(viewed: Viewed) -> None:
    well = ExperimentKey("well")
    write_run(viewed.data / "well", LookedAt(well, steps=60))
    browser = viewed.open(well, "rollouts")
    advice = browser.get("document.querySelector('.empty').textContent")
    (named,) = re.findall(r"otel_rl\.(\w+)\(\)", advice)
    assert named in otel_rl.__all__


@pytest.mark.slow
def test_a_small_window_has_two_charts_in_a_row_and_the_whole_list(viewed: Viewed) -> None:
    browser = viewed.browser
    browser.as_phone(768)
    try:
        viewed.open(GRPO, "overview")
        browser.wait("document.querySelectorAll('#first .chart').length > 1")
        tops = "[...document.querySelectorAll('#first .chart')].map((one) => one.offsetTop)"
        assert browser.get(f"new Set({tops}.slice(0, 2)).size") == 1
        browser.open(viewed.url, "runs")
        assert browser.get("document.documentElement.scrollWidth") == 768
        assert (
            browser.get(
                "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)"
                "(document.querySelector('.list'))"
            )
            == 0
        )
    finally:
        browser.as_phone(0)


@pytest.mark.slow
def test_of_many_ranks_the_timeline_shows_a_few_until_all_are_asked_for(viewed: Viewed) -> None:
    ranks = ExperimentKey("ranks")
    life = Life(viewed.data / "ranks")
    for number in range(3):
        batches = [batch for rank in range(80) for batch in step(ranks, rank, number)]
        life.take(*batches, now_ns=start_ns(ranks) + (number + 2) * S)
    life.journal.close()
    browser = viewed.open(ranks, "timeline")
    lanes = "document.querySelector('#timeline').layout.yaxis.ticktext"
    browser.wait("document.querySelector('#timeline')?.data !== undefined")
    few = browser.get(lanes)
    assert 1 <= len(few) < 10
    browser.do("document.querySelector('#folded button').click()")
    browser.wait(f"{lanes}.length === 80")
    # Nothing is empty between the seconds, the lowest lane, the highest one and the legend.
    gaps = (
        "(({ _fullLayout: { _size: { t, h } } }, { top, height }, legend) =>"
        " [height - t - h, top + t - legend.bottom])(document.querySelector('#timeline'),"
        " document.querySelector('#timeline').getBoundingClientRect(),"
        " document.querySelector('.legend').getBoundingClientRect())"
    )
    browser.wait(f"{gaps}.every((one) => one > 0 && one < 60)")
    browser.do("document.querySelector('#folded button').click()")
    browser.wait(f"{lanes}.length === {len(few)}")
    browser.do("document.querySelector('#folded input').focus()")
    browser.press("/1[12]$")
    browser.wait(f'JSON.stringify({lanes}) === \'["trainer/11","trainer/12"]\'')
    browser.wait("document.querySelectorAll('#path li').length > 0")
    assert browser.complaints() == []
