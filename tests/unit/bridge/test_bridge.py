"""The whole bridge in one process: what is accepted is in the run, whatever else happens."""

import contextlib
import itertools
import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import LiteralString
from urllib.parse import urlsplit

import pandas as pd
import psycopg
import pytest
import requests

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import BridgeSettings, load_settings
from otel_rl.bridge.counters import Counter, Removal, SampleDrop, Where
from otel_rl.bridge.delivery.manager import RunState
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.cli.ending.end import finish
from otel_rl.cli.ending.report import Ending
from otel_rl.cli.signal_handlers import EndRequests
from otel_rl.errors import (
    ConfigError,
    JournalClosed,
    JournalFull,
    JournalGone,
    JournalLocked,
    JournalUnavailable,
)
from otel_rl.records import Batch, ExperimentKey, Signal
from otel_rl.run_id import run_id
from tests.process.commands import growing_lines
from tests.support.otlp_requests import gauge, key_values, metrics_request, point
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process


DEADLINE_S = 90.0

# A step that a busy machine lets close early would leave a row for the bridge's report at the end.
OPEN_FOR_LONG = dict.fromkeys(("worker_timeout_s", "start_wait_s", "wait_s"), 600.0)


def settings(directory: Path, **more: object) -> BridgeSettings:
    free = {"http": "0", "grpc": "0"}
    given = {"data": directory, "listen": free, "tracker": {"name": "jsonl"}}
    return load_settings(None, {**given, "rows": OPEN_FOR_LONG, **more})


def batch(step: int, *, experiment: str = "e", padding: int = 0, after_s: int = 0) -> Batch:
    measured = point(float(step), time.time_ns() + after_s * 10**9)
    measured.attributes.extend(key_values({"rl.loop.iteration": step}))
    request = metrics_request(
        gauge(measured),
        resource={
            "rl.experiment.name": experiment,
            "rl.worker.role": "trainer",
            "service.instance.id": "one",
            "padding": "x" * padding,
        },
    )
    return Batch(
        ExperimentKey(experiment), Signal.METRICS, request.SerializeToString(), time.time_ns()
    )


def many_values(first: int, how_many: int) -> Batch:
    """Values of one step, of which the archive keeps each."""
    values = [point(float(first + one), time.time_ns() + first + one) for one in range(how_many)]
    for value in values:
        value.attributes.extend(key_values({"rl.loop.iteration": 1}))
    request = metrics_request(
        gauge(*values),
        resource={"rl.experiment.name": "e", "service.instance.id": "one"},
    )
    return Batch(ExperimentKey("e"), Signal.METRICS, request.SerializeToString(), time.time_ns())


def broken(experiment: str = "e") -> Batch:
    key = ExperimentKey(experiment)
    return Batch(key, Signal.METRICS, b"\xff no protobuf", time.time_ns())


def steps(directory: Path, experiment: str = "e") -> list[int]:
    rows = growing_lines(directory / f"{run_id(experiment, 'default')}.jsonl")
    return [row["step"] for row in rows]


def wait_until_drained(directory: Path) -> None:
    """Wait until no batch is left in the spool, as another process would see it."""
    deadline = time.monotonic() + DEADLINE_S
    with closing(sqlite3.connect(f"file:{directory / JOURNAL_FILE}?mode=ro", uri=True)) as journal:
        while journal.execute("SELECT COUNT(*) FROM batches").fetchone() != (0,):
            assert time.monotonic() < deadline, "batches stay in the spool"
            time.sleep(0.02)


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[Bridge]:
    running = Bridge(settings(tmp_path))
    running.start()
    yield running
    running.stop()


def test_every_accepted_batch_is_in_the_run_after_a_stop(bridge: Bridge, tmp_path: Path) -> None:
    for step in range(30):
        bridge.accept([batch(step)])
    (status,) = bridge.stop()
    assert steps(tmp_path) == list(range(30))
    assert (status.state, status.next_row) == (RunState.FINISHED, 30)
    assert bridge.waiting == 0


