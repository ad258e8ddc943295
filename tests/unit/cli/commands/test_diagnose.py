"""``otel-rl diagnose`` beside a bridge that runs, and after it."""

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.postgres import PostgresJournal
from otel_rl.bridge.journal.retention import Retention
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.bridge.keys import DIAGNOSIS_ALERT
from otel_rl.bridge.rows.messages import Finding
from otel_rl.cli.main import main
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from tests.support.postgres import PostgresServer
from tests.unit.diagnose import worlds
from tests.unit.diagnose.worlds import World

SLOW, SOUND = ExperimentKey("grpo", "slow"), ExperimentKey("ppo", "sound")


def judges_are_slow(role: str, phase: str, index: int, step: int) -> float:
    return 20.0 if (role, phase) == ("judge", "score") and step >= 40 else 1.0


def keep(journal: Journal, worlds: Mapping[ExperimentKey, World] | None = None) -> None:
    """What a bridge keeps of two runs; of the second it has heard last."""
    run_store = RunStore(journal)
    worlds = worlds or {SLOW: World(slower=judges_are_slow), SOUND: World(seed=1)}
    for place, (key, world) in enumerate(worlds.items()):
        for facts in world.facts():
            time_ns = facts.time_ns + 10**15 * place
            history = time_ns, facts._replace(time_ns=time_ns).encode()
            run_store.commit([Commit(key, [], 0, b"", added={Log.HISTORY: history})])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a bridge that has ended."""
    directory = tmp_path_factory.mktemp("kept")
    journal = SqliteJournal(directory)
    keep(journal)
    journal.close()
    return directory


@pytest.fixture
def data(kept: Path) -> Iterator[Path]:
    """The directory of a bridge that is running."""
    journal = SqliteJournal(kept)
    yield kept
    journal.close()


@pytest.fixture
def diagnose(data: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*arguments: str) -> tuple[int, str]:
        status = main(["diagnose", *arguments, "--data", str(data)])
        said = capsys.readouterr()
        return status, said.out or said.err

    return run


def test_a_run_is_found_by_its_name(diagnose: Callable[..., tuple[int, str]]) -> None:
    for name in ("grpo", "slow", "grpo/slow"):
        status, said = diagnose(name)
        assert status == 0
        assert said.startswith("grpo/slow, 80 steps")
        assert "1. slow_reward: score of judge takes" in said


def test_a_page_is_written_beside_the_words(
    diagnose: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    page = tmp_path / "causes.html"
    status, said = diagnose("grpo/slow", "--html", str(page))
    assert status == 0
    assert "1. slow_reward: score of judge takes" in said
    assert said.splitlines()[-1].startswith(str(page))
    assert '"words":"score of judge takes' in page.read_text(encoding="utf-8")


def test_a_page_that_would_show_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "causes.html"
    assert main(["diagnose", "--html", str(page), "--now"]) == 2
    assert "Leave out --now." in capsys.readouterr().err
    assert not page.exists()


AB_C, A_BC = ExperimentKey("a/b", "c"), ExperimentKey("a", "b/c")


@pytest.fixture
def namesakes(tmp_path: Path) -> Iterator[Path]:
    """Two running ones that are the same text, of which the most recently active is faulty."""
    journal = SqliteJournal(tmp_path)
    keep(journal, {AB_C: World(seed=1), A_BC: World(slower=judges_are_slow)})
    yield tmp_path
    journal.close()


@pytest.mark.parametrize(("key", "verdict"), [(AB_C, "healthy"), (A_BC, "cause")])
def test_of_two_runs_that_are_the_same_text_each_is_named_by_its_id(
    namesakes: Path, key: ExperimentKey, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--json", run_id(*key), "--data", str(namesakes)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["experiment"], report["trial"]) == (key.experiment, key.trial)
    assert report["verdict"] == verdict


def test_a_run_without_an_end_whose_bridge_is_gone_is_not_called_healthy(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "ppo", "--data", str(kept)]) == 0
    told = capsys.readouterr().out
    assert "cannot tell: its bridge was killed or stopped before the end of the run" in told


def test_a_text_that_stands_for_two_runs_is_refused_with_what_to_write(
    namesakes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "a/b/c", "--data", str(namesakes)]) == 2
    said = capsys.readouterr().err
    assert f"{run_id(*AB_C)} (experiment 'a/b', trial 'c')" in said
    assert f"{run_id(*A_BC)} (experiment 'a', trial 'b/c')" in said


def test_without_a_name_it_is_the_run_that_was_heard_of_last(
    diagnose: Callable[..., tuple[int, str]],
) -> None:
    assert diagnose()[1].startswith("ppo/sound, 80 steps")


def test_json_says_the_same_to_a_program(diagnose: Callable[..., tuple[int, str]]) -> None:
    report = json.loads(diagnose("grpo", "--json")[1])
    assert {key: report[key] for key in ("experiment", "trial", "steps", "verdict")} == {
        "experiment": "grpo",
        "trial": "slow",
        "steps": [0, 79],
        "verdict": "cause",
    }
    first = report["causes"][0]
    assert (first["kind"], first["role"], first["phase"]) == ("slow_reward", "judge", "score")
    evidence = first["evidence"][0]
    assert evidence["after"] > 10 * evidence["before"]
    assert len(evidence["traces"][0]) == 32


def test_traces_are_links_where_it_is_known_where_a_person_sees_them(
    diagnose: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = json.loads(diagnose("grpo", "--json")[1])["causes"][0]["evidence"][0]["traces"][0]
    assert f"trace {trace}" in diagnose("grpo")[1]
    url = "http://jaeger:16686/trace/{trace_id}"
    monkeypatch.setenv("OTEL_RL_BRIDGE__ROWS__TRACE_URL", url)
    assert f"trace http://jaeger:16686/trace/{trace}\n" in diagnose("grpo")[1]


def test_steps_are_explained_by_what_is_different_in_them(
    diagnose: Callable[..., tuple[int, str]],
) -> None:
    assert json.loads(diagnose("grpo", "--json", "--steps", "5:30")[1])["verdict"] == "healthy"
    assert json.loads(diagnose("grpo", "--json", "--steps", "38:70")[1])["verdict"] == "cause"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dpo",), "There is no run 'dpo'"),
        (("grpo", "--steps", "500"), "has come to step 79 (got 500)"),
    ],
)
def test_what_is_not_there_is_said(
    diagnose: Callable[..., tuple[int, str]], arguments: tuple[str, ...], words: str
) -> None:
    status, said = diagnose(*arguments)
    assert status == 2
    assert words in said


def test_a_directory_without_a_journal_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--data", str(tmp_path / "none")]) == 2
    assert "There is no directory" in capsys.readouterr().err
    assert main(["diagnose", "--data", str(tmp_path)]) == 2
    assert "There is no run in the journals below" in capsys.readouterr().err


def test_a_journal_that_cannot_be_read_is_said_beside_the_answer(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(kept, tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / JOURNAL_FILE).write_bytes(b"not a database" * 1000)
    for arguments in ((), ("ppo/sound",), ("--json",)):
        assert main(["diagnose", *arguments, "--data", str(tmp_path)]) == 1
        printed = capsys.readouterr()
        assert "ppo" in printed.out
        assert "Cannot read the journal" in printed.err


def test_a_run_without_a_history_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = SqliteJournal(tmp_path)
    RunStore(journal).commit([Commit(SLOW, [], 0, b"")])
    journal.close()
    assert main(["diagnose", "--data", str(tmp_path)]) == 2
    assert "The journal has no history of grpo/slow." in capsys.readouterr().err


@pytest.mark.parametrize("steps", ["x", "7:3", "-1", "1:2:3"])
def test_steps_that_are_none_are_refused(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["diagnose", f"--steps={steps}"])
    assert "write N or FIRST:LAST" in capsys.readouterr().err


def test_bridges_that_share_a_database_are_asked_there(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgres.new_url()
    journal = PostgresJournal(url)
    keep(journal)
    journal.close()
    monkeypatch.setenv("OTEL_RL_BRIDGE__JOURNAL__URL", url)
    assert main(["diagnose", "grpo"]) == 0
    assert "slow_reward" in capsys.readouterr().out


def test_a_run_that_was_removed_after_its_end_is_named(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(kept / JOURNAL_FILE, tmp_path)
    journal = SqliteJournal(tmp_path)
    day_ns = 86_400 * 10**9
    Retention(journal, trackers=["jsonl"], keep_ns=day_ns, share_of=lambda _: ("", 1 << 40)).turn(
        time.time_ns() + 40 * day_ns
    )
    journal.close()
    for name in ("grpo/slow", "grpo", run_id(*SLOW)):
        assert main(["diagnose", name, "--data", str(tmp_path)]) != 0
        said = capsys.readouterr().err
        assert "grpo/slow ended and was removed from the journal on 20" in said
        assert "journal.keep_ended" in said
    assert main(["diagnose", "nothing", "--data", str(tmp_path)]) != 0
    assert "There is no run" in capsys.readouterr().err


def test_what_the_disk_has_damaged_is_left_out(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(kept / JOURNAL_FILE, tmp_path)
    with sqlite3.connect(tmp_path / JOURNAL_FILE) as connection:
        connection.execute(
            "UPDATE log SET body = x'00' WHERE number IN (SELECT number FROM"
            " (SELECT number, ROW_NUMBER() OVER (ORDER BY number) AS place FROM log"
            " WHERE kind = 'history') WHERE place % 10 = 3)"
        )
    assert main(["diagnose", "grpo", "--data", str(tmp_path)]) == 0
    assert "72 snapshots" in capsys.readouterr().out


def test_nothing_that_a_terminal_would_obey_is_printed_or_sent_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A phase, a worker and a metric are named by whoever sends them."""
    evil = "score\x1b[2J\u202e\r"
    work = {(r, evil if p == "score" else p): took for (r, p), took in worlds._WORK.items()}
    monkeypatch.setattr(worlds, "_WORK", work)

    def slower(role: str, phase: str, index: int, step: int) -> float:
        return 20.0 if phase == evil and step >= 40 else 1.0

    run_store = RunStore(journal := SqliteJournal(tmp_path))
    for facts in World(slower=slower).facts():
        run_store.commit(
            [Commit(SLOW, [], 0, b"", added={Log.HISTORY: (facts.time_ns, facts.encode())})]
        )
    journal.close()
    assert main(["diagnose", "--data", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "score\\x1b[2J" in said
    assert [line for line in said.splitlines() if not line.isprintable()] == []
    assert main(["diagnose", "--json", "--data", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    finding = Finding(report["steps"][1], 0, report["verdict"], report["words"], report["causes"])
    assert all(text.isprintable() for text in finding.labels.values())
    assert "score" in finding.labels[DIAGNOSIS_ALERT]
    assert all(not isinstance(v, str) or v.isprintable() for row in finding.table.rows for v in row)
