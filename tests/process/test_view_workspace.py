"""Charts of three hundred keys as a workspace: found, arranged, compared, and sent as a link."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from otel_rl.semconv.names import METRICS
from tests.support.browser import Browser
from tests.support.screenshots import served
from tests.support.view_runs import T0, LookedAt, S, write_run

pytestmark = pytest.mark.process

WIDE = ExperimentKey("wide", "1")
RUN = run_id(WIDE.experiment, WIDE.trial)
SPANNED = ExperimentKey("spanned", "1")
PARTS = ("actor", "critic", "env")
KEYS = [
    *(f"{part}/{a}{b}" for part in PARTS for a in "abcdefgh" for b in "vwxyz"),
    *(f"actor/layers/{n}/norm" for n in range(28)),
    "perf/total_num_tokens",
]
PANELS = "[...document.querySelectorAll('[data-panel]')]"
DRAWN = f"{PANELS}.filter((one) => one.data)"
CLOSED = "document.querySelectorAll('.fold[aria-expanded=false]').length"


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Browser]]:
    home: Path = tmp_path_factory.mktemp("workspace")
    run = LookedAt(WIDE, steps=60, slow=2, slow_from=31, keys=KEYS)
    write_run(home / "data", run)
    write_run(home / "data", replace(run, key=SPANNED, keys=(), has_spans=True))
    with served(home / "data") as url, Browser(home / "profile") as browser:
        yield f"{url}#/run/{RUN}", browser


@pytest.fixture
def browser(viewed: tuple[str, Browser]) -> Iterator[Browser]:
    url, browser = viewed
    browser.open(f"{url}/overview", "overview")
    browser.wait(f"{DRAWN}.length > 0")
    yield browser
    assert browser.complaints() == []
    browser.do("localStorage.clear()")


def section(title: str) -> str:
    return (
        "[...document.querySelectorAll('section')].find((one) => "
        f"one.querySelector('bdi')?.textContent === '{title}')"
    )


def test_sections_are_closed_with_their_counts_and_what_is_opened_is_remembered(
    browser: Browser,
) -> None:
    browser.expect(f"{section('critic')}.innerText.split(/\\s+/).filter(Boolean)", ["critic", "40"])
    browser.expect(f"{section('critic')}.querySelectorAll('[data-panel]').length", 0)
    browser.do(f"{section('critic')}.querySelector('.fold').click()")
    browser.wait(f"{section('critic')}.querySelectorAll('[data-panel]').length === 40")
    browser.do("location.reload()")
    browser.wait(f"{section('critic')}?.querySelectorAll('[data-panel]').length === 40")


@pytest.mark.slow
def test_layers_are_one_chart_with_a_line_for_each(browser: Browser) -> None:
    browser.do("document.querySelector('#search').focus()")
    browser.press("layers")
    browser.wait(f"{DRAWN}.length === 1 && {PANELS}[0].data.length === 28")
    assert len({*browser.get(f"{PANELS}[0].data.map((one) => one.line.color)")}) == 28


@pytest.mark.slow
def test_charts_are_found_by_a_regular_expression_that_the_address_keeps(browser: Browser) -> None:
    browser.do("document.querySelector('#search').focus()")
    browser.press("^(actor|env)/a[vw]")
    browser.wait(f"{PANELS}.length === 4")
    browser.press("(")  # not closed yet: looked for as it stands
    browser.wait(f"{PANELS}.length === 0")
    browser.press(Keys.BACKSPACE)
    browser.wait(f"{PANELS}.length === 4 && location.hash.includes('find=')")
    browser.do("location.reload()")
    browser.wait(f"{PANELS}.length === 4")
    browser.expect("document.querySelector('#search').value", "^(actor|env)/a[vw]")


@pytest.mark.slow
def test_what_is_healthy_stands_under_a_chart(browser: Browser) -> None:
    words = METRICS["rl.reward.mean"].healthy
    browser.do("document.querySelector('#search').focus()")
    browser.press("reward/mean")
    browser.wait(f"{PANELS}.length >= 1")
    browser.wait(f"document.querySelector('.healthy')?.textContent === 'Healthy: {words}'")


@pytest.mark.slow
def test_a_joined_chart_is_found_by_each_of_its_keys(browser: Browser) -> None:
    browser.do("document.querySelector('#search').focus()")
    browser.press("layers/17/")
    browser.wait(f"{DRAWN}.length === 1 && {PANELS}[0].data.length === 28")


def drawn_expression(of: random.Random, depth: int = 3) -> str:
    """Return an expression that a browser reads, too."""
    if depth == 0 or of.random() < 0.2:
        return of.choice(["a", "b", "A", ".", r"\w", r"\d", r"\.", "[ab]", "[^a/]", r"\b", "/"])
    kind = of.randrange(4)
    one, other = (drawn_expression(of, depth - 1) for _ in range(2))
    if kind == 0:
        return f"{one}{other}"
    if kind == 1:
        return f"({one}|{other})"
    if kind == 2:
        return f"(?:{one}){of.choice(['*', '+', '?', '*?', '{2}', '{1,}', '{0,2}'])}"
    return of.choice([f"^{one}", f"{one}$", f"({one}){other}"])


@pytest.mark.slow
def test_an_expression_finds_what_that_of_the_browser_finds(browser: Browser) -> None:
    of = random.Random(7)
    texts = ["", *("".join(of.choices("abB1/._", k=of.randrange(1, 7))) for _ in range(40))]
    expressions = [drawn_expression(of) for _ in range(400)]
    wrong, as_text, hits = browser.get(
        f"""(() => {{
          let [wrong, asText, hits] = [[], 0, 0];
          for (const one of {json.dumps(expressions)}) {{
            const [ours, theirs] = [otelRl.matcher(one), new RegExp(one, 'i')];
            if (ours.isText) {{ asText += 1; continue; }}
            for (const text of {json.dumps(texts)}) {{
              if (ours.test(text) !== theirs.test(text)) wrong.push([one, text]);
              hits += theirs.test(text);
            }}
          }}
          return [wrong, asText, hits];
        }})()"""
    )
    assert wrong == []
    assert as_text == 0
    assert 1_000 < hits < 15_000


@pytest.mark.parametrize(
    "text", [r"(\w+)+:", "(a|a)*:", "((a*)*)*:", "(a?){90}:", ".*.*.*.*.*:", "(a|a)" * 60 + ":"]
)
@pytest.mark.slow
def test_an_expression_that_would_take_years_ends(browser: Browser, text: str) -> None:
    of = f"otelRl.matcher({json.dumps(text)})"
    assert browser.get(f"{of}.test('a'.repeat(200))") is False
    assert browser.get(f"{of}.test('a'.repeat(90) + ':')") is not browser.get(f"{of}.isText")


@pytest.mark.slow
def test_what_is_no_expression_is_looked_for_as_text_and_said_so(browser: Browser) -> None:
    told = "document.querySelector('.tools').innerText.includes('looked for as text')"
    assert not browser.get(told)
    browser.do("document.querySelector('#search').focus()")
    browser.press("(?=a)")
    browser.wait(f"{told} && {PANELS}.length === 0")
    assert browser.get("otelRl.matcher('(?=A)').test('x(?=a)y')")


@pytest.mark.slow
def test_a_star_brings_a_chart_to_the_first_row(browser: Browser) -> None:
    first = "[...document.querySelectorAll('#first h3')].map((one) => one.textContent)"
    before = browser.get(first)
    assert before[0] == "Reward mean, trainer"
    browser.do(f"{section('env')}.querySelector('.fold').click()")
    browser.wait(f"{section('env')}.querySelector('.star') !== null")
    title = browser.get(f"{section('env')}.querySelector('h3').textContent")
    browser.do(f"{section('env')}.querySelector('.star').click()")
    browser.wait(f"{first}.length === {len(before) + 1}")
    browser.do("location.reload()")
    browser.wait(f"{first}.at(-1) === '{title}'")
    browser.do("[...document.querySelectorAll('#first .star')].at(-1).click()")
    browser.wait(f"{first}.length === {len(before)}")


@pytest.mark.slow
def test_the_tools_of_a_chart_are_one_stop_of_the_tab_key_and_its_values_another(
    browser: Browser,
) -> None:
    """Arrow keys lead through the tools, as WAI-ARIA has it of a toolbar."""
    browser.wait(f"{PANELS}.slice(0, 3).every((one) => one.seen && one.tabIndex === 0)")
    at = (
        "((one) => [[...document.querySelectorAll('section .card')].indexOf(one.closest('.card')),"
        " one.classList.contains('plot') ? 'plot' : one.textContent])(document.activeElement)"
    )
    browser.do("document.querySelector('#search').focus()")
    reached = []
    for _ in range(5):
        browser.press(Keys.TAB)
        reached.append(browser.get(at))
    assert reached == [[0, "★"], [0, "plot"], [1, "★"], [1, "plot"], [2, "★"]]
    for key, tool in (
        (Keys.ARROW_RIGHT, "⤢"),
        (Keys.ARROW_RIGHT, "svg"),
        (Keys.END, "csv"),
        (Keys.ARROW_RIGHT, "★"),
        (Keys.ARROW_LEFT, "csv"),
        (Keys.HOME, "★"),
        (Keys.ARROW_RIGHT, "⤢"),
        (Keys.ENTER, "⤢"),
    ):
        browser.press(key)
        assert browser.get(at) == [2, tool]
    browser.wait("document.activeElement.closest('.full') !== null")
    browser.press(Keys.ESCAPE)
    browser.wait("document.querySelector('.full') === null")
    browser.press(Keys.TAB)
    assert browser.get(at) == [2, "plot"]
    browser.press(Keys.TAB, held=Keys.SHIFT)  # back to the tool that one came from
    assert browser.get(at) == [2, "⤢"]


@pytest.mark.slow
def test_what_has_the_focus_is_not_below_the_head_of_the_page(browser: Browser) -> None:
    browser.do(f"{section('env')}.querySelector('.fold').click()")  # a long page
    browser.wait(f"{section('env')}.querySelectorAll('.star').length > 12")
    star = "document.querySelector('.star').getBoundingClientRect()"
    browser.do(f"scrollBy(0, {star}.top - 10)")
    browser.wait(f"{star}.top < 12")
    browser.do("document.querySelector('.star').focus()")
    browser.wait(f"{star}.top >= document.querySelector('.bar').getBoundingClientRect().bottom")


@pytest.mark.slow
def test_who_moves_a_chart_by_keys_goes_on_at_its_neighbour(browser: Browser) -> None:
    titles = "[...document.querySelectorAll('#first h3')].map((one) => one.textContent)"
    before = browser.get(titles)
    browser.wait(f"{PANELS}.slice(0, 2).every((one) => one.seen && one.tabIndex === 0)")
    browser.do("document.querySelector('#search').focus()")
    browser.press(Keys.TAB + Keys.ENTER)
    browser.expect(titles, before[1:])
    own = "document.activeElement.closest('.chart')?.querySelector('h3').textContent"
    browser.expect(own, before[1])


@pytest.mark.slow
def test_smoothing_log_and_outliers_are_of_all_charts_and_in_the_address(browser: Browser) -> None:
    browser.do(
        "const one = document.querySelector('#smooth'); one.value = '0.9';"
        "one.dispatchEvent(new Event('input')); document.querySelector('#log').click()"
    )
    browser.wait(f"{PANELS}[0].data.length === 2 && {PANELS}[0].layout.yaxis.type === 'log'")
    browser.do("document.querySelector('#log').click(); document.querySelector('#robust').click()")
    browser.wait(f"{PANELS}[0].layout.yaxis.type !== 'log'")
    browser.wait(f"{PANELS}[0].layout.yaxis.autorange === false")
    browser.wait("location.hash.includes('smooth=0.9') && location.hash.includes('robust')")


def test_zoom_and_cursor_are_shared(browser: Browser) -> None:
    # A chart takes keys once it is drawn, and shows the cursor of another one once it is seen.
    browser.wait(f"{PANELS}.slice(0, 2).every((one) => one.seen && one.tabIndex === 0)")
    browser.do(f"Plotly.relayout({PANELS}[0], {{'xaxis.range[0]': 20, 'xaxis.range[1]': 30}})")
    seen = f"{DRAWN}.slice(0, 2).map((one) => one.layout.xaxis.range)"
    browser.wait(f"{seen}.every(([a, b]) => a === 20 && b === 30)")
    browser.do(f"{PANELS}[0].focus()")
    browser.wait(f"document.activeElement === {PANELS}[0]")
    browser.press(Keys.HOME + Keys.ARROW_RIGHT + Keys.ARROW_RIGHT)
    browser.wait(f"{PANELS}[1].parentElement.querySelector('.cursor').style.display === 'block'")
    browser.do("document.querySelector('#all').click()")
    browser.wait(f"{seen}.every(([a, b]) => a < 20 && b > 30)")


@pytest.mark.slow
def test_a_chart_fills_the_window_until_escape(browser: Browser) -> None:
    width = f"{PANELS}[0].querySelector('svg').getBoundingClientRect().width"
    before = browser.get(width)
    browser.do("document.querySelector('.large').click()")
    browser.wait(f"{width} > 2 * {before}")
    browser.press(Keys.ESCAPE)
    browser.wait(f"Math.abs({width} - {before}) < 2")


@pytest.mark.slow
def test_x_can_be_tokens(browser: Browser) -> None:
    browser.do(
        "const x = document.querySelector('.tools select');"
        "x.value = [...x.options].find((one) => one.text.startsWith('tokens')).value;"
        "x.dispatchEvent(new Event('change'))"
    )
    xs = f"{PANELS}[0].data[0].x"
    browser.wait(f"{xs}.at(-1) < 60 && {xs}.every((x, n) => n === 0 || x >= {xs}[n - 1])")


@pytest.mark.slow
def test_a_chart_waits_for_the_values_of_its_new_x(browser: Browser) -> None:
    title = f"{PANELS}[0].layout.xaxis"
    browser.do(
        "const before = window.fetch; window.held = [];"
        "window.fetch = (url, ...more) => !url.includes('x=time') ? before(url, ...more)"
        "  : new Promise((then) => { held.push(then); }).then(() => before(url, ...more))"
    )
    browser.do(
        "const x = document.querySelector('.tools select'); x.value = 'time';"
        "x.dispatchEvent(new Event('change'))"
    )
    browser.wait("held.length > 0")
    browser.expect(f"{title}.title.text", "step")
    browser.do("for (const go of held) go()")
    browser.wait(f"{title}.type === 'date' && {PANELS}[0].data[0].x[0] instanceof Date")
    browser.do("location.reload()")


@pytest.mark.slow
def test_back_leads_to_the_place_one_came_from(browser: Browser) -> None:
    browser.do("document.querySelector('#search').focus()")
    browser.press("critic")
    browser.wait("location.hash.includes('find=critic')")
    browser.do("document.activeElement.blur(); scrollTo(0, 600)")
    browser.wait("history.state?.scroll > 300")
    browser.press("3")
    browser.wait("document.body.dataset.ready === 'workers' && scrollY === 0")
    assert browser.get("document.title").startswith("Workers")
    browser.do("history.back()")
    browser.wait("document.body.dataset.ready === 'overview'")
    browser.wait("document.querySelector('#search').value === 'critic'")
    # Not 600 where a chart above was drawn meanwhile, and moved what is read.
    browser.wait("scrollY > 300 && scrollY === history.state.scroll")


def test_who_scrolls_after_going_back_stays_there_as_the_page_grows(browser: Browser) -> None:
    """Also who drags the scrollbar, of which some browsers tell nothing but that it was moved."""
    browser.do(
        "const later = setTimeout;"  # nothing is over only because time has passed
        "window.setTimeout = (act, ms, ...of) => later(act, ms === 60000 ? 1e9 : ms, ...of);"
        "document.body.style.minHeight = '3000px'"
    )
    browser.wait("(scrollTo(0, 600), history.state?.scroll === 600)")
    browser.press("3")
    browser.wait("document.body.dataset.ready === 'workers' && scrollY === 0")
    browser.do("history.back()")
    browser.wait("document.body.dataset.ready === 'overview' && scrollY === 600")
    # The place is noted once nothing leads back to the earlier one.
    browser.wait("(scrollTo(0, 200), history.state.scroll === 200)")
    browser.do(
        "window.frames_seen = 0; document.body.style.minHeight = '4000px';"
        "const look = () => { frames_seen += 1; requestAnimationFrame(look); }; look()"
    )
    browser.wait("frames_seen > 3")
    assert browser.get("scrollY") == 200


def test_the_evidence_is_drawn_under_the_verdict(browser: Browser) -> None:
    """The accused worker is bold among its peers, shaded since the step at which it began."""
    chart = "document.querySelector('#verdict [data-evidence=workers]')"
    browser.wait(f"{chart}?.data?.length === 4")
    widths = browser.get(f"{chart}.data.map((one) => [one.name, one.line.width])")
    assert widths[-1] == ["trainer/2", 3]
    assert {width for _, width in widths[:-1]} == {1}
    browser.expect(f"{chart}.layout.shapes[0].x0", 31)
    told = browser.get("document.querySelector('#verdict .next').textContent")
    assert len(told.removeprefix("next ")) > 20
    links = browser.get("[...document.querySelectorAll('#verdict li > a')].map((one) => one.hash)")
    assert links == [
        f"#/run/{RUN}/workers/trainer%2Ftrain",
        f"#/run/{RUN}/log?worker=trainer%2F2",
    ]


@pytest.mark.slow
def test_a_step_before_the_fault_and_one_after_it_are_drawn_on_one_scale(
    viewed: tuple[str, Browser],
) -> None:
    """With the same workers in the same order, the accused one first and in full colour."""
    url, browser = viewed
    browser.open(f"{url.replace(RUN, run_id(*SPANNED))}/overview", "overview")
    plots = "[...document.querySelectorAll('[data-change]')]"
    browser.wait(f"{plots}.filter((one) => one.data).length === 2")
    headings = browser.get("[...document.querySelectorAll('.change h3 a')].map((one) => one.hash)")
    before, after = (int(one.rpartition("/")[2]) for one in headings)
    assert 20 <= before < 31
    assert after == 31
    ranges = browser.get(f"{plots}.map((one) => one.layout.xaxis.range)")
    assert ranges[0] == ranges[1]
    assert 4 < ranges[0][1] < 4.5
    lanes = browser.get(f"{plots}.map((one) => one.layout.yaxis.ticktext)")
    assert lanes[0] == lanes[1]
    assert lanes[0][0] == "trainer/2"
    assert len(lanes[0]) == 3  # it, and the middle and the fastest of its peers
    bars = browser.get(
        f"{plots}.map((one) => one.data.find((of) => of.name === 'train'))"
        ".map((of) => of.y.map((y, place) => [y, of.marker.opacity[place]]))"
    )
    for of_step in bars:
        (_, accused), *others = sorted(of_step)
        assert all(opacity < 0.6 * accused for _, opacity in others)
    browser.as_phone(400)
    try:  # which steps these are is not cut off
        titles = "[...document.querySelectorAll('.change h3')]"
        browser.wait(f"{titles}.every((one) => one.scrollWidth <= one.clientWidth)")
    finally:
        browser.as_phone(0)
    assert browser.complaints() == []


# The diagnosis waits until it is let go, and the bridge has told its verdict.
HOLD_THE_DIAGNOSIS = """
  const get = otelRl.get;
  const free = new Promise((then) => { window.letGo = then; });
  otelRl.get = async (path, query) => {
    if (path.endsWith('/diagnosis')) await free;
    const found = await get(path, query);
    const told = path.endsWith('/overview') && { verdict: 'cause', cause: 'straggler trainer/2' };
    return { ...found, ...told };
  };
