"""An online run gets its notes once; what a person writes into them at W&B stays."""

from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.records import Description, ExperimentKey, Row
from otel_rl.run_id import run_id
from tests.support.slow import slow_after
from tests.support.waiting import wait_until
from tests.support.wandb_server import WandbServer

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_login")]

WHY = Description(notes="why", config={"lr": 1})
LATER = replace(WHY, config={"lr": 2}, tags=("late",))


def run_beside_a_journal(directory: Path, description: Description) -> RunInfo:
    (directory / JOURNAL_FILE).touch()
    key = ExperimentKey("grpo")
    attributes = (("transmit_interval_s", "1"),)
    return RunInfo(key, run_id(*key), directory, attributes, description=description)


def session(run: RunInfo, server: WandbServer, edited: str | None, row: int = 0) -> None:
    """A life of a writer, in which a person edits the notes before more becomes known."""
    with WriterProcess("wandb") as writer:
        assert writer.open(run) == row
        if edited is not None:
            server.run(run.run_id).notes = edited
        writer.describe(LATER)
        wait_until(lambda: "late" in server.run(run.run_id).tags, timeout_s=60)
        writer.write([Row(row, row, 1_700_000_000_000_000_000 + row, {"loss": 1.0})])
        writer.close(exit_code=0)


def test_a_run_has_the_notes_of_its_program_and_where_its_journal_is(
    tmp_path: Path, server: WandbServer
) -> None:
    run = run_beside_a_journal(tmp_path, WHY)
    session(run, server, None)
    notes = server.run(run.run_id).notes
    assert notes.startswith("why\n\notel_rl keeps this run")
    assert f"page: otel-rl view {tmp_path}" in notes


@pytest.mark.parametrize(
    ("edited", "variable"),
    slow_after(
        1, [("mine", ""), ("", "of the environment"), ("mine", "of the environment"), ("", "")]
    ),
)
def test_an_edit_stays_whatever_the_run_reports_afterwards(
    tmp_path: Path,
    server: WandbServer,
    monkeypatch: pytest.MonkeyPatch,
    edited: str,
    variable: str,
) -> None:
    if variable:
        monkeypatch.setenv("WANDB_NOTES", variable)
    run = run_beside_a_journal(tmp_path, WHY)
    session(run, server, edited)
    assert server.run(run.run_id).notes == edited
    session(run, server, None, row=1)
    assert server.run(run.run_id).notes == edited


@pytest.mark.slow
def test_an_edit_during_a_resumed_run_stays(tmp_path: Path, server: WandbServer) -> None:
    run = run_beside_a_journal(tmp_path, WHY)
    session(run, server, None)
    session(run, server, "mine", row=1)
    assert server.run(run.run_id).notes == "mine"


@pytest.mark.slow
def test_notes_that_the_program_gives_later_join_those_of_ours(
    tmp_path: Path, server: WandbServer
) -> None:
    run = run_beside_a_journal(tmp_path, Description())
    session(run, server, None)
    assert server.run(run.run_id).notes.startswith("why\n\notel_rl keeps this run")
