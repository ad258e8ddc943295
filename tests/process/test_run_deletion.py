"""``otel-rl runs --delete``: one run goes, with its files here; nothing else does."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.records import Batch, ExperimentKey, Row, Signal
from otel_rl.run_id import run_id
from tests.process.commands import OTEL_RL, Finished, clean_environment, otel_rl, otel_rl_here
from tests.support.terminal import Terminal

pytestmark = pytest.mark.process

A, B = ExperimentKey("grpo", "a"), ExperimentKey("grpo", "b")
IDS = {key: run_id(key.experiment, key.trial) for key in (A, B)}

TRAIN = """
import otel_rl
for step in range(3):
    otel_rl.log({"loss": step}, step=step)
"""


def write(journal: SqliteJournal, directory: Path) -> None:
    """Two runs of a service's bridge, each with files, one with a batch that waits."""
    for key in (A, B):
        RunStore(journal).commit([Commit(key, [Row(0, 1, 1, {"x": 1.0})], 1, b"", step=1)])
        for path in files(directory, key):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(key))
    Spool(journal).append([Batch(A, Signal.METRICS, b"x", received_ns=time.time_ns())])


def files(directory: Path, key: ExperimentKey) -> list[Path]:
    name = IDS[key]
    return [
        directory / f"{name}.jsonl",
        directory / f"{name}.run.json",
        directory / "archive" / name / "1.parquet",
        directory / "wandb" / f"offline-run-20260101-{name}" / f"run-{name}.wandb",
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with closing(SqliteJournal(tmp_path / "data")) as journal:
        write(journal, tmp_path / "data")
    return tmp_path / "data"


def runs(data: Path, *arguments: str) -> Finished:
    return otel_rl_here("runs", data, *arguments, cwd=data.parent)


def listed(data: Path) -> list[str]:
    return [line.split()[0] for line in runs(data).out.splitlines()[1:]]


@pytest.mark.parametrize("name", ["grpo/a", "a", IDS[A]])
def test_a_run_of_a_service_goes_and_the_others_stay(data: Path, name: str) -> None:
    done = runs(data, "--delete", name, "--yes")
    assert done.status == 0, done.err
    assert "run grpo/a was deleted" in done.err
    assert listed(data) == ["grpo/b"]
    assert not any(path.exists() for path in files(data, A))
    assert all(path.exists() for path in files(data, B))
    with closing(SqliteJournal(data)) as journal, journal.read() as connection:
        for table in ("batches", "rows", "waiting"):
            ids = connection.execute(f"SELECT run_id FROM {table}").fetchall()
            assert (IDS[A],) not in ids, table


def test_rows_of_what_is_sent_late_to_a_deleted_run_have_new_numbers(data: Path) -> None:
    runs(data, "--delete", "grpo/a", "--yes")
    with closing(SqliteJournal(data)) as journal:
        Spool(journal).append([Batch(A, Signal.METRICS, b"x", received_ns=time.time_ns())])
        assert RunStore(journal).next_row(A) == 1


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """The data directory of a bridge that runs."""
    with closing(SqliteJournal(tmp_path / "data")) as journal:
        write(journal, tmp_path / "data")
        yield tmp_path / "data"


def test_a_run_that_a_bridge_writes_is_not_deleted(held: Path) -> None:
    done = runs(held, "--delete", "grpo/a", "--yes")
    assert done.status == 2
    assert "is in use by process" in done.err
    assert "stop `otel-rl bridge`, and delete the run then" in done.err
    assert sorted(listed(held)) == ["grpo/a", "grpo/b"]
    assert all(path.exists() for path in files(held, A))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("grpo", "'grpo' names 2 runs"),
        ("none", "There are: grpo/a, grpo/b."),
        ("grpo/a", "nobody can be asked. Add --yes."),
    ],
)
def test_without_a_clear_name_or_a_yes_nothing_is_deleted(data: Path, name: str, told: str) -> None:
    done = otel_rl("runs", data, "--delete", name, cwd=data.parent)
    assert done.status == 2
    assert told in done.err
    assert sorted(listed(data)) == ["grpo/a", "grpo/b"]


@pytest.mark.parametrize(("answer", "status", "left"), [(b"\n", 1, 2), (b"y\n", 0, 1)])
def test_in_a_terminal_it_asks(data: Path, answer: bytes, status: int, left: int) -> None:
    command = [*OTEL_RL, "runs", str(data), "--delete", "grpo/a"]
    environment = clean_environment(data)
    with Terminal(command, cwd=data, environment=environment, columns=200) as terminal:
        terminal.until(lambda rows: any(row.endswith("[y/N]") for row in rows))
        assert "Delete run grpo/a with 1 row and" in terminal.screen.display[0]
        terminal.type(answer)
        assert terminal.status() == status
    assert len(listed(data)) == left


def test_a_run_of_otel_rl_run_goes_with_its_directory_which_git_never_sees(
    tmp_path: Path,
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "train.py").write_text(TRAIN)
    for trial in ("a", "b"):
        line = ["run", "--experiment", "grpo", "--trial", trial, "--tracker", "jsonl", "--"]
        done = otel_rl(*line, sys.executable, "train.py", cwd=tmp_path)
        assert done.status == 0, done.err
    seen = subprocess.run(
        ["git", "status", "--porcelain"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert seen.stdout == "?? train.py\n"
    done = otel_rl("runs", "--delete", "grpo/a", "--yes", cwd=tmp_path)
    assert done.status == 0, done.err
    assert [path.name for path in (tmp_path / ".otel_rl").glob("[!.]*")] == [IDS[B]]
