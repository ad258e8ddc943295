"""Which rows of ours a run is said to have, whatever the order in which their lines came."""

import json
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from otel_rl.bridge.track import RunInfo
from otel_rl.bridge.track.wandb_account import Account
from otel_rl.bridge.track.wandb_marks import Marks, look_up, mark_key
from otel_rl.errors import TrackerUnavailable
from otel_rl.records import ExperimentKey
from tests.wandb_server import API_KEY, WandbServer

MARK = "otel_rl/row/mine"
SHARED = {"X-WANDB-USE-ASYNC-FILESTREAM": "true"}
CONFIG = json.dumps({"_wandb": {"value": {"t": {"3": [14, 67]}}}})


class Owned:
    """A run in shared mode, to which lines can be added, by clients of ours and of its owner."""

    def __init__(self, server: WandbServer, name: str, *, config: str = CONFIG) -> None:
        self._server = server
        self._name = name
        self._sent = 0
        self.account = Account(
            online=True,
            base_url=server.base_url,
            project="theirs",
            entity="",
            api_key=API_KEY,
            attached_run=name,
        )
        variables = {"name": name, "project": "theirs", "config": config}
        query = "mutation UpsertBucket { x }"
        self._post("/graphql", {"query": query, "variables": variables}, "X-WANDB-CLIENT-ID")

    def add(self, *numbers: int | None) -> None:
        """Lines with these row numbers; None for one of the owner's."""
        lines = [json.dumps({"x": 1} if n is None else {MARK: n}) for n in numbers]
        chunk = {"wandb-history.jsonl": {"offset": self._sent, "content": lines}}
        self._sent += len(lines)
        path = f"/files/test-entity/theirs/{self._name}/file_stream"
        self._post(path, {"files": chunk}, "X-WANDB-ASYNC-CLIENT-ID")

    def marks(self, *, row: int = 0, step: int = 0) -> Marks:
        return Marks(self.account, MARK, row=row, step=step)

    def _post(self, path: str, content: object, client: str) -> None:
        headers = {**SHARED, client: "one", "Content-Type": "application/json"}
        request = urllib.request.Request(
            self._server.base_url + path, json.dumps(content).encode(), headers
        )
        urllib.request.urlopen(request, timeout=10).close()


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
