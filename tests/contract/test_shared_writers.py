"""What runs that share a writer process keep of the promises of a process each."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.shared_writers import SharedWriters
from otel_rl.bridge.delivery.tracker_interface import RunInfo
from otel_rl.bridge.delivery.trackers import BACKENDS
from otel_rl.bridge.delivery.writer_client import WriterProcess
from otel_rl.errors import TrackerUnavailable
from otel_rl.records import ExperimentKey, Row
from otel_rl.run_id import run_id
from tests import waiting
from tests.contract.test_trackers import is_gone, read_jsonl, rows
from tests.slow import slow_after
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
    return RunInfo(ExperimentKey(name), id_of(name), directory, tracker=tracker)


def id_of(name: str) -> str:
    return run_id(name, ExperimentKey(name).trial)


def numbers(run: RunInfo) -> list[int]:
    return [row.number for row in READERS[run.tracker](run)]


@contextlib.contextmanager
def opened(
    shared: SharedWriters, names: Sequence[str], directory: Path
) -> Iterator[list[tuple[WriterProcess, RunInfo]]]:
    """Open runs of these names."""
    with contextlib.ExitStack() as stack:
        found = []
        for name in names:
            run = run_of(name, shared.tracker, directory)
            writer = stack.enter_context(WriterProcess(shared.tracker, shared.host()))
            writer.open(run)
            found.append((writer, run))
        yield found


def write_to_end(shared: SharedWriters, name: str, directory: Path, stop: int) -> RunInfo:
    """Write the rows that a run lacks, and close it."""
    run = run_of(name, shared.tracker, directory)
    with WriterProcess(shared.tracker, shared.host()) as writer:
        writer.write(rows(writer.open(run), stop))
        writer.close(exit_code=0)
    return run


def hang(run: RunInfo) -> Path:
    """Let a run of JSON lines hang in its next opening: it waits for a reader."""
    fifo = run.directory / f"{run.run_id}.run.json.new"
    os.mkfifo(fifo)
    return fifo


def test_trackers_with_global_state_never_share_a_process() -> None:
    assert {name for name, kind in BACKENDS.items() if kind.shares_process} == set(READERS)


@BOTH
def test_runs_of_one_process_have_their_rows_once_and_in_order(
    tracker: str, tmp_path: Path
) -> None:
    shared = SharedWriters(tracker, 10)
    with opened(shared, ["a", "b", "c"], tmp_path) as runs:
        assert len({writer.pid for writer, _ in runs}) == 1
        for start in range(0, 30, 10):
            for writer, _ in runs:
                writer.write(rows(start, start + 10))
        for writer, _ in runs:
            writer.close(exit_code=0)
    assert [numbers(run) for _, run in runs] == [list(range(30))] * 3


def test_a_process_takes_no_more_runs_than_it_may(tmp_path: Path) -> None:
    with opened(SharedWriters("jsonl", 2), "abcde", tmp_path) as runs:
        pids = [writer.pid for writer, _ in runs]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 1]


def test_a_process_ends_with_its_last_run(tmp_path: Path) -> None:
    shared = SharedWriters("jsonl", 10)
    with opened(shared, "ab", tmp_path) as ((first, _), (second, _)):
        (pid,) = shared.pids
        first.close(exit_code=0)
        first.kill()
        assert not is_gone(pid)
        second.close(exit_code=0)
    assert is_gone(pid)
    assert not shared.pids


@BOTH
def test_a_killed_process_costs_each_run_nothing_but_a_resend(tracker: str, tmp_path: Path) -> None:
    shared = SharedWriters(tracker, 10)
    with opened(shared, "ab", tmp_path) as runs:
        for writer, _ in runs:
            writer.write(rows(0, 20))
        os.kill(shared.pids[0], signal.SIGKILL)
        for writer, _ in runs:
            with pytest.raises(TrackerUnavailable, match="died"):
                writer.write(rows(20, 21))
    again = [write_to_end(shared, name, tmp_path, 40) for name in "ab"]
    assert [numbers(run) for run in again] == [list(range(40))] * 2


def test_a_killed_run_writes_nothing_more_and_the_others_go_on(tmp_path: Path) -> None:
    shared = SharedWriters("jsonl", 10)
    with opened(shared, "ab", tmp_path) as ((killed, its), (other, others)):
        killed.write(rows(0, 5))
        killed.kill()
        with WriterProcess("jsonl") as successor:  # finds the run free at once
            assert successor.open(its) == 5
        other.write(rows(0, 5))
        other.close(exit_code=0)
    assert numbers(others) == list(range(5))


def test_a_hanging_run_does_not_stop_the_others(tmp_path: Path) -> None:
    shared = SharedWriters("jsonl", 10)
    with opened(shared, "a", tmp_path) as ((other, others),):
        hanging = run_of("b", "jsonl", tmp_path)
        hang(hanging)
        with WriterProcess("jsonl", shared.host()) as writer:
            opening = threading.Thread(target=_open, args=(writer, hanging))
            opening.start()
            for start in range(0, 500, 10):
                other.write(rows(start, start + 10))
            assert opening.is_alive()
            other.close(exit_code=0)
        opening.join()
    assert numbers(others) == list(range(500))


def _open(writer: WriterProcess, run: RunInfo) -> None:
    with contextlib.suppress(TrackerUnavailable):
        writer.open(run)


def test_a_run_that_does_not_leave_costs_the_others_a_resend_once(tmp_path: Path) -> None:
    shared = SharedWriters("jsonl", 10, leave_s=0.2)
    hanging = run_of("b", "jsonl", tmp_path)
    fifo = hang(hanging)
    with opened(shared, "a", tmp_path) as ((other, _),):
        other.write(rows(0, 10))
        _kill_while_it_opens(shared, hanging)
        with pytest.raises(TrackerUnavailable, match="died"):
            other.write(rows(10, 20))
    with opened(shared, "a", tmp_path) as ((other, others),):
        _kill_while_it_opens(shared, hanging)  # in a process of its own now
        other.write(rows(10, 20))
        other.close(exit_code=0)
    assert numbers(others) == list(range(20))
    fifo.unlink()
    assert numbers(write_to_end(shared, "b", tmp_path, 7)) == list(range(7))


def _kill_while_it_opens(shared: SharedWriters, run: RunInfo) -> None:
    with WriterProcess(shared.tracker, shared.host()) as writer:
        opening = threading.Thread(target=_open, args=(writer, run))
        opening.start()
        wait_until(partial(_is_locked, run), "the run is being opened")
    opening.join()


def _is_locked(run: RunInfo) -> bool:
    return Bench(run.directory).writer_pid(run.key) is not None


def test_a_run_whose_request_ended_the_process_gets_one_of_its_own_until_it_ends_well(
    tmp_path: Path,
) -> None:
    shared = SharedWriters("jsonl", 10)
    hanging = run_of("b", "jsonl", tmp_path)
    fifo = hang(hanging)
    with opened(shared, "a", tmp_path) as ((other, _),):
        with WriterProcess("jsonl", shared.host()) as writer:
            opening = threading.Thread(target=_open, args=(writer, hanging))
            opening.start()
            wait_until(partial(_is_locked, hanging), "the run is being opened")
            pid = shared.pids[0]
            os.kill(pid, signal.SIGKILL)
            opening.join()
            # Until its threads are gone, other sockets are open: what is sent then was in it.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(TrackerUnavailable):
            other.write(rows(0, 1))
    fifo.unlink()
    assert [shared.is_suspect(id_of(name)) for name in "ab"] == [False, True]
    with opened(shared, "ab", tmp_path) as ((other, _), (writer, _)):
        assert other.pid in shared.pids
        assert writer.pid not in shared.pids
        writer.close(exit_code=0)
    assert not shared.is_suspect(hanging.run_id)


def test_few_runs_have_a_process_of_their_own_however_many_are_suspected() -> None:
    shared = SharedWriters("jsonl", 10)
    for n in range(17):
        shared.suspect(f"run-{n}")
    assert [n for n in range(17) if not shared.is_suspect(f"run-{n}")] == [0]


PARENT = """
import os, sys
from pathlib import Path
from otel_rl.bridge.delivery.shared_writers import SharedWriters
from otel_rl.bridge.delivery.tracker_interface import RunInfo
from otel_rl.bridge.delivery.writer_client import WriterProcess
from otel_rl.records import ExperimentKey

