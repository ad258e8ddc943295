"""Writes the pictures of README and docs: ``python -m tests.support.screenshots DATA RUN REPORT``.

``DATA`` has a run of ``otel-rl demo --fault straggler``, ``REPORT`` is made of it by
``otel-rl view --html``. ``tests/process/test_view_demo.py`` makes both, and calls ``take``.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from otel_rl.run_id import run_id
from tests.support.browser import Browser

_IMAGES = Path(__file__).parents[2] / "docs" / "images"

_PAGES = {"overview": "light", "timeline": "light", "workers": "dark"}
_CHARTS = {"overview": "[data-panel]", "timeline": "#timeline", "workers": "#heatmap"}


@contextmanager
def served(data: Path, port: int = 0) -> Iterator[str]:
    """Run ``otel-rl view`` and yield its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "otel_rl", "view", data, "--listen", f"127.0.0.1:{port}"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found is not None, line
        yield found[0]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def picture(directory: Path, run: str, name: str, *, height: int = 1010) -> None:
    """Write the picture of a tutorial's run, if ``OTEL_RL_PICTURES`` asks for pictures.

    Args:
        directory: In which its commands were run.
        run: Its experiment and trial, with a slash.
        name: Of the file in ``docs/images``.
        height: Pixels of the window, which must show the charts that are waited for.
    """
    if not os.environ.get("OTEL_RL_PICTURES"):
        return
    with served(directory / ".otel_rl") as url, Browser(directory / "profile") as browser:
        browser.resize(1280, height)
        browser.open(f"{url}#/run/{run_id(*run.split('/'))}/overview", "overview")
        charts = "[...document.querySelectorAll('[data-panel]')].slice(0, 6)"
        browser.wait(f"{charts}.length > 2 && {charts}.every((one) => one.data)")
        browser.screenshot(_IMAGES / f"{name}.png")


def take(browser: Browser, url: str, run: str, report: Path, into: Path) -> None:
    """Write one PNG for each page, and one of a report."""
    into.mkdir(parents=True, exist_ok=True)
    browser.resize(1280, 1010)
    for page, theme in _PAGES.items():
        browser.open(url, "runs")
        browser.do(f"localStorage.setItem('otel_rl.theme', '{theme}')")
        browser.open(f"{url}#/run/{run}/{page}", page)
        _draw(browser, _CHARTS[page])
        if page == "overview":
            browser.wait("document.querySelector('#verdict').textContent.length > 40")
            # A busy machine may have another cause, without these: then the picture is not kept.
            for part in (
                ("[data-evidence=workers]", "[data-change]") if into.name == "images" else ()
            ):
                _draw(browser, part)
        browser.screenshot(into / f"view-{page}.png")
    browser.open(report.resolve().as_uri(), "overview")
    _draw(browser, "[data-evidence]")
    browser.screenshot(into / "report.png")


def _draw(browser: Browser, selector: str) -> None:
    """Look at a chart until it is drawn, which charts are when they are seen, and go back up."""
    chart = f"document.querySelector('{selector}')"
    browser.wait(f"{chart} !== null")
    browser.do(f"{chart}.scrollIntoView()")
    browser.wait(f"{chart}.data?.length > 0")
    browser.do("scrollTo(0, 0)")


if __name__ == "__main__":
    _data, _run, _report = sys.argv[1:]
    with (
        tempfile.TemporaryDirectory() as _home,
        served(Path(_data)) as _url,
        Browser(Path(_home)) as _browser,
    ):
        take(_browser, _url, _run, Path(_report), Path("docs/images"))
