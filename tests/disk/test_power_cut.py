"""What the journal promised before a loss of power is there after it.

A real journal works in a process whose every change of a file is written down. The power fails at
any point of that log, on a disk that keeps only what was synced, and of the rest whatever chance
leaves (disk.py). The journal is opened on what is left, compared with a model, and works on.

Needs a C compiler for the part that writes down (recorder.c).
"""

import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from otel_rl.bridge.journal import Journal
from tests.disk.disk import rebuild
from tests.disk.model import Content, Run, content_of
from tests.disk.recorder import Recorder, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C compiler (cc)")

RUNS = ("a", "b")


@dataclass(frozen=True, slots=True)
class Done:
    """One operation: what it did, and where in the log it began and had returned."""

    apply: Callable[[Content], None]
    start: int
    end: int


class PowerCuts(RuleBasedStateMachine):
    """Batches in, rows out, and the power fails now and then."""

    recorder: ClassVar[Recorder]

    @initialize()
    def begin(self) -> None:
        self.batches = 0
        self.content = Content()  # as at the last loss of power
        self.now = Content()  # if everything was kept since
        self.start_life({})

    @rule(sizes=st.lists(st.sampled_from([10, 3_000, 30_000]), min_size=1, max_size=4))
    def append(self, sizes: list[int]) -> None:
        """Take a few batches at the same moment."""
        names = []
        for size in sizes:
            self.batches += 1
            names.append(f"{self.batches}:{size}")
        start = self.end
        answer = self.recorder.ask("append", names=names)
        offsets, ends = answer["offsets"], answer["ends"]
        assert isinstance(offsets, list)
        assert isinstance(ends, list)
        for offset, name, end in zip(offsets, names, ends, strict=True):
            self.did(_appends(offset, name), start, end)

    @rule(
        rows=st.lists(st.integers(0, 30), min_size=len(RUNS), max_size=len(RUNS)),
        taken=st.integers(0, 6),
        state=st.sampled_from([5, 9_000]),
    )
    def commit(self, rows: list[int], taken: int, state: int) -> None:
        """Make rows of both runs of the first few batches."""
        through = sorted(self.now.batches)[:taken]
        last = through[-1] if through else 0
        kept = f"{self.end}".ljust(state, "s")
        firsts = [self.now.runs.get(name, Run()).rows for name in RUNS]
        runs = list(zip(RUNS, firsts, rows, strict=True))
        self.ask(_commits(runs, kept, last), "commit", runs=runs, state=kept, through=last)

    @rule()
    def reopen(self) -> None:
        """An orderly end and another start."""
        self.ask(lambda content: None, "reopen")

    @rule(back=st.integers(0, 30) | st.integers(0, 2_000), seed=st.integers(0, 1 << 32))
    def fail_power(self, back: int, seed: int) -> None:
        """Lose the power some events ago. The journal is opened on what is left, and compared."""
        events = self.recorder.events()
        self.recorder.ask("close")
        events = events[: max(1, len(events) - back)]
        cut = events[-1].end
        files = rebuild(self.files, events, self.directory, random.Random(seed))
        journal = Journal(_fresh(self.recorder.directory / "check", files))
        try:
            found = content_of(journal)
        finally:
            journal.close()
        self.check(found, cut)
        self.content, self.now = found, found.copy()
        # The power may fail again before the first thing that the journal does there is over.
        self.start_life(files)

    def teardown(self) -> None:
        if hasattr(self, "now"):
            self.fail_power(0, 0)

    def start_life(self, files: Mapping[str, bytes]) -> None:
        self.directory = _fresh(self.recorder.directory / "life", files)
        self.files = files
        self.history: list[Done] = []
        self.end = 0
        self.ask(lambda content: None, "open", directory=str(self.directory))

    def ask(self, apply: Callable[[Content], None], command: str, **arguments: object) -> None:
        answer = self.recorder.ask(command, **arguments)
        assert isinstance(answer["end"], int)
        self.did(apply, self.end, answer["end"])

    def did(self, apply: Callable[[Content], None], start: int, end: int) -> None:
        self.history.append(Done(apply, start, end))
        apply(self.now)
        self.end = max(self.end, end)

    def check(self, found: Content, cut: int) -> None:
        """What had returned is there. What had begun is there wholly, or not at all."""
        possible = [self.content]
        for done in self.history:
            if done.start >= cut:
                break
            applied = [content.copy() for content in possible]
            for content in applied:
                done.apply(content)
            possible = applied if done.end <= cut else [*possible, *applied]
        assert found in possible


def _appends(offset: int, name: str) -> Callable[[Content], None]:
    def apply(content: Content) -> None:
        content.batches[offset] = name

    return apply


def _commits(
    runs: list[tuple[str, int, int]], state: str, through: int
) -> Callable[[Content], None]:
    def apply(content: Content) -> None:
        for name, first, n in runs:
            content.runs[name] = Run(first + n, state)
        for offset in [offset for offset in content.batches if offset <= through]:
            del content.batches[offset]

    return apply


def _fresh(directory: Path, files: Mapping[str, bytes]) -> Path:
    """The directory with these files and nothing else."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """In memory where that is possible: syncing is what is simulated here."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


LIGHT = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_nothing_acknowledged_is_lost_with_the_power(scratch: Path) -> None:
    with Recorder(scratch) as recorder:
        PowerCuts.recorder = recorder
        run_state_machine_as_test(PowerCuts, settings=LIGHT)


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_a_journal_that_does_not_sync_each_commit_is_caught(
    scratch: Path, synchronous: str
) -> None:
    once = settings(LIGHT, phases=[Phase.generate], derandomize=True)
    with Recorder(scratch, synchronous=synchronous) as recorder:
        PowerCuts.recorder = recorder
        # Without any sync the file itself may be damaged before something is found to be lost.
        with pytest.raises((AssertionError, sqlite3.DatabaseError)):
            run_state_machine_as_test(PowerCuts, settings=once)