"""


@pytest.mark.slow
@pytest.mark.parametrize("scrolled_to", ["the top", "the charts"])
def test_what_one_reads_stays_in_its_place_as_the_evidence_arrives(
    browser: Browser, scrolled_to: str
) -> None:
    """The verdict that the bridge has told is there before, and room for what is shown of it."""
    browser.do(f"{HOLD_THE_DIAGNOSIS} location.hash = '#/run/{run_id(*SPANNED)}/overview'")
    verdict = "document.querySelector('#verdict')"
    browser.wait(f"{verdict}?.textContent.includes('Reading the evidence')")
    assert "straggler trainer/2" in browser.get(f"{verdict}.textContent")
    if scrolled_to == "the charts":
        browser.do("document.querySelector('#search').scrollIntoView()")
        browser.wait("scrollY > 0")
    browser.wait(f"{DRAWN}.length > 0")
    browser.do(
        "window.read = [...document.querySelectorAll('h1, .fact, .tabs, #search, #goodput, h3')]"
        ".filter((one) => one.getBoundingClientRect().top < innerHeight"
        " && one.getBoundingClientRect().bottom > 60);"  # below the bar
        "window.tops = () => read.map((one) => Math.round(one.getBoundingClientRect().top))"
    )
    before = browser.get("tops()")
    assert len(before) > 1
    browser.do("letGo()")
    browser.wait("document.querySelector('#verdict [data-evidence]') !== null")
    browser.wait("document.querySelectorAll('[data-change]').length === 2")
    browser.wait("!document.querySelector('#verdict').classList.contains('reading')")
    assert browser.get("tops()") == pytest.approx(before, abs=2)


def test_words_are_there_before_the_code_of_charts_is_asked_for(browser: Browser) -> None:
    """It is large, and a browser does nothing else while it reads it."""
    timing = "performance.getEntriesByType('resource').find((one) => /{}/.test(one.name))"
    plotly, overview = (timing.format(name) for name in (r"plotly\.js", r"\/overview(\?|$)"))
    assert browser.get(f"{plotly}.startTime > {overview}.responseEnd")


def test_a_page_whose_charts_cannot_be_drawn_says_so_and_tries_again(
    viewed: tuple[str, Browser],
) -> None:
    url, browser = viewed
    browser.block(["*plotly.js*"])
    browser.open(f"{url}/overview", "overview")
    browser.wait("document.querySelector('#no-charts')?.textContent.includes('plotly.js')")
    assert browser.get(f"{DRAWN}.length") == 0
    browser.block([])
    browser.do("document.querySelector('#no-charts button').click()")
    browser.wait(f"{DRAWN}.length > 0 && document.querySelector('#no-charts') === null")
    browser.do("localStorage.clear()")


@pytest.mark.slow
def test_runs_of_a_sweep_are_sorted_by_a_setting_and_compared_in_one_click(
    viewed: tuple[str, Browser], tmp_path: Path
) -> None:
    _, browser = viewed
    for place, rate in enumerate((0.03, 0.1, 0.01, 0.3, 0.003)):
        config = {"optim": {"lr": rate}}
        key = ExperimentKey("sweep", str(place))
        run = LookedAt(key, workers=1, config=config, machines=[f"node{place}", "shared"])
        write_run(tmp_path / "data", run, now_ns=T0 + place * S)
    with served(tmp_path / "data") as url:
        browser.open(url, "runs")
        browser.do("document.querySelector('#all').click()")
        browser.wait("document.querySelector('#compare').data?.length === 5")
        browser.wait("document.querySelector('#columns option[value=\"optim.lr\"]') !== null")
        browser.do(
            "const column = document.querySelector('#column'); column.value = 'optim.lr';"
            "column.dispatchEvent(new Event('change'))"
        )
        rates = "[...document.querySelectorAll('.further')].map((one) => Number(one.textContent))"
        browser.wait(f"{rates}.length === 5 && {rates}.every((one) => one > 0)")
        browser.do("document.querySelector('[data-focus=\"sort optim.lr\"]').click()")
        browser.wait(f"JSON.stringify({rates}) === '[0.3,0.1,0.03,0.01,0.003]'")
        for name in ("machines", "GPUs"):
            browser.do(
                f"const column = document.querySelector('#column'); column.value = '{name}';"
                "column.dispatchEvent(new Event('change'))"
            )
            browser.wait(f"document.querySelector('[data-focus=\"sort {name}\"]') !== null")
        row = "[...document.querySelectorAll('[data-run] .further')].map((one) => one.innerText)"
        browser.wait(f"{row}.length === 15")
        browser.expect(f"{row}.slice(0, 3)", ["0.3", "node3, shared", "2"])
        for name in ("machines", "GPUs"):
            remove = f"document.querySelector('[aria-label^=\"Remove the column {name} \"]')"
            browser.do(f"{remove}.click()")
            browser.wait(f"{remove} === null")
        browser.do("document.querySelector('#grid').click()")
        grid = "[...document.querySelectorAll('[data-grid]')]"
        browser.wait(f"{grid}.length > 1 && {grid}.every((one) => one.data?.length === 5)")
        browser.wait("location.hash.includes('columns=') && location.hash.includes('grid=1')")
        browser.do("location.reload()")
        browser.wait(f"{rates}.length === 5 && {rates}.every((one) => one > 0)")
        assert browser.complaints() == []


@pytest.mark.slow
def test_charts_have_their_difference_to_a_baseline_that_one_click_chooses(
    viewed: tuple[str, Browser], tmp_path: Path
) -> None:
    _, browser = viewed
    base, better = ExperimentKey("sweep", "base"), ExperimentKey("sweep", "better")
    write_run(tmp_path / "data", LookedAt(base, steps=40))
    write_run(tmp_path / "data", LookedAt(better, steps=60, level=0.5))
    of = run_id(*base[:2])
    with served(tmp_path / "data") as url:
        browser.open(url, "runs")
        browser.do(f"document.querySelector('[data-run={json.dumps(of)}] .base').click()")
        browser.open(f"{url}#/run/{run_id(*better[:2])}/overview", "overview")
        chart = f"{PANELS}[0]"
        browser.wait(f"{chart}?.data?.length === 2")
        names = browser.get(f"{chart}.data.map((one) => [one.name, one.line.dash, one.x.length])")
        assert names == [["trainer/reward/mean", "solid", 60], ["sweep/base", "dash", 40]]
        more = "document.querySelector('.more-than').textContent"
        browser.wait(f"{more} === '+0.5'")
        lines = saved(browser, "document.querySelector('.chart [aria-label^=csv]')")
        assert len(lines) == 1 + 60 + 40
        assert [lines[1], lines[-1]] == ["1,trainer/reward/mean,0.5", "40,sweep/base,0.975"]
        browser.do("document.querySelector('#diff').click()")
        browser.wait(f"{chart}.data.length === 1 && {chart}.data[0].x.length === 40")
        assert browser.get(f"{chart}.data[0].y") == pytest.approx([0.5] * 40)
        lines = saved(browser, "document.querySelector('.chart [aria-label^=csv]')")
        assert lines[0] == "step,line,difference to sweep/base"
        assert [float(line.rpartition(",")[2]) for line in lines[1:]] == pytest.approx([0.5] * 40)
        browser.do("localStorage.clear()")
        browser.wait(f"location.hash.includes('base={of}') && location.hash.includes('diff=1')")
        browser.do("location.reload()")  # a link shows the same
        browser.wait(f"{chart}?.data?.[0].x.length === 40")
        browser.do("document.querySelector('#base').click()")
        browser.wait(f"{chart}.data.length === 1 && {chart}.data[0].x.length === 60")
        assert browser.complaints() == []


@pytest.mark.slow
def test_a_baseline_stays_while_its_flag_is_set_and_is_asked_for_once(
    viewed: tuple[str, Browser], tmp_path: Path
) -> None:
    _, browser = viewed
    base, other = ExperimentKey("kept", "base"), ExperimentKey("kept", "other")
    for key in (base, other):
        write_run(tmp_path / "data", LookedAt(key))
    of, run = run_id(*base[:2]), run_id(*other[:2])
    flag = "localStorage.getItem('otel_rl.baseline')"
    with served(tmp_path / "data") as url:
        browser.open(url, "runs")
        browser.do(f"document.querySelector('[data-run={json.dumps(of)}] .base').click()")
        browser.open(f"{url}#/run/{run}/overview", "overview")
        browser.wait(f"{PANELS}[0]?.data?.length === 2 && location.hash.includes('base=')")
        browser.do(
            "window.clicks = 0; addEventListener('hashchange', () => { clicks += 1; });"
            "window.asked = []; const get = otelRl.get;"
            "otelRl.get = (path, query) => { asked.push(path); return get(path, query); };"
            "document.querySelector('nav.tabs a').click()"
        )
        browser.wait("clicks === 1 && location.hash.includes('base=')")
        browser.wait(f"asked.includes('runs/{run}/panel')")  # as with everything that is new
        browser.wait(f"{PANELS}[0].data.length === 2")
        browser.do("asked.length = 0; dispatchEvent(new Event('hashchange'))")
        browser.wait(f"asked.includes('runs/{run}/panel')")
        assert f"runs/{of}/panel" not in browser.get("asked")
        browser.do("localStorage.setItem('otel_rl.baseline', JSON.stringify({ id: 'gone' }))")
        browser.open(f"{url}#/run/{run}/overview?base=gone", "overview")
        browser.wait(f"{flag} === 'null' && !location.hash.includes('base=')")
        assert browser.complaints() == []
    browser.do("localStorage.clear()")


@pytest.mark.slow
def test_a_run_that_went_back_is_compared_at_each_of_its_steps(browser: Browser) -> None:
    line = {"key": "a", "xs": [1, 2, 3, 2, 3, 4], "ys": [1, 9, 9, 2, 3, 4], "trend": [[], []]}
    level = {"key": "a", "xs": [1, 4], "ys": [1, 1], "trend": [[], []]}
    charts = "otelRl.charts.minus({}, {})[0]"
    for one, other, minus in ((line, level, [0, 1, 2, 3]), (level, line, [0, -3])):
        given = json.dumps([one]), json.dumps([other])
        assert browser.get(f"{charts}.ys".format(*given)) == minus
    xs = browser.get(f"otelRl.charts.pointsIn({json.dumps(line)}).map(([x]) => x)")
    assert xs == [1, 2, 3, 4]


def saved(browser: Browser, button: str) -> list[str]:
    """Return the lines of the table that a button saves."""
    browser.do(
        "delete window.saved;"
        "otelRl.saving.download = (name, url) => { window.saved = decodeURIComponent(url); };"
        f"{button}.click()"
    )
    browser.wait("window.saved !== undefined")
    lines: list[str] = browser.get("saved").partition(",")[2].split("\n")[:-1]
    return lines


@pytest.mark.slow
def test_values_by_time_are_saved_with_their_date(
    viewed: tuple[str, Browser], browser: Browser
) -> None:
    browser.open(f"{viewed[0]}/overview?x=time", "overview")
    browser.wait(f"{DRAWN}.length > 0")
    lines = saved(browser, "document.querySelector('.chart [aria-label^=csv]')")
    assert lines[-1].startswith("2023-11-14T22:13:20.000Z,")


def test_compared_runs_are_saved_with_names_that_are_no_formulas(
    viewed: tuple[str, Browser], tmp_path: Path
) -> None:
    _, browser = viewed
    write_run(tmp_path / "data", LookedAt(ExperimentKey('=a>"b', "1"), level=-1))
    with served(tmp_path / "data") as url:
        browser.open(url, "runs")
        browser.wait("document.querySelector('#compare')?.data?.length === 1")
        lines = saved(browser, "document.querySelector('[aria-label^=csv]')")
        assert lines[1] == '1,"\'=a>""b/1",-1'
        assert browser.complaints() == []


def test_of_three_hundred_keys_only_what_is_seen_is_asked_for_and_drawn(
    viewed: tuple[str, Browser], tmp_path: Path
) -> None:
    """Then an overview is there at once, and so is the other theme."""
    _, browser = viewed
    key = ExperimentKey("wide", "500")
    # Keys that differ by a number share a chart.
    keys = [f"part{n}/{a}{b}" for n in "abcdefghij" for a in "klmnop" for b in "vwxyz"]
    write_run(tmp_path / "data", LookedAt(key, steps=500, keys=keys))
    with served(tmp_path / "data") as url:
        browser.open(f"{url}#/run/{run_id(key.experiment, key.trial)}/overview", "overview")
        browser.wait(f"{DRAWN}.length > 0 && document.querySelector('#verdict .badge') !== null")
        asked = (
            "performance.getEntriesByType('resource')"
            ".filter((one) => one.name.includes('/api/') && !one.name.includes('plotly'))"
        )
        assert browser.get(f"{asked}.length") < 20
        assert browser.get(f"{asked}.reduce((sum, one) => sum + one.transferSize, 0)") < 100_000
        browser.do(
            "document.querySelectorAll('.fold[aria-expanded=false]').forEach((one) => one.click())"
        )
        browser.wait(f"{PANELS}.length > 290")
        drawn = 0
        while drawn < 60:  # as a reader goes down
            browser.do("scrollBy(0, innerHeight)")
            browser.wait(f"{DRAWN}.length > {drawn}")
            drawn = browser.get(f"{DRAWN}.length")
        browser.do(
            "window.redrawn = 0; const before = Plotly.react;"
            "Plotly.react = (...all) => { redrawn += 1; return before(...all); }"
        )
        inks = (
            f"{DRAWN}.map((one) => [one.querySelector('.xtick text'),"
            " one.querySelector('.gridlayer path')].map((of) => [getComputedStyle(of).fill,"
            " getComputedStyle(of).stroke].join()).join())"
        )
        browser.do("document.documentElement.dataset.theme = 'light'")
        light = browser.get(inks)
        browser.press("t")
        browser.expect("document.documentElement.dataset.theme", "dark")
        dark = browser.get(inks)
        assert len({*light}) == len({*dark}) == 1
        assert light[0] != dark[0]
        assert browser.get("redrawn") == 0
        assert browser.complaints() == []
        browser.do("localStorage.clear()")


class Pointer:
    """Clicks as a person makes them, counted."""

    def __init__(self, browser: Browser) -> None:
        self.clicks = 0
        self._browser = browser

    def click(self, selector: str) -> None:
        self._browser.wait(f"document.querySelector({json.dumps(selector)}) !== null")
        self._browser.click(selector)
        self.clicks += 1

    def choose(self, selector: str, value: str) -> None:
        """Open a list, and choose from it."""
        option = f"{selector} option[value={json.dumps(value)}]"
        self._browser.wait(f"document.querySelector({json.dumps(option)}) !== null")
        self._browser.do(
            f"const list = document.querySelector({json.dumps(selector)});"
            f"list.value = {json.dumps(value)}; list.dispatchEvent(new Event('change'))"
        )
        self.clicks += 2


def test_twelve_runs_are_compared_by_a_setting_in_six_clicks(
    viewed: tuple[str, Browser], tmp_path: Path
) -> None:
    """The mean of each group with its lowest and highest, in the first charts of all runs."""
    _, browser = viewed
    for place in range(13):
        rate, seed = (0.1, 0.01, 0.001, 0.0001)[place % 4], place // 4
        is_of_sweep = place < 12
        run = LookedAt(
            ExperimentKey("sweep", str(place)),
            workers=1,
            config={"optim": {"lr": rate, "warmup": 10}, "seed": seed},
            tags=["ablation"] if is_of_sweep else ["debug (old)"],
            level=100 * rate + seed,
        )
        write_run(tmp_path / "data", run, now_ns=T0 + place * S)
    with served(tmp_path / "data") as url:
        browser.open(url, "runs")
        pointer = Pointer(browser)
        pointer.click("[data-run]:nth-child(2) .tag")
        browser.wait("document.querySelectorAll('[data-run]:not([hidden])').length === 12")
        pointer.click("#all")
        plot = "document.querySelector('#compare')"
        browser.wait(f"{plot}?.data?.length === 12")
        pointer.choose("#group", "optim.lr")
        means = f"({plot}?.data ?? []).filter((one) => one.opacity === undefined)"
        browser.wait(f"{means}.length === 4")
        names = browser.get(f"{means}.map((one) => one.name)")
        assert names == [f"optim.lr {rate}, 3 runs" for rate in ("0.0001", "0.001", "0.01", "0.1")]
        ends = f"(name) => {plot}.data.find((one) => one.name.endsWith(name)).y.at(-1)"
        of = [
            browser.get(f"({ends})('0.01, 3 runs{end}')") for end in ("", ": lowest", ": highest")
        ]
        assert of == pytest.approx([2.95, 1.95, 3.95])
        pointer.click("#grid")
        grid = "[...document.querySelectorAll('[data-grid]')].filter((one) => one.data)"
        browser.wait(f"{grid}.length > 1 && {grid}.every((one) => one.data.length === 12)")
        assert pointer.clicks <= 6
        differences = "[...document.querySelectorAll('#differences tbody th')]"
        browser.expect(f"{differences}.map((one) => one.innerText)", ["optim.lr", "seed"])
        browser.wait("location.hash.includes('group=optim.lr')")
        browser.do("location.reload()")
        browser.wait(f"{means}.length === 4")
        assert browser.complaints() == []
