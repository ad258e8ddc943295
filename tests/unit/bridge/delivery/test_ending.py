"""A run ends as its experiment does, while the bridge lives on."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.manager import RunState
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import Writer
from otel_rl.errors import TrackerUnavailable
from otel_rl.records import Description, ExperimentKey, ExperimentStatus, Row
from otel_rl.run_id import run_id
from tests.support.waiting import wait_until
from tests.unit.bridge.delivery.bench import DEADLINE_S, Bench

A = ExperimentKey("a")

RUNNING = Description()
COMPLETE = Description(status=ExperimentStatus.COMPLETE)
ABORTED = Description(status=ExperimentStatus.ABORTED)
CRASHED = Description(status=ExperimentStatus.CRASHED)


@dataclass
class Tracker(Writer):
    """What a tracker of one run would have seen, over all its openings."""

    rows: int = 0
    endings: list[int] = field(default_factory=list)
    descriptions: list[Description] = field(default_factory=list)

    def __exit__(self, *exc_info: object) -> None:
        pass

    def kill(self) -> None:
        pass

    def _ask(self, method: str, *arguments: object, timeout_s: float) -> object:
        raise NotImplementedError

    def open(self, run: RunInfo, /) -> int:
        self.descriptions.append(run.description)
        return self.rows

    def write(self, rows: Sequence[Row], /) -> None:
        self.rows += len(rows)

    def describe(self, description: Description, /) -> None:
        self.descriptions.append(description)

    def flush(self, *, timeout_s: float) -> int:
        return self.rows

    def location(self) -> str:
        return "here"

    def close(self, *, exit_code: int) -> int:
        self.endings.append(exit_code)
        return self.rows


@dataclass
class ShortTracker(Tracker):
    """One whose file is written anew each time, and lacks rows at the first few closes."""

    short: int = 0

    def open(self, run: RunInfo, /) -> int:
        self.rows = 0
        return 0

    def flush(self, *, timeout_s: float) -> int | None:  # type: ignore[override]  # a file
        return None

    def close(self, *, exit_code: int) -> int | None:  # type: ignore[override]  # a file
        self.endings.append(exit_code)
        if len(self.endings) <= self.short:
            raise TrackerUnavailable(
                f"The file has only 1 of {self.rows} rows.", hint="Free space."
            )
        return None


@pytest.fixture
def tracker() -> Tracker:
    return Tracker()


@pytest.fixture
def bench(tmp_path: Path, tracker: Tracker) -> Iterator[Bench]:
    bench = Bench(tmp_path / "runs", lambda _: tracker)
    bench.settings = replace(bench.settings, end_grace_s=0.2)
    yield bench
    bench.stop(timeout_s=5)


def is_finished(bench: Bench) -> bool:
    return bench.wait_for(A, lambda status: status.state is RunState.FINISHED).pending == 0


@pytest.mark.parametrize(
    ("description", "exit_code"), [(COMPLETE, 0), (CRASHED, 1), (ABORTED, 255)]
)
def test_a_run_is_closed_as_its_experiment_ended(
    bench: Bench, tracker: Tracker, description: Description, exit_code: int
) -> None:
    bench.feed(A, 3)
    bench.wait_until_written(A)
    bench.describe(A, description)
    assert is_finished(bench)
    assert (tracker.rows, tracker.endings) == (3, [exit_code])


def test_a_tracker_is_told_what_is_known_at_the_opening_and_what_changes(
    bench: Bench, tracker: Tracker
) -> None:
    first = Description(config={"lr": 0.1})
    second = Description(config={"lr": 0.1, "tp": 8})
    bench.source.descriptions[A] = first
    bench.feed(A, 1)
    bench.wait_until_written(A)
    bench.describe(A, second)
    bench.describe(A, COMPLETE)
    assert is_finished(bench)
    assert tracker.descriptions[0] == first
    assert tracker.descriptions[-1] == COMPLETE


def test_rows_that_come_after_the_end_open_the_run_once_more(
    bench: Bench, tracker: Tracker
) -> None:
    bench.feed(A, 1)
    bench.describe(A, COMPLETE)
    assert is_finished(bench)
    bench.feed(A, 2)
    bench.wait_until_written(A)
    assert is_finished(bench)
    assert (tracker.rows, tracker.endings) == (3, [0, 0])


def test_an_experiment_that_goes_on_is_left_open_after_its_rows(
    bench: Bench, tracker: Tracker
) -> None:
    bench.feed(A, 1)
    bench.describe(A, CRASHED)
    assert is_finished(bench)
    bench.source.descriptions[A] = RUNNING
    bench.feed(A, 1)
    bench.wait_for(A, lambda status: status.state is RunState.LIVE and status.pending == 0)
    assert tracker.endings == [1]


def test_the_end_of_the_bridge_does_not_change_how_an_experiment_ended(
    bench: Bench, tracker: Tracker
) -> None:
    bench.feed(A, 1)
    bench.describe(A, CRASHED)
    assert is_finished(bench)
    assert bench.stop(exit_code=0)["a"].state is RunState.FINISHED
    assert tracker.endings == [1]


def test_a_command_that_fails_is_no_success_whatever_its_workers_said(
    bench: Bench, tracker: Tracker
) -> None:
    bench.settings = replace(bench.settings, end_grace_s=60)
    bench.feed(A, 1)
    bench.describe(A, COMPLETE)
    bench.wait_until_written(A)
    bench.stop(exit_code=3)
    assert tracker.endings == [3]


@pytest.mark.process
def test_a_file_of_rows_has_what_is_known_of_the_run_beside_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "runs")
    bench.source.descriptions[A] = Description({"lr": 0.1}, "why", ("a",), "sweep", "train")
    bench.feed(A, 1)
    bench.wait_until_written(A)
    bench.stop()
    about = tmp_path / "runs" / f"{run_id(A.experiment, A.trial)}.run.json"
    assert json.loads(about.read_text()) == {
        "config": {"lr": 0.1},
        "notes": "why",
        "tags": ["a"],
        "devices": {},
        "provenance": None,
        "hosts": {},
        "failures": [],
        "attempts": [],
        "project": "",
        "entity": "",
        "mode": "",
        "name": "",
        "own_run": None,
        "group": "sweep",
        "job_type": "train",
        "status": "running",
    }


@pytest.mark.parametrize("tracker", [ShortTracker(short=2)])
def test_a_run_that_came_out_short_is_written_once_more(
    bench: Bench, tracker: ShortTracker
) -> None:
    bench.feed(A, 3)
    bench.describe(A, COMPLETE)
    assert is_finished(bench)
    assert (tracker.rows, tracker.endings) == (3, [0, 0, 0])


@pytest.mark.parametrize("tracker", [ShortTracker(short=10**9)])
def test_a_run_that_stays_short_is_not_finished_and_all_its_rows_are_pending(
    bench: Bench, tracker: ShortTracker
) -> None:
    bench.feed(A, 3)
    bench.wait_until_written(A)
    with ThreadPoolExecutor(1) as stopping:
        stopped = stopping.submit(bench.stop)
        bench.wait_for(A, lambda _: len(tracker.endings) > 1)
        bench.delivery.abandon()  # as when its time is over
        status = stopped.result()["a"]
    assert status.state is RunState.RETRYING
    assert (status.next_row, status.pending) == (0, 3)
    assert status.last_error == "The file has only 1 of 3 rows. Free space."
    assert bench.source.kept_from(A) == 0


def test_runs_that_are_over_are_let_go_and_one_with_new_rows_goes_on(tmp_path: Path) -> None:
    trackers: dict[str, Tracker] = {}

    class Of(Tracker):
        """One of many runs, which goes on where it was."""

        def open(self, run: RunInfo, /) -> int:
            self.seen = trackers.setdefault(run.run_id, Tracker())
            return self.seen.open(run)

        def write(self, rows: Sequence[Row], /) -> None:
            self.seen.write(rows)

        def flush(self, *, timeout_s: float) -> int:
            return self.seen.rows

        def close(self, *, exit_code: int) -> int:
            return self.seen.close(exit_code=exit_code)

    bench = Bench(tmp_path, lambda _: Of())
    bench.settings = replace(bench.settings, end_grace_s=0)
    keys = [ExperimentKey(f"run-{n}") for n in range(100)]
    for key in keys:
        bench.source.descriptions[key] = COMPLETE
        bench.feed(key, 2)
    running = ExperimentKey("running")
    bench.feed(running, 1)
    try:
        wait_until(lambda: len(bench.delivery.over()) == 100, timeout_s=DEADLINE_S)
        bench.delivery.let_go([*keys, running])
        assert [run.key for run in bench.delivery.status()] == [running]
        bench.feed(keys[7], 3)
        wait_until(lambda: bench.delivery.over() == [keys[7]], timeout_s=DEADLINE_S)
    finally:
        bench.stop(timeout_s=5)
    again = trackers[run_id(keys[7].experiment, keys[7].trial)]
    assert (again.rows, again.endings) == (5, [0, 0])
