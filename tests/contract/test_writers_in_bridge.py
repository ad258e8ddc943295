"""What the trackers that run in the bridge itself keep of the promises of a process each."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tensorboard import run_directory
from otel_rl.bridge.delivery.tracker import BACKENDS, RunInfo, backend
from otel_rl.bridge.delivery.writer import WriterInBridge
from otel_rl.errors import TrackerUnavailable
from otel_rl.records import ExperimentKey, Row
from otel_rl.run_id import run_id
from tests.contract.test_trackers import read_jsonl, rows
from tests.support import waiting
from tests.support.slow import slow_after
from tests.trackers.places import read_tensorboard
from tests.unit.bridge.delivery.bench import Bench

pytestmark = pytest.mark.process

wait_until = partial(waiting.wait_until, timeout_s=90.0)

READERS: dict[str, Callable[[RunInfo], list[Row]]] = {
    "jsonl": read_jsonl,
    "tensorboard": read_tensorboard,
}
BOTH = pytest.mark.parametrize("tracker", slow_after(1, READERS))


def run_of(name: str, tracker: str, directory: Path) -> RunInfo:
    key = ExperimentKey(name)
    return RunInfo(key, run_id(name, key.trial), directory, tracker=tracker)


def numbers(run: RunInfo) -> list[int]:
    return [row.number for row in READERS[run.tracker](run)]


def write_to_end(name: str, tracker: str, directory: Path, stop: int) -> RunInfo:
    """Write the rows that a run lacks, and close it."""
    run = run_of(name, tracker, directory)
    with WriterInBridge(tracker) as writer:
        writer.write(rows(writer.open(run), stop))
        writer.close(exit_code=0)
    return run


@contextlib.contextmanager
def hanging_disk(run: RunInfo) -> Iterator[None]:
    """Let a run hang in its next opening: a file of it is a pipe without another end."""
    path = run.directory / f"{run.run_id}.run.json.new"
    if run.tracker == "tensorboard":
        path = run_directory(run) / "otel_rl.journal"
        path.parent.mkdir(parents=True)
    os.mkfifo(path)
    try:
        yield
    finally:
        end = os.open(path, os.O_RDWR)
        path.unlink(missing_ok=True)  # the run may go on at once, and rename it
        os.close(end)


def delivery_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("otel-rl-delivery")]


def test_trackers_with_global_state_run_in_a_process_of_their_own() -> None:
    assert {name for name in BACKENDS if backend(name).in_bridge} == set(READERS)


@BOTH
def test_a_disk_that_hangs_holds_up_neither_other_runs_nor_a_stop(
    tracker: str, tmp_path: Path
) -> None:
    bench = Bench(tmp_path, writer=None)
    bench.settings = replace(bench.settings, tracker=tracker)
    hanging, other = run_of("hangs", tracker, tmp_path), run_of("other", tracker, tmp_path)
    with hanging_disk(hanging):
        bench.feed(hanging.key, 7)
        wait_until(lambda: bench.writer_pid(hanging.key), "the run is being opened")
        bench.feed(other.key, 500)
        bench.wait_for(other.key, lambda status: status.safe_row == 500)
        statuses = bench.stop(timeout_s=0.1)
        assert [(name, status.pending) for name, status in sorted(statuses.items())] == [
            ("hangs", 7),
            ("other", 0),
        ]
        with WriterInBridge(tracker) as successor, pytest.raises(TrackerUnavailable) as caught:
            successor.open(hanging)
        assert "Another writer holds the run" in str(caught.value)
    wait_until(lambda: delivery_threads() == [], "the thread ends with the disk's answer")
    assert numbers(other) == list(range(500))
    assert numbers(write_to_end("hangs", tracker, tmp_path, 7)) == list(range(7))


@BOTH
def test_a_killed_run_writes_nothing_more_and_is_free_when_it_is_left(
    tracker: str, tmp_path: Path
) -> None:
    run = run_of("killed", tracker, tmp_path)
    with WriterInBridge(tracker) as writer:
        writer.open(run)
        writer.write(rows(0, 5))
        writer.kill()
        with pytest.raises(TrackerUnavailable):
            writer.write(rows(5, 6))
    assert numbers(write_to_end("killed", tracker, tmp_path, 9)) == list(range(9))


@BOTH
def test_a_run_that_is_killed_before_it_is_opened_is_not_opened(
    tracker: str, tmp_path: Path
) -> None:
    run = run_of("killed", tracker, tmp_path)
    with WriterInBridge(tracker) as writer:
        writer.kill()
        with pytest.raises(TrackerUnavailable):
            writer.open(run)
        assert numbers(write_to_end("killed", tracker, tmp_path, 3)) == list(range(3))


@BOTH
def test_a_bridge_that_hangs_in_its_journal_lets_go_of_a_run_that_another_one_has_now(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, writer=None)
    bench.settings = replace(bench.settings, tracker=tracker)
    run = run_of("moves", tracker, tmp_path)
    bench.feed(run.key, 5)
    bench.wait_until_written(run.key)

    hangs, answers = threading.Event(), threading.Event()
    read = bench.source.rows

    def hang(key: ExperimentKey, /, *, start: int, limit: int) -> Sequence[Row]:
        hangs.set()
        answers.wait()
        return read(key, start=start, limit=limit)

    monkeypatch.setattr(bench.source, "rows", hang)
    bench.feed(run.key, 5)
    try:
        assert hangs.wait(90.0)
        bench.delivery.drop([run.key])
        wait_until(lambda: bench.writer_pid(run.key) is None, "the run is free")
        write_to_end("moves", tracker, tmp_path, 7)
    finally:
        answers.set()
    wait_until(lambda: delivery_threads() == [], "the thread ends with the journal's answer")
    assert numbers(run) == list(range(7))


BRIDGE = """
import sys
from pathlib import Path
from otel_rl.bridge.delivery.writer import WriterInBridge
from tests.contract.test_trackers import rows
from tests.contract.test_writers_in_bridge import run_of

