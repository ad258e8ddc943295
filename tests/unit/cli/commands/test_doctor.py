"""What ``otel-rl doctor`` says of the runs of a data directory, also beside a bridge."""

import contextlib
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.postgres import PostgresJournal
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.cli.main import main
from otel_rl.records import Batch, ExperimentKey, Row, Signal
from tests.support.postgres import PostgresServer

A, B = ExperimentKey("grpo"), ExperimentKey("ppo", "try-2")
NOON_NS = 1_700_000_000_000_000_000  # 2023-11-14 22:13:20 UTC


@dataclass(frozen=True)
class Report:
    status: int
    lines: list[str]

    def about(self, name: str) -> str:
        (line,) = [line for line in self.lines if line[5:].startswith(f"{name}:")]
        return line


@pytest.fixture
def doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], Report]:
    monkeypatch.setenv("OTEL_RL_BRIDGE__LISTEN__HTTP", "0")
    monkeypatch.setenv("OTEL_RL_BRIDGE__LISTEN__GRPC", "0")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)

    def run() -> Report:
        status = main(["doctor", "--tracker", "jsonl", "--data", str(tmp_path / "data")])
        return Report(status, capsys.readouterr().out.splitlines())

    return run


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """That of a bridge which is running."""
    journal = SqliteJournal(tmp_path / "data")
    yield journal
    journal.close()


@pytest.fixture
def deliveries(journal: Journal) -> DeliveryStore:
    return made(journal)


def made(journal: Journal) -> DeliveryStore:
    run_store = RunStore(journal, clock_ns=lambda: NOON_NS)
    deliveries = DeliveryStore(journal, "wandb", clock_ns=lambda: NOON_NS)
    for key in (A, B):
        rows = [Row(n, n, n, {"x": 1.0}) for n in range(40)]
        run_store.commit([Commit(key, rows, 40, b"")])
    deliveries.confirmed(A, 20)
    deliveries.confirmed(B, 40)
    return deliveries


@pytest.fixture
def taken() -> Iterator[int]:
    """The port of gRPC that bridges and collectors have by default, and somebody has it."""
    with socket.socket() as other:
        with contextlib.suppress(OSError):  # of another program on this machine
            other.bind(("127.0.0.1", 4317))
            other.listen()
        yield 4317


def test_a_taken_port_is_no_failure_for_who_uses_no_bridge_of_its_own(
    taken: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    status = main(["doctor", "--tracker", "jsonl"])
    said = capsys.readouterr()
    report = Report(status, said.out.splitlines())
    line = report.about("listen grpc")
    assert line.startswith(f"ok   listen grpc: 127.0.0.1:{taken}: Address already in use.")
    assert "`otel-rl run` takes a free port" in line
    assert "all checks passed" in said.err
    assert status == 0


def test_a_taken_port_is_a_failure_for_a_bridge_of_its_own(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_RL_BRIDGE__LISTEN__HTTP", "0")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert main(["doctor", "--tracker", "jsonl", "--data", str(tmp_path / "data")]) == 1
    said = capsys.readouterr()
    assert f"FAIL listen grpc: 127.0.0.1:{taken}: Address already in use" in said.out
    assert said.err.endswith("otel-rl: 1 check failed\n")


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("OTEL_RL_STACK_AFTER", "soon", "must be seconds from 1 on, or off (got 'soon')."),
        (
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
            "/nowhere.pem",
            "No such file or directory (got '/nowhere.pem').",
        ),
    ],
)
def test_a_value_that_no_worker_could_use_fails_with_what_it_must_be(
    variable: str,
    value: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    doctor: Callable[[], Report],
) -> None:
    monkeypatch.setenv(variable, value)
    report = doctor()
    assert report.about("variables") == f"FAIL variables: {variable}: {told}"
    assert report.status == 1


