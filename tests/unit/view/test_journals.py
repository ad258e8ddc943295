"""Runs that are found in many journals, and names of runs that are not there."""

import shutil
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.places import JournalPlace
from otel_rl.bridge.journal.reader import looking
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from otel_rl.view import found as found_runs
from otel_rl.view.journals import Journals
from tests.support.view_runs import LookedAt, write_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many")
    for number in range(30):
        write_run(path / str(number), LookedAt(ExperimentKey(f"run-{number:02}"), steps=2))
    write_run(path / "last", LookedAt(ExperimentKey("zephyr", "seed-7"), steps=2))
    return path


@pytest.mark.parametrize("wanted", ["zephir/seed-7", "ZEPHYR/seed", "zephyr/sede-7"])
def test_of_many_runs_a_similar_name_is_told_first(data: Path, wanted: str) -> None:
    with pytest.raises(ConfigError, match=r"There are: zephyr/seed-7, .* and 11 more"):
        Journals(JournalPlace(data, None, 1 << 30)).named(wanted)


def test_of_a_run_that_was_found_only_its_journal_is_opened(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def look(directory: Path) -> AbstractContextManager[Connection]:
        opened.append(directory.name)
        return looking(directory)

    monkeypatch.setattr(found_runs, "looking", look)
    found = Journals(JournalPlace(data, None, 1 << 30))
    for _ in range(3):
        run = found.run(run_id("zephyr", "seed-7"))
        assert run is not None
        assert run.run.key == ExperimentKey("zephyr", "seed-7")
    assert len(opened) == 31 + 2
    assert opened[-2:] == ["last", "last"]


def test_a_run_whose_journal_has_gone_is_found_in_another(tmp_path: Path) -> None:
    for name, now in (("old", 1), ("new", 2)):
        write_run(tmp_path / name, LookedAt(steps=2), now_ns=now)
    place = Journals(JournalPlace(tmp_path, None, 1 << 30))
    run = run_id("grpo", "1")
    changed = []
    for name in ("new", "old"):
        found = place.run(run)
        assert found is not None
        changed.append(found.run.changed_ns)
        shutil.rmtree(tmp_path / name)
    assert changed == [2, 1]
    assert place.run(run) is None


def test_a_run_that_two_journals_have_is_one_run_by_its_name(tmp_path: Path) -> None:
    for name, now in (("old", 1), ("new", 2)):
        write_run(tmp_path / name, LookedAt(steps=2), now_ns=now)
    place = Journals(JournalPlace(tmp_path, None, 1 << 30))
    assert place.named("grpo/1").run.changed_ns == 2
