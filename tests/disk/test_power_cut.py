"""What the journal promised before a loss of power is there after it.

A real journal works in a process whose every change of a file is written down. The power fails at
any point of that log, on a disk that keeps only what was synced, and of the rest whatever chance
leaves (disk.py). The journal is opened on what is left, compared with a model, and works on.

Needs a C compiler for the part that writes down (recorder.c).
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.errors import JournalError
from tests.disk.model import RUNS, Content, content_of
from tests.disk.power_failure import Life
from tests.disk.recorder import Recorder, compiler
from tests.support.slow import examples

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(compiler() is None, reason="there is no C compiler (cc)"),
]

Change = Callable[[Content], None]


@dataclass(frozen=True, slots=True)
class Done:
    """One operation: what it changed, and where in the log it began and had returned."""

    change: Change
    start: int
    end: int


class PowerCuts(RuleBasedStateMachine):
    """Batches in, rows out, and the power fails now and then."""

    recorder: ClassVar[Recorder]
    broken: ClassVar[list[str]] = []

    @initialize()
    def begin(self) -> None:
        self.batches = 0
        self.start_life(Life(self.recorder), Content())

    @rule(
        requests=st.lists(
            st.lists(
                st.tuples(st.sampled_from(RUNS), st.sampled_from([10, 3_000, 30_000])),
                min_size=1,
                max_size=2,
            ),
            min_size=1,
            max_size=4,
        )
    )
    def append(self, requests: list[list[tuple[str, int]]]) -> None:
        """Take a few requests at the same moment, each with a batch or two."""
        named = [[(run, self.name(run, size)) for run, size in sizes] for sizes in requests]
        start = self.life.end
        ends = self.life.ask("append", requests=named)["ends"]
        assert isinstance(ends, list)
        for request, end in zip(named, ends, strict=True):
            self.did(_appends(request), start, end)

    @rule(
        rows=st.lists(st.integers(0, 30), min_size=1, max_size=len(RUNS)),
        n_batches=st.integers(0, 6),
        state=st.sampled_from([5, 9_000]),
    )
    def commit(self, rows: list[int], n_batches: int, state: int) -> None:
        """Make rows of a run or of both, of the first few batches."""
        start = self.life.end
        kept = f"{start}".ljust(state, "s")
        runs = {
            run: (self.now.runs[run].rows, n, n_batches) for run, n in zip(RUNS, rows, strict=False)
        }
        taken = self.life.ask("commit", runs=runs, state=kept)["taken"]
        assert isinstance(taken, dict)
        self.did(_commits(runs, kept, taken), start, self.life.end)

    @rule(run=st.sampled_from(RUNS))
    def set_aside(self, run: str) -> None:
        """A batch cannot be read."""
        start = self.life.end
        names = self.life.ask("set_aside", run=run)["names"]
        assert isinstance(names, list)
        self.did(_sets_aside(run, names), start, self.life.end)

    @rule(run=st.sampled_from(RUNS), kept=st.integers(0, 20))
    def prune(self, run: str, kept: int) -> None:
        """A tracker has confirmed all rows but a few."""
        start = self.life.end
        below = max(self.now.runs[run].rows - kept, self.now.runs[run].pruned)
        self.life.ask("prune", run=run, below=below)
        self.did(_prunes(run, below), start, self.life.end)

    @rule()
    def reopen(self) -> None:
        """An orderly end and another start."""
        self.life.ask("reopen")

    @rule(back=st.integers(0, 30) | st.integers(0, 2_000), seed=st.integers(0, 1 << 32))
    def fail_power(self, back: int, seed: int) -> None:
        """Lose the power some changes ago."""
        found: list[Content] = []

        def check(journal: SqliteJournal, cut: int) -> None:
            found.append(content_of(journal))
            assert found[0] in self.possible(cut)

        try:
            life = self.life.fail_power(back, seed, check)
        except (AssertionError, JournalError, sqlite3.DatabaseError) as exc:
            self.broken.append(repr(exc))
            raise
        self.start_life(life, found[0])

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.fail_power(0, 0)

    def start_life(self, life: Life, content: Content) -> None:
        self.life = life
        self.content, self.now = content, content.copy()
        self.history: list[Done] = []

    def name(self, run: str, size: int) -> str:
        self.batches += 1
        return f"{run}{self.batches}:{size}"

    def did(self, change: Change, start: int, end: int) -> None:
        self.history.append(Done(change, start, end))
        change(self.now)

    def possible(self, cut: int) -> list[Content]:
        """What had returned is there. What had begun is there wholly, or not at all."""
        possible = [self.content]
        for done in self.history:
            if done.start >= cut:
                break
            changed = [content.copy() for content in possible]
            for content in changed:
                done.change(content)
            possible = changed if done.end <= cut else [*possible, *changed]
        return possible


def _appends(request: Sequence[tuple[str, str]]) -> Change:
    def change(content: Content) -> None:
        for run, name in request:
            content.runs[run].batches.add(name)

    return change


def _commits(
    runs: Mapping[str, tuple[int, int, int]], state: str, taken: Mapping[str, Sequence[str]]
) -> Change:
    def change(content: Content) -> None:
        for name, (first, n, _) in runs.items():
            run = content.runs[name]
            run.rows, run.state = first + n, state
            run.seen.append(state)
            run.batches.difference_update(taken[name])

    return change


def _sets_aside(run: str, names: Sequence[str]) -> Change:
    def change(content: Content) -> None:
        content.runs[run].batches.difference_update(names)
        content.runs[run].aside.update(names)

    return change


def _prunes(run: str, below: int) -> Change:
    def change(content: Content) -> None:
        content.runs[run].pruned = below

    return change


LIGHT = settings(
    max_examples=int(os.environ.get("POWER_CUT_RUNS", examples(60))),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_nothing_acknowledged_is_lost_with_the_power(scratch: Path) -> None:
    with Recorder(scratch) as recorder:
        PowerCuts.recorder = recorder
        run_state_machine_as_test(PowerCuts, settings=LIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_a_journal_that_does_not_sync_each_commit_is_caught(
    scratch: Path, synchronous: str
) -> None:
    once = settings(LIGHT, phases=[Phase.generate], derandomize=True, max_examples=60)
    PowerCuts.broken.clear()
    with Recorder(scratch, synchronous=synchronous) as recorder, contextlib.suppress(Exception):
        PowerCuts.recorder = recorder
        # Threads share commits as it comes, so a failure may not come again, and Hypothesis then
        # has an exception of its own.
        run_state_machine_as_test(PowerCuts, settings=once)
    assert PowerCuts.broken


def test_a_new_directory_is_safe_in_its_parent(scratch: Path) -> None:
    with Recorder(scratch) as recorder:
        recorder.ask("open", directory=str(scratch / "some" / "where"))
        recorder.ask("append", requests=[[(RUNS[0], "a1:10")]])
        events = recorder.events()
    inodes = {event.path: event.inode for event in events if event.kind == "O"}
    synced = {event.inode for event in events if event.kind == "S"}
    made = [event.path for event in events if event.kind == "D"]
    assert made == [str(scratch / "some"), str(scratch / "some" / "where")]
    for path in made:
        assert inodes[path.rpartition("/")[0]] in synced
