"""The page shows what went wrong in real runs: a straggler, and a killed worker."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_rl.run_id import run_id
from tests.process.commands import OTEL_RL, clean_environment, otel_rl
from tests.process.test_tutorials import followed
from tests.support.browser import Browser
from tests.support.screenshots import served, take

ROOT = Path(__file__).parents[2]

# A minute on a quiet machine.
pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1_200)]


def test_the_straggler_of_the_tutorial_is_seen_on_the_page_and_in_the_report(
    tmp_path: Path,
) -> None:
    """The tutorial is followed from top to bottom, as in ``test_tutorials.py``."""
    directory = tmp_path / "find-a-straggler"
    followed("tutorials/find-a-straggler", directory)
    run = run_id("grpo-demo", "slow")
    data, report = directory / ".otel_rl" / run, tmp_path / "report.html"
    done = otel_rl("view", "--data", data, "--html", report, cwd=tmp_path)
    assert done.status == 0, done.err
    with served(data) as url, Browser(tmp_path / "profile") as browser:
        browser.open(f"{url}#/run/{run}/workers", "workers")
        phase = "[...document.querySelector('select').options]"
        browser.do(
            f"const one = {phase}.find((one) => one.value === 'trainer/train');"
            "one.parentElement.value = one.value;"
            "one.parentElement.dispatchEvent(new Event('change'))"
        )
        browser.wait("document.querySelector('#heatmap').data[0].z.length === 2")
        rows = browser.get("document.querySelector('#heatmap').data[0].z")
        late = [sum(one or 0 for one in row[-15:]) for row in rows]
        assert max(late) > 1.5 * min(late), json.dumps(late)
        into = ROOT / "docs/images" if os.environ.get("OTEL_RL_PICTURES") else tmp_path
        take(browser, url, run, report, into)


@contextmanager
def demo(directory: Path, env: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """Run the demo with a generator that is killed."""
    words = ["demo", "--trial", "killed", "--tracker", "jsonl", "--steps", "24"]
    process = subprocess.Popen(
        [*OTEL_RL, *words],
        cwd=directory,
        env=dict(env),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)


# Of the lane of a name: whether it is marked as lost, and the last second with a span.
_LANES = """(() => {
  const plot = document.querySelector('#timeline');
  const { tickvals, ticktext, range } = plot._fullLayout.yaxis;
  const ends = ticktext.map(() => -Infinity);
  for (const trace of plot.data) {
    if (trace.type !== 'bar') continue;
    trace.x.forEach((seconds, n) => {
      const gaps = tickvals.map((at) => Math.abs(at - trace.y[n]));
      const lane = gaps.indexOf(Math.min(...gaps));
      ends[lane] = Math.max(ends[lane], trace.base[n] + seconds);
    });
  }
  const marks = plot.layout.shapes.filter((one) => one.line.width === 3).map((one) => one.x0);
  return [ticktext, ends, marks];
})()
"""


def test_a_run_is_seen_live_and_the_lane_of_a_killed_worker_ends_and_is_marked(
    tmp_path: Path,
) -> None:
    run = run_id("grpo-demo", "killed")
    data = tmp_path / ".otel_rl" / run
    # On a slow machine the demo outlasts the minute for which spans are kept.
    kept = clean_environment(tmp_path, OTEL_RL_BRIDGE__ROWS__SPANS_HORIZON="3600")
    with Browser(tmp_path / "profile") as browser, demo(tmp_path, kept) as process:
        assert process.stderr is not None
        link = next(found for line in process.stderr if (found := re.search(r"http\S+#\S+", line)))
        browser.open(link[0], "overview")
        browser.wait("document.querySelector('[data-panel]')?.data?.length > 0")
        assert process.poll() is None
        _, err = process.communicate()
        assert process.returncode == 0, err
    with served(data) as url, Browser(tmp_path / "later") as browser:
        seen = {}
        # The generator is killed after half of the steps.
        for last in range(10, 17):
            browser.open(f"{url}#/run/{run}/timeline/{last}", "timeline")
            browser.wait("document.querySelector('#timeline')?._fullLayout !== undefined")
            names, ends, marks = browser.get(_LANES)
            seen[last] = names
            killed = [place for place, name in enumerate(names) if name.endswith("†")]
            if not killed:
                continue
            assert [names[place] for place in killed] == ["generator/1 †"]
            (lost,) = killed
            assert marks == [pytest.approx(ends[lost])]
            living = [end for place, end in enumerate(ends) if place != lost]
            if ends[lost] < max(living):
                break
        else:
            raise AssertionError(f"no lane ends: {seen}")
        browser.open(f"{url}#/run/{run}/overview", "overview")
        gone = "generator/1 ended without an exit report"
        browser.wait(f"document.querySelector('#verdict').textContent.includes('{gone}')")
        assert browser.complaints() == []
