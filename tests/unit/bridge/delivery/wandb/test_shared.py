"""Which rows of ours a run is said to have, whatever the order in which their lines came."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.wandb.account import Account
from otel_rl.bridge.delivery.wandb.shared import look_up, mark_key
from otel_rl.errors import TrackerUnavailable
from otel_rl.records import ExperimentKey
from tests.support.wandb_owned import Owned
from tests.support.wandb_server import API_KEY, WandbServer


@pytest.fixture(scope="module")
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server


@pytest.fixture
def owned(server: WandbServer, request: pytest.FixtureRequest) -> Owned:
    return Owned(server, request.node.name)


@pytest.mark.parametrize(
    ("lines", "first_missing"),
    [
        ([], 0),
        ([None, None], 0),
        ([0, 1, None, 2, None], 3),
        ([0, 1, 3, 4], 2),
        ([0, 1, 3, 4, 2], 5),
        ([1, 0, 0, 1, 2], 3),
        ([1, 2, 3], 0),
    ],
)
def test_the_first_missing_number_is_found(
    owned: Owned, lines: Sequence[int | None], first_missing: int
) -> None:
    owned.add(*lines)
    assert owned.marks().read() == first_missing


def test_lines_that_come_later_are_found_by_looking_again(owned: Owned) -> None:
    marks = owned.marks()
    found = []
    for lines in ([0, None], [None, 2], [1], [None], [3, 4]):
        owned.add(*lines)
        found.append(marks.read())
    assert found == [1, 1, 3, 3, 5]


def test_marks_are_found_behind_thousands_of_other_lines(owned: Owned) -> None:
    owned.add(*[None] * 2500, 0, *[None] * 2500, 1)
    assert owned.marks().read() == 2


def test_what_was_known_to_be_there_is_not_looked_for_again(
    owned: Owned, server: WandbServer
) -> None:
    marks = owned.marks()
    owned.add(0, *[None] * 5000)
    marks.read(handed=1)
    before = len(server.paths())
    marks.read(handed=1)
    assert len(server.paths()) - before == 1, "one question: what the last step is"


def test_no_row_is_said_to_be_there_that_was_not_handed_over(owned: Owned) -> None:
    owned.add(0, 2, 3)
    marks = owned.marks()
    marks.read()
    owned.add(1)
    assert marks.read(handed=2) == 2


def test_a_position_goes_on_where_it_was_taken(owned: Owned) -> None:
    owned.add(0, None, 1, None)
    marks = owned.marks()
    marks.read()
    owned.add(2)
    again = owned.marks(row=marks.row, step=marks.step)
    assert again.are_there()
    assert again.read() == 3


def test_a_run_without_the_last_known_row_is_noticed(owned: Owned) -> None:
    owned.add(0, 1)
    assert not owned.marks(row=7, step=1).are_there()


def test_each_run_of_each_journal_has_a_key_of_its_own() -> None:
    runs = [
        RunInfo(ExperimentKey("a"), run_id, Path(), journal=journal)
        for run_id in ("a", "b")
        for journal in ("one", "other")
    ]
    assert len({mark_key(run) for run in runs}) == 4


def test_a_run_that_is_not_there_is_none(server: WandbServer, owned: Owned) -> None:
    assert look_up(owned.account) is not None
    assert look_up(Account(True, server.base_url, "theirs", "", API_KEY, True, "other")) is None


def test_a_run_that_has_not_begun_is_none(server: WandbServer) -> None:
    assert look_up(Owned(server, "of-a-sweep", config="{}").account) is None


def test_a_run_without_the_telemetry_of_shared_mode_is_not_shared(server: WandbServer) -> None:
    config = json.dumps({"_wandb": {"value": {"t": {"3": [14, 15]}}}})
    found = look_up(Owned(server, "alone", config=config).account)
    assert found is not None
    assert not found.is_shared


def test_a_run_that_is_deleted_meanwhile_is_an_error(server: WandbServer, owned: Owned) -> None:
    marks = owned.marks()
    server.reset()
    with pytest.raises(TrackerUnavailable, match="is gone"):
        marks.read()
