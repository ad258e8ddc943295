"""``otel-rl runs --delete``: one run or a team goes, with its files; nothing else does."""

import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.places import open_journal
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.records import Batch, ExperimentKey, Row, Signal
from otel_rl.run_id import run_id
from tests.lab.running import Bridge
from tests.process.commands import OTEL_RL, Finished, clean_environment, otel_rl, otel_rl_here
from tests.support.postgres import PostgresServer
from tests.support.slow import slow_after
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

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
    done = otel_rl_here("runs", data, "--delete", name, cwd=data.parent)
    assert done.status == 2
    assert told in done.err
    assert sorted(listed(data)) == ["grpo/a", "grpo/b"]


@pytest.mark.parametrize(
    ("answer", "status", "left"), slow_after(1, [(b"y\n", 0, 1), (b"\n", 1, 2)])
)
def test_in_a_terminal_it_asks(data: Path, answer: bytes, status: int, left: int) -> None:
    command = [*OTEL_RL, "runs", str(data), "--delete", "grpo/a"]
    environment = clean_environment(data)
    with Terminal(command, cwd=data, environment=environment, columns=200) as terminal:
        terminal.until(lambda rows: any(row.endswith("[y/N]") for row in rows))
        assert "Delete run grpo/a with 1 row and" in terminal.screen.display[0]
        terminal.type(answer)
        assert terminal.status() == status
    assert len(listed(data)) == left


SHARED = """
[journal]
url = "{url}"
lease = 1.0

[tracker]
name = "jsonl"
directory = "{files}"
keep_confirmed = 1.0
"""
TEAM = """
[[team]]
name = "{name}"
experiments = ["{name}-*"]
sha256 = ["{digest}"]
"""
ENDS_WHEN_ASKED = """
import sys, otel_rl
otel_rl.init(experiment=sys.argv[1], trial=sys.argv[2], role="trainer")
otel_rl.log({"loss": 1.0}, step=0)
otel_rl.log({"loss": 1.0}, step=1)
sys.stdin.read()
otel_rl.finish()
"""


@pytest.mark.slow
def test_of_a_database_a_run_and_a_team_go_once_no_bridge_works_on_them(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url, files = postgres.new_url(), tmp_path / "files"
    files.mkdir()
    teams = [
        TEAM.format(name=name, digest=hashlib.sha256(name.encode()).hexdigest())
        for name in ("red", "blue")
    ]
    settings = SHARED.format(url=url, files=files) + "".join(teams)
    keys = [ExperimentKey(*of) for of in (("red-a", "1"), ("red-a", "2"), ("blue-b", "1"))]

    def there() -> set[str]:
        with closing(open_journal(tmp_path, url, max_bytes=1 << 30)) as journal:
            ids = {
                run
                for table in ("runs", "rows", "log", "states")
                for (run,) in in_table(journal, table)
            }
        return {str(key) for key in keys if run_id(*key) in ids}

    def named() -> set[str]:
        return {str(key) for key in keys if any(files.rglob(f"*{run_id(*key)}*"))}

    def deleted(option: str, name: str) -> Finished:
        config = ("--config", tmp_path / "bridge" / "bridge.toml")
        return otel_rl_here("runs", option, name, "--yes", *config, cwd=tmp_path)

    with Bridge(tmp_path / "bridge", settings) as bridge:
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", ENDS_WHEN_ASKED, *key],
                env=clean_environment(
                    tmp_path,
                    OTEL_EXPORTER_OTLP_ENDPOINT=bridge.url,
                    OTEL_EXPORTER_OTLP_HEADERS=f"authorization=Bearer%20{key[0].split('-')[0]}",
                ),
                stdin=subprocess.PIPE,
            )
            for key in keys
        ]
        try:
            wait_until(lambda: there() == named() == {*map(str, keys)}, timeout_s=180)
            refused = deleted("--delete", "red-a/1")
            assert refused.status == 2
            assert "a bridge works on run red-a/1" in refused.err
            refused = deleted("--delete-team", "red")
            assert refused.status == 1
            assert refused.err.count("stays: --delete: a bridge works on run red-a/") == 2
            assert there() == named() == {*map(str, keys)}
        finally:
            for worker in workers:
                worker.communicate(timeout=120)
        # Beside the bridge, which has given them back.
        wait_until(lambda: deleted("--delete", "red-a/1").status == 0, timeout_s=180, look_s=1.0)
        assert there() == named() == {"red-a/2", "blue-b/1"}
        wait_until(lambda: deleted("--delete-team", "red").status == 0, timeout_s=180, look_s=1.0)
        assert there() == named() == {"blue-b/1"}
        assert "the settings have no team 'green'" in deleted("--delete-team", "green").err


def in_table(journal: Journal, table: str) -> list[tuple[str]]:
    with journal.read() as connection:
        return connection.execute(f"SELECT DISTINCT run_id FROM {table}").fetchall()


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
    done = otel_rl_here("runs", "--delete", "grpo/a", "--yes", cwd=tmp_path)
    assert done.status == 0, done.err
    assert [path.name for path in (tmp_path / ".otel_rl").glob("[!.]*")] == [IDS[B]]


@pytest.mark.slow
@pytest.mark.parametrize("is_told_again", [False, True])
def test_files_of_a_run_of_its_own_go_from_directories_that_settings_name(
    tmp_path: Path, *, is_told_again: bool
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    config = tmp_path / "bridge.toml"
    config.write_text(
        f"""[tracker]
name = "jsonl"
directory = "{tmp_path / "files"}"
[archive]
directory = "{tmp_path / "values"}"
"""
    )
    options = ["--config", str(config)]
    archiving = clean_environment(tmp_path, OTEL_RL_BRIDGE__ARCHIVE__ENABLED="true")
    for trial in ("a", "b"):
        names = ["--experiment", "grpo", "--trial", trial]
        line = ["run", *options, *names, "--", sys.executable, "train.py"]
        done = otel_rl(*line, cwd=tmp_path, env=archiving)
        assert done.status == 0, done.err

    def named(key: ExperimentKey) -> set[str]:
        return {
            path.relative_to(tmp_path).parts[0]
            for path in tmp_path.rglob(f"*{IDS[key]}*")
            if path.is_file() or any(path.iterdir())
        }

    everywhere = {".otel_rl", "files", "values"}
    assert named(A) == named(B) == everywhere
    again = options if is_told_again else []
    done = otel_rl("runs", "--delete", "grpo/a", "--yes", *again, cwd=tmp_path)
    assert done.status == 0, done.err
    assert (named(A), named(B)) == (set(), everywhere)


def test_a_service_journal_beside_a_database_keeps_the_files_of_its_run(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    data, url = tmp_path / "data", postgres.new_url()
    with closing(SqliteJournal(data)) as journal:
        write(journal, data)
    with closing(open_journal(tmp_path, url, max_bytes=1 << 30)) as shared:
        RunStore(shared).commit([Commit(A, [Row(0, 1, 1, {"x": 1.0})], 1, b"", step=1)])
    config = tmp_path / "bridge.toml"
    config.write_text(f'data = "{data}"\n' + SHARED.format(url=url, files=tmp_path / "files"))
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / f"{IDS[A]}.jsonl").write_text("")
    done = otel_rl_here("runs", "--config", config, "--delete", "grpo/a", "--yes", cwd=tmp_path)
    assert done.status == 0, done.err
    assert not [*(tmp_path / "files").iterdir()]
    assert all(path.exists() for path in files(data, A))
