"""``otel-rl runs``: the runs of a data directory as a person and a program see them."""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.postgres import PostgresJournal
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.cli.commands.runs import _Table
from otel_rl.cli.find_run import Runs
from otel_rl.cli.main import main
from otel_rl.records import (
    Batch,
    Description,
    ExperimentKey,
    ExperimentStatus,
    Row,
    Signal,
    WorkerFailure,
)
from otel_rl.run_id import run_id
from tests.support.postgres import PostgresServer

S = 1_000_000_000
HOUR_S = 3_600

CRASH = WorkerFailure("trainer/0", 1, "RuntimeError", "no memory", step=3, is_in_step=True)
STATUS = {
    "complete": Description(status=ExperimentStatus.COMPLETE),
    "aborted": Description(status=ExperimentStatus.ABORTED),
    "crashed": Description(status=ExperimentStatus.CRASHED, failures=(CRASH,)),
    "running": Description(),
}


class Journals:
    """Journals whose runs were committed to some seconds ago."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.ago_s = 0.0
        self.runs = RunStore(journal, clock_ns=lambda: time.time_ns() - int(self.ago_s * S))
        self._rows: dict[ExperimentKey, int] = {}

    def commit(self, name: str, *, ago_s: float, step: int | None = None, is_: str = "") -> None:
        self.ago_s = ago_s
        key = ExperimentKey(name, "t")
        number = self._rows.get(key, 0)
        self._rows[key] = number + 1
        rows = [Row(number, step or 0, 1, {"x": 1.0})]
        self.runs.commit(
            [Commit(key, rows, number + 1, b"s", description=STATUS.get(is_), step=step)]
        )

    def opened(self, name: str, location: str) -> None:
        DeliveryStore(self.journal, "jsonl").opened(ExperimentKey(name, "t"), location)


Listing = Callable[[], Sequence[Mapping[str, Any]]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def listing(data: Path, capsys: pytest.CaptureFixture[str]) -> Listing:
    def listed() -> Sequence[Mapping[str, Any]]:
        assert main(["runs", "--data", str(data), "--json"]) == 0
        found: Sequence[Mapping[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    return listed


def states(listed: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
    return {one["experiment"]: one["state"] for one in listed}


def test_every_run_has_its_state_the_last_active_one_first(data: Path, listing: Listing) -> None:
    with closing(SqliteJournal(data)) as journal:
        some = Journals(journal)
        for name in ("complete", "aborted", "crashed"):
            some.commit(name, ago_s=1_000 - len(name), is_=name)
        some.commit("silent", ago_s=70, is_="running")
        some.commit("live", ago_s=30, step=7, is_="running")
        listed = listing()  # beside a bridge
    assert states(listed) == {
        "complete": "finished",
        "aborted": "aborted",
        "crashed": "crashed",
        "silent": "stalled",
        "live": "running",
    }
    assert [one["experiment"] for one in listed][:2] == ["live", "silent"]
    ages = [one["idle_s"] for one in listed]
    assert ages == sorted(ages)
    crashed = {one["experiment"]: one["crash"] for one in listed}
    assert crashed["crashed"] == "crashed: trainer/0, RuntimeError at step 3"
    assert crashed["live"] is None


@pytest.mark.parametrize(
    ("first_step_s", "since_step_s", "state"),
    [
        (2 * HOUR_S, 290, "running"),
        (2 * HOUR_S, 310, "running"),  # usual steps take 720 s
        (200, 310, "stalled"),
        (200, 290, "running"),
    ],
)
def test_a_run_without_a_new_step_for_long_is_stalled(
    data: Path, listing: Listing, first_step_s: float, since_step_s: float, state: str
) -> None:
    with closing(SqliteJournal(data)) as journal:
        some = Journals(journal)
        some.commit("e", ago_s=since_step_s + first_step_s)
        some.commit("e", ago_s=since_step_s, step=10)
        some.commit("e", ago_s=1, step=10)  # heartbeats go on
        (one,) = listing()
    assert one["state"] == state
    assert one["step"] == 10
    assert one["age_s"] == pytest.approx(since_step_s + first_step_s, abs=60)
    assert one["idle_s"] < 60


def test_a_run_whose_bridge_is_gone_is_interrupted(data: Path, listing: Listing) -> None:
    with closing(SqliteJournal(data)) as journal:
        some = Journals(journal)
        some.commit("live", ago_s=1, is_="running")
        some.commit("silent", ago_s=70, is_="running")
        some.commit("complete", ago_s=1, is_="complete")
    assert states(listing()) == {
        "live": "interrupted",
        "silent": "interrupted",
        "complete": "finished",
    }


def test_a_copy_of_a_journal_without_its_lock_may_have_a_bridge(
    data: Path, listing: Listing
) -> None:
    with closing(SqliteJournal(data)) as journal:
        Journals(journal).commit("live", ago_s=1, is_="running")
    (data / "lock").unlink()
    assert states(listing()) == {"live": "running"}


def test_the_place_and_the_size_of_a_run_are_listed(
    data: Path, listing: Listing, tmp_path: Path
) -> None:
    directory = tmp_path / "offline-run-1"
    with closing(SqliteJournal(data)) as journal:
        some = Journals(journal)
        for name in ("offline", "online"):
            some.commit(name, ago_s=1)
        some.opened("offline", "/elsewhere")
        some.opened("offline", str(directory))
        some.opened("online", "https://wandb.example/e/p/runs/1")
        key = ExperimentKey("online", "t")
        before = {one["experiment"]: one["journal_bytes"] for one in listing()}
        Spool(journal).append(
            [Batch(key, Signal.METRICS, b"x" * 5_000, received_ns=time.time_ns())]
        )
        listed = {one["experiment"]: one for one in listing()}
    assert listed["offline"]["location"] == str(directory)
    assert listed["online"]["location"] == "https://wandb.example/e/p/runs/1"
    assert before["online"] > 0
    assert listed["online"]["journal_bytes"] == before["online"] + 5_000


def test_a_person_sees_a_table(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(SqliteJournal(data / "abc")) as journal:
        some = Journals(journal)
        some.commit("grpo\x1b[31m", ago_s=7_200, step=3, is_="crashed")
        some.opened("grpo\x1b[31m", "https://me:secret@wandb.example/1")
    assert main(["runs", "--data", str(data)]) == 0
    header, line, crash, place = capsys.readouterr().out.splitlines()
    assert header.split() == [
        "RUN",
        "ID",
        "STATE",
        "VERDICT",
        "STEP",
        "STEPS/S",
        "REWARD",
        "WORKERS",
        "GOODPUT",
        "AGE",
        "ACTIVE",
        "JOURNAL",
    ]
    assert "\\x1b" in line
    of_run = run_id("grpo\x1b[31m", "t")
    assert line.split()[1:5] == [of_run, "crashed", "-", "3"]
    assert "  2 h  2 h  " in line
    assert crash == "  crashed: trainer/0, RuntimeError at step 3"
    assert place.startswith("  https://")
    assert "secret" not in place


def test_what_was_read_of_a_run_goes_with_it(data: Path) -> None:
    for name in ("stays", "goes"):
        with closing(SqliteJournal(data / name)) as journal:
            Journals(journal).commit(name, ago_s=1)
    settings = BridgeSettings(data=data)
    with Runs(settings) as found:
        table = _Table(settings, found, None)
        assert len(table.look()) == len(table._watches) == 2
        shutil.rmtree(data / "goes")
        assert len(table.look()) == len(table._watches) == 1


def test_a_very_long_name_leaves_other_lines_as_they_are(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(SqliteJournal(data)) as journal:
        some = Journals(journal)
        for name in ("short", "long" * 60):
            some.commit(name, ago_s=1)
    assert main(["runs", str(data)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert f"{'long' * 60}/t" in lines
    assert len(lines["short/t"]) < 200


def test_without_any_run_it_says_how_to_get_one(
    data: Path, capsys: pytest.CaptureFixture[str], listing: Listing
) -> None:
    data.mkdir()
    assert main(["runs", str(data)]) == 0
    assert "otel-rl run -- python train.py" in capsys.readouterr().out
    assert listing() == []


def test_a_journal_that_cannot_be_read_hides_no_other(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(SqliteJournal(data / "good")) as journal:
        Journals(journal).commit("e", ago_s=1)
    (data / "bad").mkdir()
    (data / "bad" / JOURNAL_FILE).write_bytes(b"not a database" * 1000)
    assert main(["runs", str(data)]) == 1
    printed = capsys.readouterr()
    assert "e/t" in printed.out
    assert "Cannot read the journal" in printed.err


def test_the_directory_is_named_once(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.mkdir()
    assert main(["runs", str(data), "--data", str(data)]) == 2
    assert "once" in capsys.readouterr().err


def test_runs_of_a_shared_database_are_listed(
    postgres: PostgresServer, listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.new_url()
    monkeypatch.setenv("OTEL_RL_BRIDGE__JOURNAL__URL", url)
    assert listing() == []
    with closing(PostgresJournal(url)) as journal:
        some = Journals(journal)
        some.commit("e", ago_s=100)
        some.commit("e", ago_s=50, step=4)
        some.commit("e", ago_s=10, step=4)
        some.opened("e", "https://wandb.example/1")
        (one,) = listing()
    assert (one["state"], one["step"]) == ("running", 4)
    assert one["age_s"] == pytest.approx(100, abs=60)
    assert one["location"] == "https://wandb.example/1"
    assert one["journal_bytes"] > 0
