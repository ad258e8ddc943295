"""One table has the samples of all steps, each once, whatever happens to its writer."""

import json
import os
import signal
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.wandb.growing_tables import (
    MAX_SAMPLES,
    MAX_TABLES,
    GrowingTables,
)
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.records import ExperimentKey, Row, Table
from otel_rl.run_id import run_id
from tests.support.wandb_offline import read_offline_run, run_directories
from tests.support.wandb_server import WandbServer

pytestmark = pytest.mark.usefixtures("no_login")

NOON_NS = 1_700_000_000_250_000_000
KEY = ExperimentKey("rollouts")
COLUMNS = ["step", "policy_version", "prompt", "reward", "trace_id", "worker"]


def info(directory: Path, **attributes: str) -> RunInfo:
    run = run_id(KEY.experiment, KEY.trial)
    return RunInfo(KEY, run, directory, tuple(attributes.items()), journal="j")


def rows(first: int, end: int) -> list[Row]:
    return [
        Row(
            number,
            number,
            NOON_NS + number,
            policy_version=number // 2,
            tables={
                "reward/rollouts": Table(
                    ["step", "prompt", "reward", "trace_id", "worker"],
                    [
                        [number, f"größe {number}", rank / 2, "ab" * 16, str(rank)]
                        for rank in (0, 1)
                    ],
                ),
                "diagnosis/ranked": Table(["cause", "score"], [["x", 1.0]]),
            },
        )
        for number in range(first, end)
    ]


def expected(end: int) -> list[list[object]]:
    return [
        [number, number // 2, f"größe {number}", rank / 2, "ab" * 16, str(rank)]
        for number in range(end)
        for rank in (0, 1)
    ]


def shown(files: dict[str, bytes], reference: dict[str, object]) -> list[list[object]]:
    table = json.loads(files[str(reference["path"])])
    assert table["columns"] == COLUMNS
    found: list[list[object]] = table["data"]
    return found


@pytest.mark.slow
@pytest.mark.process
def test_an_offline_run_has_one_table_of_all_samples(tmp_path: Path) -> None:
    run = info(tmp_path)
    for end in (3, 5):  # reopened: the run is written anew
        with WriterProcess("wandb") as writer:
            writer.open(run)
            writer.write(rows(0, end))
            writer.close(exit_code=0)
    (directory,) = run_directories(tmp_path, run.run_id)
    offline = read_offline_run(directory)
    reference = offline.summary["reward/rollouts/all"]
    assert isinstance(reference, dict)
    files = {reference["path"]: (directory / "files" / reference["path"]).read_bytes()}
    assert shown(files, reference) == expected(5)
    assert len(offline.history) == 5
    assert "diagnosis/ranked/all" not in offline.summary
    assert not any("reward/rollouts/all" in line for line in offline.history)


@pytest.mark.slow
@pytest.mark.process
def test_the_table_at_the_server_has_each_sample_once_after_a_kill(
    tmp_path: Path, server: WandbServer
) -> None:
    run = info(tmp_path, transmit_interval_s="1")
    with WriterProcess("wandb") as writer:
        writer.open(run)
        writer.write(rows(0, 4))
        assert writer.flush(timeout_s=90) == 4
        writer.write(rows(4, 30))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
    with WriterProcess("wandb") as writer:
        start = writer.open(run)
        assert start >= 4
        writer.write(rows(start, 40))
        writer.close(exit_code=0)
    assert [line["_step"] for line in server.history(run.run_id)] == [*range(40)]
    reference = server.run(run.run_id).summary["reward/rollouts/all"]
    assert isinstance(reference, dict)
    assert shown(server.uploads(run.run_id), reference) == expected(40)


class _Run:
    """A run's summary."""

    def __init__(self) -> None:
        self.summary: dict[str, object] = {}


def growing(run: _Run, path: Path | None, start: int, now_s: list[float]) -> GrowingTables:
    return GrowingTables(run.summary.__setitem__, path, start, lambda: now_s[0])


def numbers(run: _Run) -> list[int]:
    table = run.summary["reward/rollouts/all"]
    return [line[0] for line in table.data]  # type: ignore[attr-defined]  # a table of W&B's


def test_a_large_table_keeps_its_newest_samples_and_is_shown_less_often(tmp_path: Path) -> None:
    run, now_s, path = _Run(), [0.0], tmp_path / "x.samples"
    tables = growing(run, path, 0, now_s)
    for row in rows(0, MAX_SAMPLES):
        tables.add(row)
    assert numbers(run) == [0, 0]  # the next ones came too soon
    now_s[0] = 20.0
    tables.show()
    assert numbers(run) == [n for n in range(MAX_SAMPLES // 2, MAX_SAMPLES) for _ in (0, 1)]
    again = growing(run, path, MAX_SAMPLES - 1, now_s)
    again.add(rows(MAX_SAMPLES - 1, MAX_SAMPLES)[0])
    assert numbers(run)[-4:] == [MAX_SAMPLES - 2] * 2 + [MAX_SAMPLES - 1] * 2


def test_of_ten_thousand_steps_a_few_have_a_table_of_their_own() -> None:
    tables = growing(_Run(), None, 0, [0.0])
    logged = [tables.add(row) for row in rows(0, 10_000)]
    own = [row.step for row in logged if "reward/rollouts" in row.tables]
    assert own == [0, *(2**n for n in range(14))]
    assert [row.number for row in logged] == [*range(10_000)]
    assert all("diagnosis/ranked" in row.tables for row in logged)


def test_steps_that_come_late_or_after_a_reopening_have_no_second_table_of_their_octave(
    tmp_path: Path,
) -> None:
    path, table = tmp_path / "x.samples", rows(0, 1)[0].tables

    def own(start: int, steps: list[int], attempt: int = 1) -> list[int]:
        tables = growing(_Run(), path, start, [0.0])
        given = [
            Row(start + n, step, NOON_NS, tables=table, attempt=attempt)
            for n, step in enumerate(steps)
        ]
        return [row.step for row in map(tables.add, given) if "reward/rollouts" in row.tables]

    assert own(0, [127, 128, 127, 129, 126]) == [127, 128]
    assert own(5, [130, 100, 256]) == [256]
    assert own(8, [130, 100], attempt=2) == [130, 100]
    assert own(10, [131, 101, 64], attempt=2) == []


def test_a_run_of_a_day_shows_its_samples_some_thirty_times() -> None:
    shown, now_s = list[str](), [0.0]
    tables = GrowingTables(lambda key, _: shown.append(key), None, 0, lambda: now_s[0])
    for minute, row in enumerate(rows(0, 24 * 60)):
        now_s[0] = 60.0 * minute
        tables.add(row)
    assert set(shown) == {"reward/rollouts/all"}
    assert len(shown) < 35


def test_a_file_that_cannot_be_written_costs_no_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = _Run()
    tables = growing(run, tmp_path / "missing" / "x.samples", 0, [0.0])
    tables.add(rows(0, 1)[0])
    tables.add(rows(1, 2)[0])
    tables.show(everything=True)
    assert numbers(run) == [0, 0, 1, 1]
    assert len(caplog.records) == 1


def test_tables_beyond_the_bound_are_left_out_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = _Run()
    tables = growing(run, None, 0, [0.0])
    table = rows(0, 1)[0].tables["reward/rollouts"]
    for number in range(MAX_TABLES + 3):
        tables.add(Row(number, number, NOON_NS, tables={f"reward/{number}": table}))
    tables.show(everything=True)
    assert len(run.summary) == MAX_TABLES
    assert [f"reward/{MAX_TABLES} " in record.getMessage() for record in caplog.records] == [True]