shared = SharedWriters("jsonl", 10)
writers = [WriterProcess("jsonl", shared.host()) for _ in range(2)]
for number, writer in enumerate(writers):
    writer.open(RunInfo(ExperimentKey("orphan"), f"run-{number}", Path(sys.argv[1])))
print(*shared.pids, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_process_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    parent = subprocess.run(
        [sys.executable, "-c", PARENT, str(tmp_path)], capture_output=True, check=False, timeout=90
    )
    assert parent.returncode == -signal.SIGKILL, parent.stderr.decode()
    wait_until(lambda: is_gone(int(parent.stdout)), "the orphaned process ends")


def _has_writer(bench: Bench, key: ExperimentKey) -> bool:
    return bench.writer_pid(key) is not None


@pytest.mark.parametrize("seed", slow_after(1, range(5)))
def test_under_kills_every_row_of_every_run_is_there_once(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)  # draws kills
    bench = Bench(tmp_path)
    bench.settings = replace(bench.settings, runs_per_writer=8, max_writers=64, batch_rows=20)
    keys = [ExperimentKey(f"run-{n}") for n in range(20)]
    killed = 0
    for _ in range(12):
        for key in keys:
            bench.feed(key, dice.randint(1, 60))
        victims = dice.sample(keys, 2)
        wait_until(partial(_has_writer, bench, victims[0]), "a process writes the run")
        for key in victims:
            pid = bench.writer_pid(key)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
    for key in keys:
        bench.wait_until_written(key)
    bench.stop()
    assert killed
    assert {key: bench.lines(key) for key in keys} == {
        key: list(range(bench.source.next_row(key))) for key in keys
    }


def test_hundreds_of_runs_are_a_few_processes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.settings = replace(bench.settings, runs_per_writer=50, max_writers=200)
    keys = [ExperimentKey(f"run-{n}") for n in range(150)]
    try:
        for key in keys:
            bench.feed(key, 3)
        for key in keys:
            bench.wait_until_written(key)
        assert len({bench.writer_pid(key) for key in keys[::10]}) == 3
    finally:
        bench.stop()
    assert all(bench.lines(key) == [0, 1, 2] for key in keys)