tracker, directory = sys.argv[1:]
writers = [WriterInBridge(tracker) for _ in range(5)]
position = [
    writer.open(run_of(f"run-{n}", tracker, Path(directory))) for n, writer in enumerate(writers)
]
print("ready", flush=True)
while True:
    for n, writer in enumerate(writers):
        writer.write(rows(position[n], position[n] + 7))
        position[n] += 7
"""


@pytest.mark.slow
@BOTH
def test_a_killed_bridge_costs_each_run_nothing_but_a_resend(tracker: str, tmp_path: Path) -> None:
    names = [f"run-{n}" for n in range(5)]
    for _ in range(3):
        bridge = subprocess.Popen(
            [sys.executable, "-c", BRIDGE, tracker, str(tmp_path)], stdout=subprocess.PIPE
        )
        with bridge:
            assert bridge.stdout is not None
            assert bridge.stdout.readline() == b"ready\n"
            last = run_of(names[-1], tracker, tmp_path)
            before = _size(last)
            wait_until(lambda run=last, size=before: _size(run) > size, "rows are written")  # type: ignore[misc]
            os.kill(bridge.pid, signal.SIGKILL)
    for name in names:
        there = len(numbers(run_of(name, tracker, tmp_path)))
        assert there
        run = write_to_end(name, tracker, tmp_path, there + 20)
        assert numbers(run) == list(range(there + 20))


def _size(run: RunInfo) -> int:
    paths = [*run_directory(run).glob("events.*"), run.directory / f"{run.run_id}.jsonl"]
    return sum(path.stat().st_size for path in paths if path.exists())


def test_hundreds_of_runs_take_no_process(tmp_path: Path) -> None:
    bench = Bench(tmp_path, writer=None)
    bench.settings = replace(bench.settings, max_writers=200)
    keys = [ExperimentKey(f"run-{n}") for n in range(150)]
    try:
        for key in keys:
            bench.feed(key, 3)
        for key in keys:
            bench.wait_until_written(key)
        assert {bench.writer_pid(key) for key in keys[::30]} == {os.getpid()}
    finally:
        bench.stop()
    assert all(bench.lines(key) == [0, 1, 2] for key in keys)
