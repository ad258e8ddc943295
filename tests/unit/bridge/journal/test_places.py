"""A run is in one of the journals that lie side by side."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from otel_rl.bridge.journal.places import Beside, RunNaming, home_of
from otel_rl.bridge.journal.reader import overview
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.records import ExperimentKey

A, A2, A3, B = (
    ExperimentKey("e", "a"),
    ExperimentKey("e", "a-2"),
    ExperimentKey("e", "a-3"),
    ExperimentKey("e", "b"),
)


@dataclass
class Launch:
    """A bridge's journal, and its decisions."""

    journal: SqliteJournal
    naming: RunNaming
    renamed: list[tuple[ExperimentKey, ExperimentKey]] = field(default_factory=list)


class Site:
    """A data directory with a journal for each launch."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self._stack = stack

    def launch(self, name: str) -> Launch:
        directory = self.root / name if name else self.root
        journal = SqliteJournal(directory)
        self._stack.callback(journal.close)
        renamed: list[tuple[ExperimentKey, ExperimentKey]] = []
        spool = Spool(journal)
        beside = Beside(
            self.root,
            directory,
            lambda key, name: renamed.append((key, name)),
        )
        naming = RunNaming(beside, begin=lambda key: spool.begin(key, 1))
        return Launch(journal, naming, renamed)

    def ended(self, name: str, *keys: ExperimentKey) -> None:
        launch = self.launch(name)
        for key in keys:
            launch.naming(key)
        launch.journal.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def test_a_run_that_nobody_has_is_begun_under_its_name(site: Site) -> None:
    launch = site.launch("one")
    assert launch.naming(A) == A
    assert [run.key for run in overview(site.root / "one")] == [A]
    assert home_of(A, site.root) == site.root / "one"


def test_a_run_that_another_launch_has_ended_is_another_run_in_this_one(site: Site) -> None:
    site.ended("one", A, B)
    launch = site.launch("two")
    assert launch.naming(A) == A2
    assert launch.renamed == [(A, A2)]


def test_a_run_that_another_process_writes_gets_the_next_free_name(site: Site) -> None:
    first, second, third = (site.launch(name) for name in ("one", "two", "three"))
    assert [launch.naming(A) for launch in (first, second, third)] == [A, A2, A3]
    assert second.renamed == [(A, A2)]
    assert second.naming(A) == A2
    assert second.renamed == [(A, A2)]


def test_runs_of_one_program_stay_apart_under_their_new_names(site: Site) -> None:
    """A program calls its second run `a-2`, as its first is called here."""
    site.launch("one").naming(A)
    second = site.launch("two")
    found = [second.naming(A), second.naming(A2)]
    assert len({*found}) == 2
    second.journal.close()
    again = site.launch("two")
    assert [again.naming(A), again.naming(A2)] == found


def test_a_bridge_for_any_runs_keeps_its_own(site: Site) -> None:
    """Its journal is the data directory itself, and holds work of others."""
    site.ended("", A)
    assert site.launch("two").naming(A) == A2


def test_after_a_restart_it_decides_the_same(site: Site) -> None:
    first, second = site.launch("one"), site.launch("two")
    assert (first.naming(A), second.naming(A)) == (A, A2)
    second.journal.close()
    assert site.launch("two").naming(A) == A2


def test_what_is_no_journal_is_passed_over(site: Site) -> None:
    (site.root / "other").mkdir()
    (site.root / "other" / "journal.db").write_text("no database")
    assert site.launch("one").naming(A) == A


def test_of_many_that_decide_at_once_each_has_a_run_of_its_own(site: Site) -> None:
    launches = [site.launch(f"launch-{n}") for n in range(8)]
    found: list[ExperimentKey] = []
    threads = [
        threading.Thread(target=lambda launch=launch: found.append(launch.naming(A)))
        for launch in launches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*found}) == len(launches)
