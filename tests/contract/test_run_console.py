"""The lines of the workers' consoles are in the run's console, each once."""

import os
import signal
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.records import CONSOLE, CONSOLE_COLUMNS, ExperimentKey, Row, Table, Value
from otel_rl.run_id import run_id
from tests.support import waiting
from tests.support.wandb_offline import read_offline_run, run_directories
from tests.support.wandb_server import WandbServer

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_login")]

NOON_NS = 1_700_000_000_250_000_000
KEY = ExperimentKey("talkative")
LINES_A_ROW = 3


def info(directory: Path, **attributes: str) -> RunInfo:
    run = run_id(KEY.experiment, KEY.trial)
    return RunInfo(KEY, run, directory, tuple(attributes.items()), journal="j")


def text(line: int) -> str:
    """Empty ones and those that a terminal would treat in another way are lines, too."""
    return ("", " indented", "größe 😀", "x" * 3900, "a\tb")[
        line % 5
    ] + f"{line if line % 5 else ''}"


def expected(rows: int) -> list[str]:
    return [f"[trainer/{line % 2}] {text(line)}" for line in range(rows * LINES_A_ROW)]


def rows(first: int, end: int) -> list[Row]:
    """Every other row has lines; the others have a value."""
    made = []
    for number in range(first, end):
        begin = number * LINES_A_ROW
        lines: list[list[Value]] = [
            [line, NOON_NS, f"trainer/{line % 2}", "stdout", text(line)]
            for line in range(begin, begin + LINES_A_ROW)
        ]
        table = Table([*CONSOLE_COLUMNS], lines)
        made.append(Row(number, number, NOON_NS + number, tables={CONSOLE: table}))
    return made


@pytest.mark.slow
def test_an_offline_run_has_the_lines_after_a_kill(tmp_path: Path) -> None:
    run = info(tmp_path)
    with WriterProcess("wandb") as writer:
        writer.open(run)
        writer.write(rows(0, 5))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
    with WriterProcess("wandb") as writer:
        start = writer.open(run)
        writer.write(rows(start, 10))
        writer.close(exit_code=0)
    (directory,) = run_directories(tmp_path, run.run_id)
    offline = read_offline_run(directory)
    assert "".join(offline.console).splitlines() == expected(10)
    assert [line["_step"] for line in offline.history] == [*range(10)]
    assert not any(CONSOLE in line for line in offline.history)


def at_server(server: WandbServer, run: RunInfo) -> list[str]:
    """The lines without W&B's time."""
    return [line.partition(" ")[2] for line in server.run(run.run_id).lines("output.log")]


def wait_for_rows(server: WandbServer, run: RunInfo, beyond: int) -> None:
    waiting.wait_until(
        lambda: len(server.history(run.run_id)) > beyond, "rows at the server", timeout_s=90
    )


@pytest.mark.slow
def test_the_server_has_each_line_once_however_often_its_writer_dies(
    tmp_path: Path, server: WandbServer
) -> None:
    run = info(tmp_path, transmit_interval_s="1")
    last = 0
    for end in (40, 80, 120):
        with WriterProcess("wandb") as writer:
            start = writer.open(run)
            assert start >= last
            writer.write(rows(start, end))
            last = start
            # The writer dies with its upload somewhere on the way.
            wait_for_rows(server, run, start)
            assert writer.pid is not None
            os.kill(writer.pid, signal.SIGKILL)
    with WriterProcess("wandb") as writer:
        start = writer.open(run)
        writer.write(rows(start, 130))
        writer.close(exit_code=0)
    assert [row["_step"] for row in server.history(run.run_id)] == [*range(130)]
    assert at_server(server, run) == expected(130)
    assert server.run(run.run_id).rewrites == 0
