"""Rollouts of a real run, and the page of them in a real browser."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_rl.records import ExperimentKey, Value
from otel_rl.run_id import run_id
from tests.process.commands import OTEL_RL, clean_environment
from tests.support.browser import Browser
from tests.support.rollouts import write_rollouts
from tests.support.screenshots import served
from tests.support.view_runs import HOSTILE, T0, LookedAt, write_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

# Two generators, each with rollouts that end and one that hangs in its environment.
PROGRAM = """
import os, sys, threading, time
import otel_rl
from otel_rl import lineage

if len(sys.argv) == 1:
    import subprocess
    children = [subprocess.Popen([sys.executable, __file__, str(n)]) for n in range(2)]
    print("generators", *[child.pid for child in children], flush=True)
    for child in children:
        child.wait()
    sys.exit()

number = int(sys.argv[1])
otel_rl.init(experiment="hanging", role="generator", index=number, count=2)

def hang():
    with lineage.rollout(id=f"hanging {number}", environment="sandbox"):
        with otel_rl.phase("env_step"):
            time.sleep(1e6)

threading.Thread(target=hang, daemon=True).start()
turn = 0
while True:
    turn += 1
    with lineage.rollout(id=f"{number}.{turn}") as rollout:
        for part in range(8):
            rollout.stage(f"turn {part}")
            time.sleep(0.25)
        rollout.end(reward=1.0, fields={"completion": "done"})