def test_a_disk_with_little_room_is_not_called_full(
    monkeypatch: pytest.MonkeyPatch, doctor: Callable[[], Report]
) -> None:
    usage = shutil.disk_usage(".")._replace(free=2 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert "is nearly full: 2 MiB free." in doctor().about("data")


def test_a_directory_in_use_is_no_failure(
    deliveries: DeliveryStore, doctor: Callable[[], Report]
) -> None:
    report = doctor()
    assert report.status == 0
    assert "in use by process" in report.about("data")


def test_runs_are_listed_while_a_bridge_writes_them(
    deliveries: DeliveryStore, doctor: Callable[[], Report]
) -> None:
    report = doctor()
    assert "1 with all rows written to their tracker" in report.about("runs")
    assert "20 of 40 rows not confirmed by wandb" in report.about("run grpo/default")


def test_an_offline_run_waits_for_rows_only_once_its_bridge_is_gone(
    journal: Journal, deliveries: DeliveryStore, doctor: Callable[[], Report]
) -> None:
    deliveries.opened(A, "/data/wandb/offline-run-20261129_120000-abc")
    assert "2 with all rows written to their tracker" in doctor().about("runs")
    journal.close()
    assert "20 of 40 rows not confirmed by wandb" in doctor().about("run grpo/default")


def test_a_run_that_its_tracker_refuses_fails_and_says_why_and_since_when(
    deliveries: DeliveryStore, doctor: Callable[[], Report]
) -> None:
    deliveries.reported(A, "rejected", "the API key is not valid.")
    report = doctor()
    assert report.status == 1
    assert report.about("run grpo/default") == (
        "FAIL run grpo/default: rejected since 2023-11-14 22:13:20 UTC: "
        "20 of 40 rows not confirmed by wandb. the API key is not valid."
    )


def test_the_time_is_that_of_the_first_failure_after_the_last_success(
    tmp_path: Path, doctor: Callable[[], Report]
) -> None:
    journal = SqliteJournal(tmp_path / "data")
    try:
        now_ns = [NOON_NS]
        made(journal)
        deliveries = DeliveryStore(journal, "wandb", clock_ns=lambda: now_ns[0])
        for minutes, error in enumerate(["away", "", "away", "still away"]):
            now_ns[0] = NOON_NS + minutes * 60_000_000_000
            deliveries.reported(A, "retrying", error)
        line = doctor().about("run grpo/default")
    finally:
        journal.close()
    assert "since 2023-11-14 22:15:20 UTC" in line
    assert "still away" in line


def test_a_run_that_works_again_is_well(
    deliveries: DeliveryStore, doctor: Callable[[], Report]
) -> None:
    deliveries.reported(A, "rejected", "the API key is not valid.")
    deliveries.reported(A, "live", "")
    deliveries.confirmed(A, 40)
    report = doctor()
    assert (report.status, "2 with all rows" in report.about("runs")) == (0, True)


def test_a_finished_offline_run_is_well(
    deliveries: DeliveryStore, doctor: Callable[[], Report]
) -> None:
    deliveries.finish(A, 40)
    assert "2 with all rows" in doctor().about("runs")


def test_batches_that_are_no_rows_yet_are_told_of(
    tmp_path: Path, doctor: Callable[[], Report]
) -> None:
    journal = SqliteJournal(tmp_path / "data")
    try:
        Spool(journal).append([Batch(A, Signal.METRICS, b"x" * 100, received_ns=NOON_NS)])
        assert "100 bytes not made into rows yet" in doctor().about("run grpo/default")
    finally:
        journal.close()


def test_the_journals_of_single_runs_are_found(
    tmp_path: Path, doctor: Callable[[], Report]
) -> None:
    journal = SqliteJournal(tmp_path / "data" / "abcdefgh")
    made(journal)
    journal.close()
    assert "20 of 40 rows" in doctor().about("run grpo/default")


def test_a_journal_that_cannot_be_read_fails_with_a_hint(
    tmp_path: Path, doctor: Callable[[], Report]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / JOURNAL_FILE).write_bytes(b"not a database" * 1000)
    report = doctor()
    assert report.status == 1
    assert "Cannot read the journal" in report.about("runs")


def test_runs_of_a_shared_database_are_shown_with_their_owners(
    postgres: PostgresServer, doctor: Callable[[], Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.new_url().replace("@", ":secret@", 1)
    monkeypatch.setenv("OTEL_RL_BRIDGE__JOURNAL__URL", url)
    with closing(PostgresJournal(url)) as journal:
        made(journal)
        journal.write(lambda c: c.execute("UPDATE runs SET owner = 'host:7:abc'"))
        report = doctor()
    assert report.status == 0
    assert "the database answers" in report.about("journal.url")
    assert "not confirmed by wandb, owned by host:7:abc" in report.about("run grpo/default")
    assert not any("secret" in line for line in report.lines)


def test_a_database_that_does_not_answer_fails(
    doctor: Callable[[], Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_BRIDGE__JOURNAL__URL", "postgresql://u:secret@127.0.0.1:1/x")
    report = doctor()
    assert report.status == 1
    assert "does not answer" in report.about("journal.url")
    assert not any("secret" in line for line in report.lines)


def test_gpus_that_workers_cannot_sample_are_a_failure_with_a_way_out(
    doctor: Callable[[], Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any("gpus:" in line for line in doctor().lines)
    monkeypatch.setenv("OTEL_RL_GPU", "on")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # a machine with GPUs shows none either
    report = doctor()
    place = report.lines.index(report.about("gpus"))
    assert report.lines[place].startswith("FAIL gpus: ")
    assert "OTEL_RL_GPU_ROLES" in report.lines[place + 1]


@pytest.mark.parametrize("fault", ["", "none", "empty", "open"])
def test_the_key_of_each_team_is_looked_at(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OTEL_RL_BRIDGE__LISTEN__HTTP", "0")
    monkeypatch.setenv("OTEL_RL_BRIDGE__LISTEN__GRPC", "0")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    settings = ""
    for team in ("a", "b"):
        key = tmp_path / f"key-{team}"
        key.write_text("" if fault == "empty" and team == "b" else team * 40)
        key.chmod(0o644 if fault == "open" and team == "b" else 0o600)
        if fault == "none" and team == "b":
            key.unlink()
        settings += (
            f'[[team]]\nname = "{team}"\nexperiments = ["{team}/*"]\nsha256 = ["{team * 64}"]\n'
            f'[team.tracker.options]\nkey_file = "{key}"\nbase_url = "http://127.0.0.1:1"\n'
        )
    (tmp_path / "bridge.toml").write_text(settings)
    main(["doctor", "--config", str(tmp_path / "bridge.toml"), "--data", str(tmp_path / "data")])
    lines = capsys.readouterr().out.splitlines()
    faults = [line for line in lines if line.startswith("FAIL") and "wandb.key_file" in line]
    assert [line.partition(": ")[0] for line in faults] == ["FAIL team b"] * bool(fault)
    assert any(line.startswith("ok   team a: wandb account: Found an API key") for line in lines)
