"""Diagnoses for the page and for agents: of any length, each made once while nothing is new."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl.bridge.diagnosis.histories import MemoryBound
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.places import JournalPlace
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey, ExperimentStatus
from otel_rl.view.journals import Journals
from otel_rl.view.parts.diagnoses import Asked, Diagnoses, Unread
from tests.support.view_runs import GRPO, T0, LookedAt, write_run

STEPS = 600
RUN = LookedAt(slow=2, steps=STEPS, workers=3)


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[Journals]:
    write_run(tmp_path, RUN)
    journals = Journals(JournalPlace(tmp_path, None, 1 << 30))
    yield journals
    journals.close()


class Opened:
    """A run whose openings are counted."""

    def __init__(self, journals: Journals) -> None:
        found = journals.named(str(GRPO))
        self._open = found.open
        self.found = found._replace(open=self._opened)
        self.times = 0

    def _opened(self) -> AbstractContextManager[Connection]:
        self.times += 1
        return self._open()


def test_a_long_history_is_read_in_parts_and_then_diagnosed(journals: Journals) -> None:
    diagnoses, found = Diagnoses(every_s=0, budget_s=0), journals.named(str(GRPO))
    with pytest.raises(Unread) as unread:
        diagnoses.of(found, Asked(), now_ns=T0)
    assert 0 < unread.value.share < 1
    for _ in range(STEPS):
        try:
            told = diagnoses.of(found, Asked(), now_ns=T0)
        except Unread:
            continue
        break
    assert (told["steps"], told["causes"][0]["worker"]) == ([1, STEPS], "trainer/2")


def test_histories_that_are_too_large_together_are_refused_and_not_read_for_ever(
    journals: Journals, tmp_path: Path
) -> None:
    """While one is read, another one is dropped; each of them alone has room."""
    write_run(tmp_path, replace(RUN, key=ExperimentKey("grpo", "2")))
    both = [journals.named("grpo/1"), journals.named("grpo/2")]
    one = MemoryBound(1 << 30)
    Diagnoses(every_s=0, budget_s=60, bound=one).histories(both[:1])
    bound = MemoryBound(int(1.5 * one.used_bytes))
    diagnoses, told = Diagnoses(every_s=0, budget_s=0, bound=bound), list[str]()
    for _ in range(10 * STEPS):
        try:
            diagnoses.histories(both)
        except Unread:
            continue
        except ConfigError as exc:
            told.append(str(exc))
            break
    opened = Opened(journals)
    with pytest.raises(ConfigError, match="otel-rl compare"):
        diagnoses.histories([opened.found, both[1]])
    assert (len(told), opened.times) == (1, 0)  # who asks again is refused without reading
    assert len(Diagnoses(every_s=0, budget_s=60, bound=bound).histories(both[:1])) == 1


def test_a_run_that_was_begun_anew_is_as_large_as_it_is_now(
    journals: Journals, tmp_path: Path
) -> None:
    """And not refused for what was deleted under its id."""
    old, bound = journals.named(str(GRPO)), MemoryBound(1 << 30)
    Diagnoses(every_s=0, budget_s=60, bound=bound).histories([old])
    diagnoses = Diagnoses(every_s=0, budget_s=60, bound=MemoryBound(bound.used_bytes // 2))
    with pytest.raises(ConfigError, match="otel-rl compare"):
        diagnoses.histories([old])
    write_run(tmp_path / "anew", replace(RUN, steps=5))
    with closing(Journals(JournalPlace(tmp_path / "anew", None, 1 << 30))) as there:
        new = there.named(str(GRPO))
        new = new._replace(overviews=[replace(new.run, begun_ns=old.run.begun_ns + 1)])
        assert new.id == old.id
        assert len(diagnoses.histories([new])) == 1


def test_a_run_that_has_ended_is_diagnosed_once_for_each_question(journals: Journals) -> None:
    diagnoses, opened = Diagnoses(every_s=0, budget_s=60), Opened(journals)
    whole = diagnoses.of(opened.found, Asked(), now_ns=T0)
    times = opened.times
    assert diagnoses.of(opened.found, Asked(), now_ns=T0) == whole
    assert opened.times == times
    few = diagnoses.of(opened.found, Asked((5, 9)), now_ns=T0)
    assert few["steps"] == [5, 9]


@pytest.mark.parametrize(("every_s", "is_kept"), [(600.0, True), (0.0, False)])
def test_a_run_that_goes_on_is_diagnosed_anew_after_a_while(
    journals: Journals, every_s: float, is_kept: bool
) -> None:
    diagnoses, opened = Diagnoses(every_s=every_s, budget_s=60), Opened(journals)
    run = opened.found.run
    running = replace(run, description=replace(run.description, status=ExperimentStatus.RUNNING))
    found = opened.found._replace(overviews=[running])
    diagnoses.of(found, Asked(), now_ns=T0)
    times = opened.times
    diagnoses.of(found, Asked(), now_ns=T0)
    assert (opened.times == times) == is_kept


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(ExperimentStatus.COMPLETE, "healthy"), (ExperimentStatus.RUNNING, "cannot tell")],
)
def test_a_run_without_an_end_whose_bridge_is_gone_is_not_healthy(
    tmp_path: Path, status: ExperimentStatus, verdict: str
) -> None:
    write_run(tmp_path, LookedAt(status=status, steps=50))
    with closing(Journals(JournalPlace(tmp_path, None, 1 << 30))) as journals:
        diagnoses, found = Diagnoses(every_s=0, budget_s=60), journals.named(str(GRPO))
        assert diagnoses.of(found, Asked(), now_ns=T0)["verdict"] == verdict
        of_steps = diagnoses.of(found, Asked((10, 40)), now_ns=T0)
    assert of_steps["verdict"] == "healthy"  # these were seen to their end
