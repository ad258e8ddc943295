"""Workers that die, come back, or never came, as the run shows them. Nothing is instrumented."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.process.commands import clean_environment, jsonl_rows, otel_rl
from tests.process.test_bridge_command import Service, bridge

pytestmark = pytest.mark.process

DEADLINE_S = 90.0

# Lives until its standard input ends, and says goodbye by itself. A worker that has exported once
# has a long lease: it may be one that does so once a minute. So it exports again after a second.
PROGRAM = """
import sys, time
import otel_rl
otel_rl.init(role="generator", index=int(sys.argv[1]), count=int(sys.argv[2]))
otel_rl.log({"queue": 1.0})
assert otel_rl.flush(timeout_s=60)
time.sleep(1.5)
otel_rl.log({"queue": 1.0})
assert otel_rl.flush(timeout_s=60)
print("known", flush=True)
sys.stdin.read()
"""


@contextmanager
def worker(service: Service, home: Path, index: int, count: int) -> Iterator[int]:
    """A generator for the length of the block. Its process id."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(index), str(count)],
        env=clean_environment(
            home,
            OTEL_RL_EXPERIMENT="e",
            OTEL_EXPORTER_OTLP_ENDPOINT=service.url,
            OTEL_METRIC_EXPORT_INTERVAL="200",
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"known\n"
        yield process.pid
    finally:
        process.communicate(timeout=90)


def standing(directory: Path) -> Mapping[str, float]:
    """The latest of what the run says of the generators."""
    if not list(directory.rglob("*.jsonl")):
        return {}
    section = "service/generator/"
    return {
        key.removeprefix(section): value
        for row in jsonl_rows(directory, "e", goes_on=True)
        for key, value in row.values.items()
        if key.startswith(section)
    }


def wait(directory: Path, condition: Callable[[Mapping[str, float]], bool]) -> Mapping[str, float]:
    """What the run says once that is so."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition(found := standing(directory)):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.1)
    return found


@contextmanager
def impatient_bridge(directory: Path) -> Iterator[Service]:
    settings = directory / "bridge.toml"
    settings.write_text("[rows]\nworker_timeout = 6.0\n")
    with bridge(directory, "--tracker", "jsonl", "--config", str(settings)) as service:
        yield service


@pytest.mark.slow
def test_a_killed_worker_is_a_failure_and_its_restart_the_recovery(tmp_path: Path) -> None:
    with impatient_bridge(tmp_path) as service:
        with worker(service, tmp_path, 0, 2), worker(service, tmp_path, 1, 2) as pid:
            wait(tmp_path, lambda found: found.get("alive") == 2)
            os.kill(pid, signal.SIGKILL)
            found = wait(tmp_path, lambda found: found["alive"] == 1)
            assert found == {"expected": 2, "alive": 1, "failures": 1}
            with worker(service, tmp_path, 1, 2):
                found = wait(tmp_path, lambda found: found["alive"] == 2)
                assert (found["expected"], found["failures"]) == (2, 1)
                assert 0 < found["recovery_s"] < DEADLINE_S
        _, err = service.stop()
    # The others have said goodbye.
    assert {"expected": 0, "alive": 0, "failures": 1}.items() <= standing(tmp_path).items()
    assert "generator/1 ended without an exit report; replaced after" in err


def test_a_worker_that_never_came_is_missed_in_the_run_and_in_the_list(tmp_path: Path) -> None:
    with impatient_bridge(tmp_path) as service, worker(service, tmp_path, 0, 2):
        found = wait(tmp_path, lambda found: "alive" in found)
        assert found == {"expected": 2, "alive": 1, "failures": 0}
        data = str(tmp_path / "data")
        listed = otel_rl("runs", "--data", data, cwd=tmp_path).out
    assert "1/2" in listed.split(), listed


@pytest.mark.slow
def test_a_bridge_that_is_killed_counts_a_failure_once(tmp_path: Path) -> None:
    with impatient_bridge(tmp_path) as service:
        with worker(service, tmp_path, 0, 1) as pid:
            wait(tmp_path, lambda found: found.get("alive") == 1)
            os.kill(pid, signal.SIGKILL)
        wait(tmp_path, lambda found: found["failures"] == 1)
        service.process.kill()
        service.process.wait()
    with impatient_bridge(tmp_path) as service, worker(service, tmp_path, 0, 1):
        found = wait(tmp_path, lambda found: found["alive"] == 1)
        assert found["failures"] == 1
        assert "recovery_s" in found