def test_a_bridge_that_stops_waits_for_the_tracker_to_make_room_for_rows(
    bridge: Bridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count()
    monkeypatch.setattr(RunStore, "has_room", lambda *_: next(looks) >= 6)
    bridge.accept([batch(step) for step in range(3)])
    bridge.stop()
    assert bridge.waiting == 0
    assert steps(tmp_path) == [0, 1, 2]


def test_a_bridge_that_stops_leaves_a_backlog_over_its_time_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = Bridge(settings(tmp_path, stop_timeout_s=1e-6))
    hasty.accept([batch(step) for step in range(300)])
    with monkeypatch.context() as full:
        full.setattr(RunStore, "has_room", lambda *_: False)
        hasty.start()
        hasty.stop()
    assert hasty.waiting > 0
    left = Bridge(settings(tmp_path))
    left.start()
    left.stop()
    assert left.waiting == 0
    # The bridges report of themselves at a step that has a row.
    assert sorted(set(steps(tmp_path))) == list(range(300))


def test_a_batch_that_cannot_be_read_is_set_aside_and_harms_nobody(
    bridge: Bridge, tmp_path: Path
) -> None:
    for step in range(20):
        bridge.accept([batch(step)])
        if step == 10:
            bridge.accept([broken()])
    bridge.stop()
    assert steps(tmp_path) == list(range(20))
    dropped = bridge.counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.UNDECODABLE)
    assert dropped == 1


@pytest.mark.slow
def test_nobody_is_missed_while_the_disk_keeps_every_request_waiting(tmp_path: Path) -> None:
    bridge = Bridge(settings(tmp_path, rows={**OPEN_FOR_LONG, "worker_timeout_s": 3.0}))
    bridge.start()
    ended = threading.Event()

    def export() -> None:
        for step in itertools.count():
            bridge.accept([batch(step)])
            if ended.wait(0.1):
                return

    worker = threading.Thread(target=export)
    worker.start()
    with closing(sqlite3.connect(tmp_path / JOURNAL_FILE, isolation_level=None)) as disk:
        for busy_s in (2, 4):  # first it is seen how often the worker exports
            ended.wait(busy_s)
            if busy_s == 2:
                disk.execute("BEGIN IMMEDIATE")
        disk.execute("ROLLBACK")
    ended.wait(2)
    ended.set()
    worker.join(DEADLINE_S)
    bridge.stop()
    lines = (tmp_path / f"{run_id('e', 'default')}.jsonl").read_text().splitlines()
    rows = [json.loads(line)["values"] for line in lines]
    assert {row.get("service/trainer/failures", 0) for row in rows} == {0}
    assert bridge.counters.value(Counter.SAMPLES_LATE) == 0


def test_a_drain_that_fails_again_and_again_says_so_once_a_minute(
    bridge: Bridge, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(tmp_path / JOURNAL_FILE)) as connection:
        connection.execute("ALTER TABLE rows RENAME TO elsewhere")
        connection.commit()
        bridge.accept([batch(1)])
        deadline = time.monotonic() + DEADLINE_S
        while bridge.counters.value(Counter.EXCEPTIONS, reason=Where.DRAIN) < 2:
            assert time.monotonic() < deadline, "the drain does not fail twice"
            threading.Event().wait(0.05)
        connection.execute("ALTER TABLE elsewhere RENAME TO rows")
        connection.commit()
    assert [r.message for r in caplog.records if r.name.endswith("scheduler")] == [
        "Making rows of e/default failed; its batches are kept, retrying."
    ]
    bridge.stop()
    assert steps(tmp_path) == [1]


def test_a_bad_batch_takes_no_open_step_of_another_experiment_with_it(
    bridge: Bridge, tmp_path: Path
) -> None:
    bridge.accept([batch(1, experiment="open")])
    wait_until_drained(tmp_path)
    bridge.accept([broken()])
    wait_until_drained(tmp_path)
    bridge.stop()
    assert steps(tmp_path, "open") == [1]


def test_a_full_journal_refuses_batches_and_makes_room_from_what_it_has(tmp_path: Path) -> None:
    bridge = Bridge(settings(tmp_path, journal={"max_bytes": 1 << 20}))
    accepted: list[int] = []
    refused = 0
    # Nothing is made into rows before the journal is full.
    while not refused:
        try:
            bridge.accept([batch(len(accepted), padding=50_000)])
        except JournalFull:
            refused += 1
        else:
            accepted.append(len(accepted))
    bridge.start()
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            bridge.accept([batch(len(accepted))])
            break
        except JournalFull:
            assert time.monotonic() < deadline, "the journal stays full"
            threading.Event().wait(0.05)
    accepted.append(len(accepted))
    bridge.stop()
    assert steps(tmp_path) == accepted


def test_spans_are_accepted_and_make_no_rows(bridge: Bridge) -> None:
    bridge.accept([Batch(ExperimentKey("e"), Signal.TRACES, b"", time.time_ns())])
    assert bridge.stop() == []


