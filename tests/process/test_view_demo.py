"""The page shows what went wrong in a real run: a demo with a straggler, live and as a report."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from otel_rl.run_id import run_id
from tests.browser import Browser
from tests.process.commands import OTEL_RL, clean_environment, otel_rl
from tests.screenshots import served, take

ROOT = Path(__file__).parents[2]

# A minute on a quiet machine.
pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1_200)]


def test_a_straggler_is_seen_live_and_in_the_report(tmp_path: Path) -> None:
    run = run_id("grpo-demo", "seen")
    data = tmp_path / ".otel_rl" / run
    demo = ["demo", "--trial", "seen", "--tracker", "jsonl", "--fault", "straggler"]
    process = subprocess.Popen(
        [*OTEL_RL, *demo, "--steps", "60"],
        cwd=tmp_path,
        env=clean_environment(tmp_path),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stderr is not None
        link = next(found for line in process.stderr if (found := re.search(r"http\S+#\S+", line)))
        with Browser(tmp_path / "profile") as browser:
            browser.open(link[0], "overview")  # while it runs
            browser.wait("document.querySelector('[data-panel]')?.data?.length > 0")
            process.communicate()
            assert process.returncode == 0
            report = tmp_path / "report.html"
            done = otel_rl("report", "--data", data, "-o", report, cwd=tmp_path)
            assert done.status == 0, done.err
            with served(data) as url:
                heatmap = f"{url}#/run/{run}/workers"
                browser.open(heatmap, "workers")
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
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)
