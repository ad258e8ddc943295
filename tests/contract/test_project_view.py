"""A W&B project gets an arranged view with its first row, and a person's view is never touched."""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.records import ExperimentKey, KeySpec, Row
from otel_rl.run_id import run_id
from otel_rl.semconv import names
from otel_rl.semconv.names import METRICS
from tests.support.wandb_server import WandbServer, without_a_login

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_login")]

LOSS = KeySpec("loss", "loss", "trainer", axis="step")
REWARD = KeySpec("trainer/reward/mean", names.RL_REWARD_MEAN, "trainer", axis="step")
ROLLOUTS = KeySpec("reward/rollouts", statistic="table", role="reward")
RANKED = KeySpec("diagnosis/ranked", statistic="table")


def session(directory: Path, trial: str, *keys: Sequence[KeySpec]) -> None:
    """A run in a directory of its own, whose rows bring these keys, one after the other."""
    directory = directory / trial
    directory.mkdir()
    key = ExperimentKey("grpo", trial)
    run = RunInfo(key, run_id(*key), directory, (("transmit_interval_s", "1"),))
    with WriterProcess("wandb") as writer:
        start = writer.open(run)
        rows = [
            Row(n, n + 1, 1_700_000_000_000_000_000 + n, {"loss": 1.0}, new_keys=new)
            for n, new in enumerate(keys)
        ]
        writer.write(rows[start:])
        writer.close(exit_code=0)


def sections(server: WandbServer) -> list[dict[str, Any]]:
    (view,) = server.views.values()
    found: list[dict[str, Any]] = json.loads(view["spec"])["section"]["panelBankConfig"]["sections"]
    return found


def notes(server: WandbServer) -> list[str]:
    """The words that stand in the view."""
    return [
        panel["config"]["value"]
        for section in sections(server)
        for panel in section["panels"]
        if panel["viewType"] == "Markdown Panel"
    ]


def shown(server: WandbServer) -> dict[str, list[str]]:
    """Keys of each section of the view."""
    return {
        section["name"]: [
            key
            for panel in section["panels"]
            if panel["viewType"] != "Markdown Panel"
            for key in panel["config"].get("metrics") or [json.dumps(panel["config"])]
        ]
        for section in sections(server)
    }


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> WandbServer:
    """A server after the first run of a project."""
    home = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch, WandbServer() as server:
        without_a_login(patch, home)
        for name, value in server.environment().items():
            patch.setenv(name, value)
        session(home, "one", [LOSS], [REWARD, ROLLOUTS, RANKED])
    return server


def test_the_first_run_saves_it_with_all_its_keys_and_tables_on_top(first: WandbServer) -> None:
    found = shown(first)
    assert list(found) == ["Tables", "Learning"]
    assert set(found["Learning"]) == {"loss", REWARD.key}
    ranked, rollouts = found["Tables"]
    assert "diagnosis/ranked" in ranked
    assert "reward/rollouts/all" in rollouts


def test_what_is_healthy_stands_beside_the_charts_of_what_is_learned(first: WandbServer) -> None:
    note = next(note for note in notes(first) if "Reward mean" in note)
    assert f"**Reward mean, trainer**: {METRICS['rl.reward.mean'].healthy}" in note


@pytest.mark.slow
def test_a_later_run_replaces_it_only_with_more(tmp_path: Path, server: WandbServer) -> None:
    session(tmp_path, "one", [LOSS])
    session(tmp_path, "two", [REWARD])  # without what the first one shows
    assert shown(server) == {"Learning": ["loss"]}
    session(tmp_path, "three", [LOSS, REWARD])
    assert set(shown(server)["Learning"]) == {"loss", REWARD.key}


@pytest.mark.parametrize(
    "is_deleted",
    [pytest.param(False, id="changed"), pytest.param(True, id="deleted", marks=pytest.mark.slow)],
)
def test_what_a_person_has_made_of_it_stays(
    tmp_path: Path, server: WandbServer, is_deleted: bool
) -> None:
    session(tmp_path, "one", [LOSS])
    (name,) = server.views
    if is_deleted:
        del server.views[name]
    else:
        view = server.views[name]
        view["spec"] = view["spec"].replace("Learning", "My charts")
    session(tmp_path, "two", [LOSS, REWARD])
    assert not server.views if is_deleted else list(shown(server)) == ["My charts"]


@pytest.mark.slow
def test_another_project_of_the_user_has_a_view_of_its_own(
    tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(tmp_path, "one", [LOSS])
    server.views.clear()
    monkeypatch.setenv("WANDB_PROJECT", "other")
    session(tmp_path, "two", [LOSS])
    assert shown(server) == {"Learning": ["loss"]}


@pytest.mark.slow
def test_without_a_place_for_a_note_a_view_is_only_made_where_none_is(
    tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", os.devnull)
    session(tmp_path, "one", [LOSS])
    assert shown(server) == {"Learning": ["loss"]}
    session(tmp_path, "two", [LOSS, REWARD])
    assert shown(server) == {"Learning": ["loss"]}


def test_one_run_at_a_time_decides_about_the_view_by_a_private_note(
    tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, is_held = tmp_path / "state", list[bool]()
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    upsert = server._upsert_view

    def look(variables: dict[str, str]) -> Mapping[str, object]:
        (note,) = (path for path in state.rglob("*") if path.is_file())
        with note.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_held.append(True)
        return upsert(variables)

    monkeypatch.setattr(server, "_upsert_view", look)
    session(tmp_path, "one", [LOSS])
    assert is_held == [True]
    assert {path.stat().st_mode & 0o077 for path in state.rglob("*")} == {0}