"""


@dataclass
class Going:
    """A run that goes on, its page, and the processes of its generators."""

    browser: Browser
    generators: list[int]

    def flight(self) -> list[str]:
        """Return the first cells of the rollouts in flight, from top to bottom."""
        cells = "[...document.querySelectorAll('#flight tbody tr')].map((row) => row.innerText)"
        found: list[str] = self.browser.get(cells)
        return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def going(tmp_path: Path, browser: Browser) -> Iterator[Going]:
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(PROGRAM)
    command = [*OTEL_RL, "run", "--experiment", "hanging", "--tracker", "jsonl", "--"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, sys.executable, program],
            cwd=tmp_path,
            # A generator of a busy machine is silent for a while and not lost for that.
            env=clean_environment(tmp_path, OTEL_RL_BRIDGE__ROWS__WORKER_TIMEOUT="30"),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "generators" in log.read_text(), timeout_s=120)
        (pids,) = re.findall(r"generators (\d+ \d+)", log.read_text())
        wait_until(lambda: "page of run" in log.read_text(), timeout_s=120)
        with served(tmp_path / ".otel_rl") as url:
            run = run_id("hanging", "default")
            browser.open(f"{url}#/run/{run}/rollouts", "rollouts")
            yield Going(browser, [*map(int, pids.split())])
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)


@pytest.mark.slow
def test_rollouts_that_hang_come_to_the_top_and_end_with_their_killed_worker(going: Going) -> None:
    browser = going.browser
    browser.wait("document.querySelectorAll('#flight tbody tr').length >= 4")

    def are_hanging_on_top() -> bool:
        first, *_ = rows = going.flight()[:2] or [""]
        return (
            len(rows) == 2
            and all(one.startswith("hanging") for one in rows)
            and "longest without progress" in first
            and "env_step" in first
        )

    def is_one_alone() -> bool:
        rows = going.flight()
        return not any(re.match(r"(hanging 0|0\.)", row) for row in rows) and any(
            row.startswith("hanging 1") for row in rows
        )

    wait_until(are_hanging_on_top, timeout_s=240)
    os.kill(going.generators[0], signal.SIGKILL)
    wait_until(is_one_alone, timeout_s=240)
    browser.wait("document.querySelector('#outcome option[value=cancelled]')")
    browser.do(
        "const outcome = document.querySelector('#outcome'); outcome.value = 'cancelled';"
        "outcome.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    samples = "document.querySelector('#samples').innerText"
    browser.wait(f"{samples}.includes('its worker generator/0 ended in env_step')")
    assert browser.complaints() == []


# Finished rollouts

MANY = ExperimentKey("many")


STATUS = "document.querySelector('.controls [role=status]')?.textContent"


@contextmanager
def looking(browser: Browser, data: Path, some: Sequence[Mapping[str, Value]]) -> Iterator[Browser]:
    write_run(data, LookedAt(MANY, steps=2))
    write_rollouts(data, MANY, some, T0)
    with served(data) as url:
        browser.open(f"{url}#/run/{run_id(MANY.experiment, MANY.trial)}/rollouts", "rollouts")
        yield browser


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Browser]:
    some: list[Mapping[str, Value]] = [
        {
            "id": f"r{n}",
            "step": n // 100,
            "prompt": f"prompt {n % 10}",
            "reward": n % 4 / 4,
            "completion": f"the answer to it is {n}",
            "environment": ("math", HOSTILE)[n % 2],
            "outcome": ("trained", "timeout")[n % 2],
            "advantage": n % 4 - 1.5,
        }
        for n in range(100_000)
    ]
    with looking(browser, tmp_path_factory.mktemp("data"), some) as page:
        page.wait(f"{STATUS} === '100000 samples, page 1 of 1000'")
        yield page


ROWS = "[...document.querySelectorAll('#samples tbody tr')].map((row) => row.innerText)"


def choose(browser: Browser, name: str, value: str) -> None:
    browser.do(
        f"const one = document.querySelector('#{name}'); one.value = '{value}';"
        "one.dispatchEvent(new Event(one.matches('select') ? 'change' : 'input', {bubbles: true}))"
    )


@pytest.mark.slow
def test_hostile_texts_of_a_conversation_are_text(tmp_path: Path, browser: Browser) -> None:
    short = HOSTILE[:200]
    hostile = [{"role": "user", "content": short}, {"role": short, "content": [short]}]
    call = {"function": {"name": short, "arguments": short}}
    told = json.dumps([*hostile, {"role": "assistant", "content": None, "tool_calls": [call]}])
    some: list[Mapping[str, Value]] = [
        {"id": HOSTILE, "prompt": told, "messages": told, "reward": 9, "trace_id": HOSTILE}
    ]
    with looking(browser, tmp_path, some) as page:
        _expect_text(page)


def _expect_text(many: Browser) -> None:
    many.do("document.querySelector('#samples .open').click()")
    many.wait("document.querySelectorAll('#opened .message').length >= 6")
    image = "<img src=x onerror=hacked=1>"
    many.wait(f"document.querySelector('#opened').innerText.includes('{image}')")
    assert many.get("window.hacked ?? null") is None
    assert many.get("document.querySelectorAll('#opened img, #opened script').length") == 0
    many.do("document.querySelector('#opened .close').click()")
    assert many.complaints() == []


@pytest.mark.slow
def test_rollouts_are_filtered_paged_and_compared(many: Browser) -> None:
    choose(many, "outcome", "timeout")
    choose(many, "lowest", "0.7")
    many.wait(f"{STATUS} === '25000 of 100000 samples, page 1 of 250'")
    many.wait(f"{ROWS}[0].includes('r99999')")
    many.do("document.querySelector('#next').click()")
    many.wait(f"{STATUS}.endsWith('page 2 of 250')")
    many.wait(f"{ROWS}[0].includes('r99599')")
    choose(many, "search", "answer to it is 777")
    many.wait(f"{STATUS} === '28 of 100000 samples'")
    many.do("document.querySelector('#samples .open').click()")
    many.wait("document.querySelector('#samples .compare')")
    many.do("[...document.querySelectorAll('#samples .compare')][1].click()")
    marks = "[...document.querySelectorAll('#opened mark')].map((one) => one.textContent.trim())"
    many.wait(f"{marks}.filter((one) => one.startsWith('777')).length === 2")
    many.do("document.querySelector('#opened .close').click()")
    for name in ("outcome", "lowest", "search"):
        choose(many, name, "")
    assert many.complaints() == []


@pytest.mark.slow
def test_one_prompt_is_followed_over_steps(many: Browser) -> None:
    choose(many, "environment", "math")
    many.do(
        "[...document.querySelectorAll('button')].find((of) => of.textContent === 'by prompt')"
        ".click()"
    )
    many.wait(f"{STATUS} === '50000 of 100000 samples, page 1 of 50'")
    many.wait("document.querySelector('#groups .over')")
    many.do("document.querySelector('#groups .over').click()")
    steps = (
        "[...document.querySelectorAll('#groups tbody tr')].map((row) => row.cells[1].innerText)"
    )
    many.wait(f"{steps}.length === 100 && new Set({steps}).size === 100")
    many.do("document.querySelector('#groups [aria-expanded]').click()")
    many.wait("document.querySelectorAll('#groups .side .text').length === 10")
    many.wait("document.querySelector('#groups .side').innerText.includes('advantage')")
    assert many.complaints() == []
