"""The delivery loop with real writer processes: nothing lost, nothing doubled, nobody delayed."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl.bridge.counters import Counter, TrackerFailure
from otel_rl.bridge.delivery.manager import DeliveryManager, RunState
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.runs import DAMAGED_ROW, Commit, RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.errors import ConfigError, JournalError, JournalFull, JournalGone, JournalUnavailable
from otel_rl.records import ExperimentKey, Row
from otel_rl.run_id import run_id
from tests.support.slow import slow_after
from tests.support.wandb_offline import read_offline_run, run_directories
from tests.support.wandb_server import WandbServer
from tests.unit.bridge.delivery.bench import DEADLINE_S, Bench

pytestmark = pytest.mark.process

A, B, C = ExperimentKey("a"), ExperimentKey("b"), ExperimentKey("c")


@pytest.fixture(autouse=True)
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "runs")
    yield bench
    bench.stop(timeout_s=0.5)


@pytest.fixture(scope="module")
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server


@pytest.fixture
def online(bench: Bench, server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for variable, value in server.environment().items():
        monkeypatch.setenv(variable, value)
    attributes = {"transmit_interval_s": "1", "stall_timeout_s": "10", "finish_timeout_s": "60"}
    bench.settings = replace(bench.settings, tracker="wandb", attributes=attributes)
    yield bench
    server.heal()
    bench.stop(timeout_s=5)
    server.reset()


def numbers(server: WandbServer, key: ExperimentKey) -> list[float]:
    return [row["_step"] for row in server.history(run_id(key.experiment, key.trial))]


def test_rows_reach_the_tracker_as_they_come(bench: Bench) -> None:
    bench.feed(A, 3)
    bench.wait_until_written(A)
    bench.feed(A, 4)
    bench.wait_until_written(A)
    assert bench.lines(A) == list(range(7))


def test_stop_writes_the_last_row_and_closes_every_run(bench: Bench) -> None:
    bench.feed(A, 1200)
    bench.feed(B, 5)
    statuses = bench.stop()
    assert [(s.state, s.pending) for s in statuses.values()] == [(RunState.FINISHED, 0)] * 2
    assert (bench.lines(A), bench.lines(B)) == (list(range(1200)), list(range(5)))


def test_nothing_runs_after_stop(bench: Bench) -> None:
    bench.feed(A, 5)
    bench.stop()
    deadline = time.monotonic() + DEADLINE_S
    while bench.writer_pid(A) is not None:
        assert time.monotonic() < deadline, "the writer outlives the stop"
        time.sleep(0.02)
    assert not [t for t in threading.enumerate() if t.name.startswith("otel-rl-delivery")]


def test_confirmed_rows_are_reported_to_the_source(bench: Bench) -> None:
    bench.feed(A, 5)
    bench.wait_for(A, lambda status: status.safe_row == 5)
    assert bench.source.confirmations == {A: 5}


def test_confirmed_rows_are_pruned_when_they_have_been_kept_for_long_enough(bench: Bench) -> None:
    bench.settings = replace(bench.settings, keep_confirmed_s=3_600)
    for confirmed in (5, 10):
        bench.feed(A, 5)
        bench.wait_for(A, lambda status, n=confirmed: status.safe_row == n)  # type: ignore[misc]
    assert bench.source.kept_from(A) == 0
    bench.ahead_s = 3_600
    bench.wait_for(A, lambda _: bench.source.kept_from(A) == 10)  # though nothing more comes


def test_confirmed_rows_are_kept_as_long_as_was_asked_for(bench: Bench) -> None:
    bench.feed(A, 5)
    bench.stop()
    assert (bench.source.confirmations, bench.source.kept_from(A)) == ({A: 5}, 0)


def test_confirmed_rows_are_pruned_at_once_if_there_is_no_room_for_more(bench: Bench) -> None:
    bench.feed(A, 5)
    bench.wait_for(A, lambda status: status.safe_row == 5)
    assert bench.source.kept_from(A) == 0
    bench.source.room = False
    bench.wait_for(A, lambda _: bench.source.kept_from(A) == 5)  # though nothing more comes


def test_the_place_of_a_run_is_told_once_even_if_its_writer_dies(bench: Bench) -> None:
    bench.feed(A, 5)
    status = bench.wait_until_written(A)
    os.kill(bench.writer_pid(A) or 0, signal.SIGKILL)
    bench.feed(A, 5)
    bench.wait_for(A, lambda status: status.next_row == 10)
    assert bench.opened == [(A, status.location)]
    assert status.location.endswith(".jsonl")


def test_delivery_goes_on_after_pruning(bench: Bench) -> None:
    bench.settings = replace(bench.settings, keep_confirmed_s=0)
    bench.feed(A, 5)
    bench.wait_for(A, lambda _: bench.source.kept_from(A) == 5)
    os.kill(bench.writer_pid(A) or 0, signal.SIGKILL)
    bench.feed(A, 5)
    bench.wait_for(A, lambda _: bench.source.kept_from(A) == 10)
    assert bench.lines(A) == list(range(10))


def test_pruned_rows_are_not_pending_before_the_run_is_opened(bench: Bench) -> None:
    bench.settings = replace(bench.settings, max_writers=1, min_hold_s=3600)
    bench.feed(B, 1)  # has the only writer
    bench.wait_until_written(B)
    bench.source.add(A, 9)
    bench.source.lose(A, 7)
    bench.delivery.notify(A)
    status = bench.wait_for(A, lambda status: status.next_row > 0)
    assert (status.next_row, status.pending, status.state) == (7, 2, RunState.WAITING)


def test_rows_are_counted_as_written_and_confirmed(bench: Bench) -> None:
    bench.feed(A, 5)
    bench.stop()
    assert bench.counts == {Counter.ROWS_WRITTEN: 5, Counter.ROWS_CONFIRMED: 5}


def test_a_run_without_rows_is_never_opened(bench: Bench) -> None:
    bench.delivery.notify(A)
    statuses = bench.stop()
    assert (statuses["a"].state, statuses["a"].location) == (RunState.FINISHED, "")
    assert bench.lines(A) == []


def test_a_new_delivery_goes_on_where_the_tracker_stands(bench: Bench) -> None:
    bench.feed(A, 5)
    bench.stop()
    successor = Bench(bench.settings.directory)
    successor.source.add(A, 5)
    successor.feed(A, 4)
    successor.stop()
    assert successor.lines(A) == list(range(9))
    assert successor.counts[Counter.ROWS_WRITTEN] == 4


@pytest.mark.parametrize("kills", slow_after(1, [3, 12]))
def test_rows_arrive_once_however_often_the_writer_is_killed(bench: Bench, kills: int) -> None:
    for _ in range(kills):
        bench.feed(A, 300)
        deadline = time.monotonic() + DEADLINE_S
        while (pid := bench.writer_pid(A)) is None:
            assert time.monotonic() < deadline
        os.kill(pid, signal.SIGKILL)
    statuses = bench.stop()
    assert statuses["a"].pending == 0
    assert bench.lines(A) == list(range(kills * 300))
    assert bench.counts[Counter.TRACKER_RETRIES] >= 1


def test_a_writer_that_hangs_delays_no_other_run(bench: Bench) -> None:
    bench.feed(A, 1)
    bench.wait_until_written(A)
    pid = bench.writer_pid(A)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    bench.feed(A, 1)
    bench.feed(B, 5)
    bench.wait_until_written(B)
    assert bench.status(A).pending == 1


def test_stop_ends_in_time_and_says_what_is_left(bench: Bench) -> None:
    bench.feed(A, 1)
    bench.wait_for(A, lambda _status: bench.source.confirmations.get(A) == 1)
    pid = bench.writer_pid(A)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    bench.feed(A, 7)
    statuses = bench.stop(timeout_s=1)
    assert statuses["a"].pending == 7
    assert statuses["a"].state is not RunState.FINISHED


def test_more_live_runs_than_writers_take_turns(bench: Bench) -> None:
    bench.settings = replace(bench.settings, max_writers=1, min_hold_s=0.1)
    for _ in range(3):
        for key in (A, B, C):
            bench.feed(key, 10)
    for key in (A, B, C):
        bench.wait_until_written(key)
    bench.stop()
    assert [bench.lines(key) for key in (A, B, C)] == [list(range(30))] * 3


def test_a_tracker_that_is_ahead_of_the_rows_is_left_alone(bench: Bench) -> None:
    bench.feed(A, 9)
    bench.stop()
    amnesiac = Bench(bench.settings.directory)
    amnesiac.feed(A, 2)
    status = amnesiac.wait_for(A, lambda status: status.state is RunState.REJECTED)
    assert "another name" in status.last_error
    amnesiac.feed(A, 20)
    assert amnesiac.stop()["a"].pending == 22
    assert amnesiac.lines(A) == list(range(9))


def test_a_tracker_that_is_behind_the_kept_rows_gets_no_hole(bench: Bench) -> None:
    bench.source.add(A, 9)
    bench.source.lose(A, 4)
    bench.delivery.notify(A)
    status = bench.wait_for(A, lambda status: status.state is RunState.REJECTED)
    assert "has only 0 rows" in status.last_error
    assert "from 4 on are kept" in status.last_error
    assert bench.lines(A) == []


def test_an_unexpected_exception_is_counted_and_delivery_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, broken = bench.source.rows, [RuntimeError("disk"), RuntimeError("disk")]

    def flaky(key: ExperimentKey, /, *, start: int, limit: int) -> Sequence[Row]:
        if broken:
            raise broken.pop()
        return rows(key, start=start, limit=limit)

    monkeypatch.setattr(bench.source, "rows", flaky)
    bench.feed(A, 5)
    bench.wait_until_written(A)
    assert bench.counts[Counter.EXCEPTIONS] == 2
    assert bench.lines(A) == list(range(5))


def test_a_run_whose_rows_cannot_be_read_delays_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = bench.source.rows

    def broken_for_a(key: ExperimentKey, /, *, start: int, limit: int) -> Sequence[Row]:
        if key == A:
            raise JournalError("database disk image is malformed")
        return rows(key, start=start, limit=limit)

    monkeypatch.setattr(bench.source, "rows", broken_for_a)
    bench.feed(A, 5)
    bench.feed(B, 5)
    bench.wait_for(B, lambda status: status.safe_row == 5)
    status = bench.wait_for(A, lambda status: status.state is RunState.RETRYING)
    assert "malformed" in status.last_error


def test_a_run_whose_number_of_rows_cannot_be_read_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_row, broken = bench.source.next_row, [JournalError("I/O error")] * 3

    def flaky(key: ExperimentKey, /) -> int:
        if broken and threading.current_thread().name.startswith("otel-rl-delivery"):
            raise broken.pop()
        return next_row(key)

    monkeypatch.setattr(bench.source, "next_row", flaky)
    bench.feed(A, 5)
    bench.wait_for(A, lambda status: status.safe_row == 5)
    assert not broken


def test_an_unexpected_exception_is_logged_with_its_traceback_and_not_at_every_retry(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(key: ExperimentKey, /, *, start: int, limit: int) -> Sequence[Row]:
        raise RuntimeError("a defect")

    monkeypatch.setattr(bench.source, "rows", broken)
    bench.feed(A, 5)
    bench.wait_for(A, lambda _: bench.reasons[TrackerFailure.UNEXPECTED] >= 3)
    (line,) = [record for record in caplog.records if record.exc_info]
    assert "a defect" in line.getMessage()


def test_a_full_disk_stops_no_delivery(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise JournalFull("no room")

    for method in ("confirmed", "prune", "reported"):
        monkeypatch.setattr(bench.source, method, full)
    bench.settings = replace(bench.settings, keep_confirmed_s=0)
    bench.feed(A, 5)
    bench.wait_for(A, lambda status: status.safe_row == 5)
    bench.feed(A, 5)
    bench.wait_for(A, lambda status: status.safe_row == 10)
    assert bench.counts[Counter.TRACKER_RETRIES] == 0


def lose_journal(bench: Bench, monkeypatch: pytest.MonkeyPatch, error: JournalError) -> None:
    def away(*args: object, **more: object) -> None:
        raise error

    for method in ("confirmed", "prune", "reported", "rows", "next_row", "description"):
        monkeypatch.setattr(bench.source, method, away)


def delivery_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("otel-rl-delivery")]


def test_stop_does_not_wait_for_a_journal_that_is_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.feed(A, 5)
    bench.wait_for(A, lambda status: status.safe_row == 5)
    lose_journal(bench, monkeypatch, JournalGone("The journal was removed."))
    bench.delivery.notify(A)
    bench.wait_for(A, lambda _: bench.reasons[TrackerFailure.JOURNAL] > 0)
    statuses = bench.stop(timeout_s=3600)  # a stop that waited would outlast the test
    assert statuses["a"].state is RunState.RETRYING
    assert delivery_threads() == []


def test_no_thread_outlives_a_stop_while_the_journal_is_unreachable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.feed(A, 5)
    bench.wait_for(A, lambda status: status.safe_row == 5)
    lose_journal(bench, monkeypatch, JournalUnavailable("The database does not answer."))
    bench.delivery.notify(A)
    bench.wait_for(A, lambda _: bench.reasons[TrackerFailure.JOURNAL] > 0)
    bench.stop(timeout_s=0.1)
    assert delivery_threads() == []


def test_a_damaged_row_stops_nobody_and_shows_in_the_run(bench: Bench, tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "data")
    run_store = RunStore(journal)
    deliveries = DeliveryStore(journal, bench.settings.tracker)
    try:
        rows = [Row(n, n, 10**18 + n, {"x": float(n)}) for n in range(5)]
        run_store.commit([Commit(A, rows, 5, b"")])
        journal.write(
            lambda connection: connection.execute("UPDATE rows SET body = 'x' WHERE number = 2")
        )
        delivery = DeliveryManager(run_store, [(bench.settings, deliveries)], bench.count)
        delivery.notify(A)
        statuses = delivery.stop(timeout_s=DEADLINE_S, exit_code=0)
    finally:
        journal.close()
    assert [status.state for status in statuses] == [RunState.FINISHED]
    path = bench.settings.directory / f"{run_id('a', 'default')}.jsonl"
    written = [json.loads(line)["values"] for line in path.read_text().splitlines()]
    damaged = {DAMAGED_ROW: 1}
    assert written == [{"x": 0.0}, {"x": 1.0}, damaged, {"x": 3.0}, {"x": 4.0}]


@pytest.mark.parametrize(
    ("tracker", "attributes"),
    [("wanbd", {}), ("jsonl", {"colour": "red"}), ("wandb", {"mode": ""})],
)
def test_wrong_settings_are_refused_at_start(
    bench: Bench, tracker: str, attributes: Mapping[str, str]
) -> None:
    settings = replace(bench.settings, tracker=tracker, attributes=attributes)
    with pytest.raises(ConfigError):
        DeliveryManager(bench.source, [(settings, bench.source)], bench.count)


def test_an_offline_run_is_written_anew_and_one_directory_is_left(bench: Bench) -> None:
    bench.settings = replace(bench.settings, tracker="wandb")
    bench.feed(A, 50)
    bench.wait_until_written(A)
    pid = bench.writer_pid(A)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    bench.feed(A, 50)
    assert bench.stop(exit_code=3)["a"].pending == 0
    (directory,) = run_directories(bench.settings.directory, run_id("a", "default"))
    run = read_offline_run(directory)
    assert [row["_step"] for row in run.history] == list(range(100))
    assert run.exit_code == 3
    assert bench.source.confirmations == {}, "rows of an offline run stay in the journal"


@pytest.mark.slow
def test_a_refused_key_keeps_the_rows_until_it_is_fixed(online: Bench, server: WandbServer) -> None:
    server.fail(401)
    online.feed(A, 20)
    status = online.wait_for(A, lambda status: status.state is RunState.REJECTED)
    assert (status.pending, "WANDB_API_KEY" in status.last_error) == (20, True)
    server.heal()
    online.wait_for(A, lambda status: status.safe_row == 20)
    online.stop()
    assert numbers(server, A) == list(range(20))


def test_stop_does_not_wait_for_a_tracker_that_refuses(online: Bench, server: WandbServer) -> None:
    server.fail(401)
    online.feed(A, 20)
    online.wait_for(A, lambda status: status.state is RunState.REJECTED)
    statuses = online.stop(timeout_s=3600)  # a stop that waited would outlast the test
    assert (statuses["a"].state, statuses["a"].pending) == (RunState.REJECTED, 20)


@pytest.mark.slow
def test_a_run_whose_uploads_are_refused_delays_no_other(
    online: Bench, server: WandbServer
) -> None:
    server.fail(401, path=f"{run_id('a', 'default')}/file_stream")
    online.feed(A, 20)
    online.feed(B, 20)
    online.wait_for(B, lambda status: status.safe_row == 20)
    status = online.wait_for(A, lambda status: status.state is RunState.RETRYING)
    assert "taken no row" in status.last_error
    server.heal()
    online.wait_for(A, lambda status: status.safe_row == 20)
    assert (numbers(server, A), numbers(server, B)) == (list(range(20)), list(range(20)))


@pytest.mark.slow
def test_a_run_whose_uploads_hang_delays_no_other(online: Bench, server: WandbServer) -> None:
    server.fail(0, path=f"{run_id('a', 'default')}/file_stream")
    online.feed(A, 20)
    online.wait_until_written(A)
    online.feed(B, 20)
    online.wait_for(B, lambda status: status.safe_row == 20)
    assert online.status(A).safe_row == 0
    server.heal()
    online.wait_for(A, lambda status: status.safe_row == 20)
    assert (numbers(server, A), numbers(server, B)) == (list(range(20)), list(range(20)))