def test_an_ended_run_is_removed_in_time_and_what_comes_after_goes_on_in_its_run(
    tmp_path: Path,
) -> None:
    more: dict[str, object] = {
        "journal": {"keep_ended": "20d"},
        "rows": {**OPEN_FOR_LONG, "start_wait_s": 0},
    }
    later_ns = 0
    first = Bridge(settings(tmp_path, **more))
    first.start()
    first.accept([batch(step) for step in range(3)])
    wait_until(lambda: first.status() and first.status()[0].next_row >= 2, timeout_s=DEADLINE_S)
    (status,) = first.stop(is_over=True)
    second = Bridge(settings(tmp_path, **more), clock_ns=lambda: time.time_ns() + later_ns)
    try:
        second.cleanup.remove_ended()
        assert second.counters.value(Counter.RUNS_REMOVED, reason=Removal.TOO_OLD) == 0
        later_ns = 21 * 86_400 * 10**9
        second.cleanup.remove_ended()
        assert second.counters.value(Counter.RUNS_REMOVED, reason=Removal.TOO_OLD) == 1
        later_ns = 0
        second.start()
        late, new = batch(1), batch(9, after_s=1_200)
        second.accept([late, new])
        wait_until(
            lambda: 9 in steps(tmp_path) or second.stop(is_over=True),
            timeout_s=DEADLINE_S,
        )
    finally:
        second.stop()
    assert steps(tmp_path).count(1) == 1
    assert steps(tmp_path)[status.next_row :].count(9) == 1
    assert second.counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.RUN_REMOVED) == 1


def test_a_directory_in_use_leaves_no_port_taken(bridge: Bridge, tmp_path: Path) -> None:
    with pytest.raises(JournalLocked):
        Bridge(settings(tmp_path))


def test_a_port_in_use_leaves_the_directory_free(bridge: Bridge, tmp_path: Path) -> None:
    taken = int(bridge.http.rpartition(":")[2])
    other = tmp_path / "other"
    with pytest.raises(ConfigError):
        Bridge(settings(other, http={"port": taken}))
    again = Bridge(settings(other))
    again.start()
    again.stop()


def test_stopping_twice_is_stopping_once(bridge: Bridge) -> None:
    bridge.accept([batch(1)])
    first = bridge.stop()
    assert bridge.stop() == first


def test_nothing_is_accepted_after_a_stop(bridge: Bridge) -> None:
    bridge.stop()
    with pytest.raises(JournalClosed):
        bridge.accept([batch(1)])


@pytest.mark.parametrize(
    "place", ["rows.worker_timeout", "tracker.keep_confirmed", "telemetry.interval"]
)
def test_a_setting_that_is_no_number_of_seconds_is_refused_at_start(place: str) -> None:
    section, name = place.split(".")
    with pytest.raises(ConfigError, match=place):
        load_settings(None, {section: {name: float("inf")}})


def test_a_full_disk_at_the_stop_leaves_the_directory_to_the_next_bridge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: DeliveryStore, _key: ExperimentKey, _next_row: int) -> None:
        raise JournalFull("The disk is full.")

    bridge = Bridge(settings(tmp_path))
    bridge.start()
    bridge.accept([batch(1)])
    with monkeypatch.context() as patched:
        patched.setattr(DeliveryStore, "finish", full)
        bridge.stop()
    again = Bridge(settings(tmp_path))
    again.start()
    again.stop()
    assert steps(tmp_path) == [1]


def removed(data: Path) -> None:
    shutil.rmtree(data)


def renamed(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def without(name: str) -> Callable[[Path], None]:
    return lambda data: (data / name).unlink()


def replaced(data: Path) -> None:
    """By a copy of itself, as from a backup."""
    shutil.copy(data / JOURNAL_FILE, data / "copy")
    (data / "copy").rename(data / JOURNAL_FILE)


def replaced_by_another(data: Path) -> None:
    removed(data)
    data.mkdir()
    (data / JOURNAL_FILE).touch()


GONE = {
    "the directory": removed,
    "the directory, renamed": renamed,
    "the journal": without(JOURNAL_FILE),
    "its log": without(f"{JOURNAL_FILE}-wal"),
    "its index": without(f"{JOURNAL_FILE}-shm"),
    "its lock": without("lock"),
    "another file": replaced,
    "another directory": replaced_by_another,
}


def ended(bridge: Bridge) -> Ending:
    return finish(bridge, exit_code=0, is_over=False, requests=EndRequests())


@pytest.mark.parametrize("strike", GONE.values(), ids=GONE)
def test_nothing_is_acknowledged_once_the_journal_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, strike: Callable[[Path], None]
) -> None:
    data, runs = tmp_path / "data", tmp_path / "runs"
    bridge = Bridge(settings(data, tracker={"name": "jsonl", "directory": runs}))
    bridge.start()
    bridge.accept([batch(0)])
    wait_until_drained(data)
    strike(data)
    for step in (1, 2):
        with pytest.raises(JournalGone, match="was removed or replaced"):
            bridge.accept([batch(step)])
    assert health(bridge) == (503, f"{bridge.problem}\n")
    assert bridge.counters.value(Counter.BATCHES_SPOOLED) == 1
    assert not ended(bridge).is_complete  # the exit status is 1
    assert bridge.counters.value(Counter.EXCEPTIONS, reason=Where.DRAIN) == 0
    assert "Traceback" not in caplog.text
    assert caplog.text.count("Nothing more is acknowledged.") == 1


