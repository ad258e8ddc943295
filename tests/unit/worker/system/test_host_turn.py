"""One process of a host reports it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_rl.worker.system.host import HostTurn
from tests.forks import forked

HOLD = """
import sys
from otel_rl.worker.system.host import HostTurn
turn = HostTurn()
print(turn.take(sys.argv[1], sys.argv[2]), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def holder(host: str = "node1", run: str = "run") -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, host, run],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


@pytest.mark.process
def test_a_second_process_has_it_once_the_first_was_killed() -> None:
    turn = HostTurn()
    with holder() as process:
        try:
            assert not turn.take("node1", "run")
        finally:
            process.kill()
            process.wait()
    assert turn.take("node1", "run")


@pytest.mark.process
def test_hosts_and_runs_have_their_own() -> None:
    with holder() as process:
        try:
            assert HostTurn().take("node2", "run")
            assert HostTurn().take("node1", "other")
            assert not HostTurn().take("node1", "run")
        finally:
            process.kill()


@pytest.mark.process
def test_what_is_given_back_another_process_takes() -> None:
    turn = HostTurn()
    assert turn.take("node1", "run")
    turn.give_back()
    with holder() as process:
        process.kill()


@pytest.mark.process
def test_a_forked_child_neither_has_it_nor_ends_it() -> None:
    turn = HostTurn()
    assert turn.take("node1", "run")

    def child() -> None:
        turn.give_back()
        assert not HostTurn().take("node1", "run")

    assert forked(child) == 0
    script = HOLD.replace("sys.stdin.read()", "")
    found = subprocess.run(
        [sys.executable, "-c", script, "node1", "run"], capture_output=True, text=True, check=True
    )
    assert found.stdout == "False\n"


def test_where_the_file_cannot_be_opened_each_process_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / f"otel_rl-{os.getuid()}.lock").mkdir()
    assert HostTurn().take("node1", "run")
