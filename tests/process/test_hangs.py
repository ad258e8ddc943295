"""Processes that really hang: the run and the diagnosis name the line."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import BridgeSettings
from tests.process.commands import clean_environment, growing_lines, otel_rl_here
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

STEPS = 10
DEADLINE_S = 120.0

PROGRAM = """
import socket, sys, threading, time
import otel_rl

def hang_in_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def hang_in_sleep():
    time.sleep(3_600)

def hang_in_socket():
    one, other = socket.socketpair()
    one.recv(1)

otel_rl.init(experiment=sys.argv[1], role="trainer", index=0, count=1)
for step in range(int(sys.argv[2])):
    with otel_rl.step(step), otel_rl.phase("train"):
        otel_rl.log({"loss": 1.0}, step=step)
        time.sleep(1.0)
with otel_rl.step(int(sys.argv[2])), otel_rl.phase("train"):
    globals()["hang_in_" + sys.argv[1]]()
"""

LINES = {"lock": "lock.acquire()", "sleep": "time.sleep(3_600)", "socket": "one.recv(1)"}


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, int]]]:
    """A bridge, and a process for each way to hang; yields the directory and the process ids."""
    home = tmp_path_factory.mktemp("hangs")
    given = {
        "data": home / "data",
        "listen": {"http": "127.0.0.1:0", "grpc": "off"},
        "tracker": {"name": "jsonl"},
        "archive": {"enabled": False},
    }
    bridge = Bridge(BridgeSettings.model_validate(given))
    bridge.start()
    (home / "hang.py").write_text(PROGRAM)
    environment = clean_environment(home) | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{bridge.http}",
        "OTEL_RL_STACK_AFTER": "2",
    }
    processes = {
        way: subprocess.Popen(
            [sys.executable, home / "hang.py", way, str(STEPS)], env=environment, cwd=home
        )
        for way in LINES
    }
    try:
        yield home, {way: process.pid for way, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        bridge.stop()


def stack_rows(home: Path) -> list[dict[str, Any]]:
    return [
        row
        for path in (home / "data").rglob("*.jsonl")
        for row in growing_lines(path)
        if "stacks" in json.dumps(row)
    ]


@pytest.mark.parametrize("way", LINES)
def test_the_diagnosis_names_the_line_of_a_process_that_hangs(
    hanging: tuple[Path, dict[str, int]], way: str
) -> None:
    home, pids = hanging
    lines = (home / "hang.py").read_text().splitlines()
    line = max(n for n, text in enumerate(lines, 1) if text.strip() == LINES[way])
    found: dict[str, Any] = {}

    def is_found() -> bool:
        words = ("diagnose", way, "--now", "--json", "--data", home / "data")
        done = otel_rl_here(*words, cwd=home)
        if done.status == 0:  # before the first rows there is no such run
            found.update(json.loads(done.out))
        # A busy machine may have made a step before it long enough for a stack of its own.
        stacks = [cause["stack"] for cause in found.get("causes", ())]
        return any(stack and "hang_in_" in stack[0] for stack in stacks)

    wait_until(is_found, timeout_s=DEADLINE_S)
    (cause,) = (cause for cause in found["causes"] if cause["kind"] == "stall")
    assert (cause["worker"], cause["pid"]) == ("trainer/0", pids[way])
    assert cause["host"]
    assert cause["stack"][0].endswith(f"hang.py:{line} in hang_in_{way}")
    assert f"at {cause['stack'][0]}" in cause["words"]


def test_the_run_has_the_stacks(hanging: tuple[Path, dict[str, int]]) -> None:
    home, _ = hanging

    def told() -> set[str]:
        rows = json.dumps(stack_rows(home))
        return {way for way in LINES if f"hang_in_{way}" in rows}

    wait_until(lambda: told() == {*LINES}, timeout_s=DEADLINE_S)


def test_the_run_is_told_of_the_stall(hanging: tuple[Path, dict[str, int]]) -> None:
    home, _ = hanging

    def told() -> int:
        texts = [path.read_text() for path in (home / "data").rglob("*.jsonl")]
        return sum('"diagnosis/cause":"stall"' in text for text in texts)

    wait_until(lambda: told() >= len(LINES), timeout_s=DEADLINE_S)
    assert told() == len(LINES)  # each once