def test_a_bridge_whose_journal_is_put_back_goes_on(tmp_path: Path) -> None:
    data, away = tmp_path / "data", tmp_path / "away"
    bridge = Bridge(settings(data))
    bridge.start()
    bridge.accept([batch(0)])
    data.rename(away)
    wait_until(lambda: bool(bridge.problem), "the bridge to notice", timeout_s=DEADLINE_S)
    with pytest.raises(JournalGone):
        bridge.accept([batch(1)])
    away.rename(data)
    bridge.accept([batch(1)])
    wait_until(lambda: health(bridge) == (200, "ok\n"), "health again", timeout_s=DEADLINE_S)
    assert ended(bridge).is_complete
    assert steps(data) == [0, 1]


def health(bridge: Bridge) -> tuple[int, str]:
    answer = requests.get(f"http://{bridge.http}/healthz", timeout=DEADLINE_S)
    return answer.status_code, answer.text


@pytest.mark.parametrize("what", ["TABLE batches", "TABLE runs", "SCHEMA public"])
def test_nothing_is_acknowledged_once_the_tables_are_gone(
    tmp_path: Path, postgres: PostgresServer, caplog: pytest.LogCaptureFixture, what: LiteralString
) -> None:
    url = postgres.new_database("UTF8")
    bridge = Bridge(settings(tmp_path, journal={"url": url}))
    bridge.start()
    bridge.accept([batch(0)])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP {what} CASCADE")
    with pytest.raises(JournalGone, match="were removed"):
        bridge.accept([batch(1)])
    assert health(bridge) == (503, f"{bridge.problem}\n")
    assert not ended(bridge).is_complete
    assert "Traceback" not in caplog.text


def test_an_idle_bridge_whose_tables_are_put_back_is_healthy_again(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.new_database("UTF8")
    bridge = Bridge(settings(tmp_path, journal={"url": url}))
    bridge.start()
    bridge.accept([batch(0)])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE batches RENAME TO away")
        wait_until(lambda: bool(bridge.problem), "the bridge to notice", timeout_s=DEADLINE_S)
        connection.execute("ALTER TABLE away RENAME TO batches")
    wait_until(lambda: health(bridge) == (200, "ok\n"), "health again", timeout_s=DEADLINE_S)
    assert ended(bridge).is_complete


def test_nothing_is_acknowledged_once_the_database_is_gone(
    tmp_path: Path, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres.new_database("UTF8")
    bridge = Bridge(settings(tmp_path, journal={"url": url}))
    bridge.start()
    bridge.accept([batch(0)])
    postgres.execute(f"DROP DATABASE {urlsplit(url).path.removeprefix('/')} WITH (FORCE)")
    with contextlib.suppress(JournalUnavailable, JournalGone):  # of the connection there was
        bridge.accept([batch(1)])
    with pytest.raises(JournalGone, match="does not exist"):
        bridge.accept([batch(1)])
    assert not ended(bridge).is_complete
    assert "Traceback" not in caplog.text


def test_a_small_journal_keeps_what_the_archive_cannot_take_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = tmp_path / "archive"
    archive.write_text("no directory")
    small = settings(
        tmp_path, journal={"max_bytes": 1 << 20}, archive={"enabled": True, "every_s": 0.01}
    )
    running = Bridge(small)
    running.start()
    running.accept([many_values(0, 8_000)])
    wait_until(lambda: "The archive cannot be written" in caplog.text, timeout_s=DEADLINE_S)
    running.accept([many_values(8_000, 100)])
    wait_until_drained(tmp_path)
    archive.unlink()
    running.stop()
    found = pd.read_parquet(archive / run_id("e", "default"))
    assert sorted(found[found["metric"] == "loss"]["value"]) == list(range(8_100))


def test_what_the_archive_lacks_is_said_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = Bridge(settings(tmp_path, archive={"enabled": True, "every_s": 600.0}))
    running.start()
    running.accept([many_values(0, 3)])
    wait_until_drained(tmp_path)
    with closing(sqlite3.connect(tmp_path / JOURNAL_FILE)) as journal, journal:
        journal.execute("UPDATE archive SET crc = crc + 1")
    assert ended(running).is_complete
    said = "the archive lacks 3 values, the run has them: the journal's disk has damaged them"
    assert said in capsys.readouterr().err
