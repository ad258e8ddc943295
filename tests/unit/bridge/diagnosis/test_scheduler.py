"""Runs are looked at by another process, and told what is wrong with them."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

from otel_rl.bridge.child_process import ProcessEnded
from otel_rl.bridge.counters import Counter, Counters, Where
from otel_rl.bridge.diagnosis import scheduler
from otel_rl.bridge.diagnosis.process import (
    DiagnosisProcess,
    arguments_of,
    environment_of,
)
from otel_rl.bridge.diagnosis.scheduler import DiagnosisScheduler
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.places import JournalPlace
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.keys import alert_text
from otel_rl.bridge.rows.messages import Finding, NewFindings
from otel_rl.bridge.rows.run import Run
from otel_rl.diagnose.history.records import Facts
from otel_rl.errors import JournalUnavailable
from otel_rl.records import Description, ExperimentKey, ExperimentStatus, Row
from tests.support.kept import revived
from tests.support.waiting import wait_until
from tests.unit.diagnose.standing import hung
from tests.unit.diagnose.worlds import World

pytestmark = pytest.mark.process

KEY = ExperimentKey("-grpo", "slow")  # a name that looks like an option
DEADLINE_S = 90.0
MAX_BYTES = 1 << 30


def judges_are_slow(role: str, phase: str, index: int, step: int) -> float:
    return 20.0 if (role, phase) == ("judge", "score") and step >= 40 else 1.0


class Rows:
    """What makes rows of runs: those it has, how far they are, and what they are told."""

    def __init__(self, keys: Sequence[ExperimentKey]) -> None:
        self.keys = keys
        self.newest: tuple[int, int] | None = None
        self.told: list[tuple[ExperimentKey, Finding]] = []

    def begun(self) -> Sequence[ExperimentKey]:
        return self.keys

    def progress(self, _key: ExperimentKey) -> tuple[int, int] | None:
        return self.newest

    def add_finding(self, key: ExperimentKey, finding: Finding) -> None:
        self.told.append((key, finding))


class Bench:
    """A run store with one run, and a watch over it."""

    def __init__(
        self,
        directory: Path,
        *,
        every_s: float,
        arguments: Sequence[str] = (),
        keys: Sequence[ExperimentKey] = (KEY,),
        last_timeout_s: float = DEADLINE_S,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.journal = SqliteJournal(directory)
        self.run_store = RunStore(self.journal)
        self.counters = Counters()
        self.rows = Rows(keys)
        self.told = self.rows.told
        self.arguments = [*arguments_of(JournalPlace(directory, None, MAX_BYTES)), *arguments]
        self.watch = DiagnosisScheduler(
            self.run_store,
            self.rows,
            DiagnosisProcess(environment, self.arguments),
            every_s=every_s,
            counters=self.counters,
            clock_ns=time.time_ns,
            last_timeout_s=last_timeout_s,
        )

    def end(self) -> None:
        """The run is over."""
        over = Description(status=ExperimentStatus.COMPLETE)
        self.run_store.commit(
            [Commit(KEY, [], self.run_store.next_row(KEY), b"", description=over)]
        )

    def learn(self, world: World, key: ExperimentKey = KEY) -> None:
        """A run comes as far as the world does."""
        for facts in world.facts():
            self.comes_to(facts, key)

    def comes_to(self, facts: Facts, key: ExperimentKey = KEY) -> None:
        """A run has a row and a snapshot more."""
        number = self.run_store.next_row(key)
        row = Row(number, facts.step, facts.time_ns, {"x": 1.0})
        history = facts.time_ns, facts.encode()
        self.run_store.commit([Commit(key, [row], number + 1, b"", added={Log.HISTORY: history})])
        self.rows.newest = facts.time_ns, facts.step


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**arguments: object) -> Bench:
        made.append(Bench(tmp_path, **arguments))  # type: ignore[arg-type]  # as given
        return made[-1]

    yield make
    for it in made:
        it.watch.stop()


def test_a_run_is_told_what_is_wrong_with_it_once_it_has_come_somewhere(
    bench: Callable[..., Bench],
) -> None:
    it = bench(every_s=0.1)
    it.watch.start()
    it.learn(World(steps=70, slower=judges_are_slow))
    wait_until(lambda: any(f.causes for _, f in it.told), "a finding", timeout_s=DEADLINE_S)
    it.watch.stop()
    key, finding = it.told[-1]
    assert key == KEY
    assert finding.verdict == "cause"
    assert finding.causes[0]["kind"] == "slow_reward"
    assert it.counters.value(Counter.EXCEPTIONS, reason=Where.WATCH) == 0
    it.journal.close()


def test_the_last_look_is_at_what_has_come_since_of_runs_that_have_ended(
    bench: Callable[..., Bench],
) -> None:
    it = bench(every_s=3600)
    it.watch.start()
    it.learn(World(steps=70, slower=judges_are_slow))
    it.watch.stop()
    it.watch.look_last()  # it goes on under the next bridge
    assert it.told == []
    it.end()
    it.watch.look_last()
    it.watch.look_last()  # there is nothing new
    assert [finding.causes[0]["kind"] for _, finding in it.told] == ["slow_reward"]
    it.journal.close()


def test_a_run_is_not_told_what_is_wrong_with_one_whose_names_are_the_same_text(
    bench: Callable[..., Bench],
) -> None:
    healthy, ill = ExperimentKey("a/b", "c"), ExperimentKey("a", "b/c")
    it = bench(every_s=0.1, keys=[healthy])
    it.learn(World(steps=70, seed=1), healthy)
    it.learn(World(steps=70, slower=judges_are_slow), ill)
    it.watch.start()
    wait_until(lambda: bool(it.told), "a look", timeout_s=DEADLINE_S)
    it.watch.stop()
    assert [(key, finding.verdict) for key, finding in it.told] == [(healthy, "healthy")]
    it.journal.close()


def test_a_run_that_begins_to_stand_still_is_told_of_it_at_once_and_once(
    bench: Callable[..., Bench],
) -> None:
    it = bench(every_s=3600)  # the time between two looks does not come
    told_s: list[float] = []
    for facts in hung(0.2, 50, 60):  # fewer rows than any other look wants
        it.comes_to(facts)
        before = len(it.told)
        it.watch.look()
        told_s += [facts.time_ns / 1e9 - 100 - 50 * 0.2] * (len(it.told) - before)
    new = NewFindings()
    for _, finding in it.told:
        new.add(finding)
    (finding,) = [one for one in new.take() if not one.is_update]
    assert finding.causes[0]["kind"] == "stall"
    assert 10 <= told_s[0] <= 15
    assert len(it.told) <= 4  # looks beyond the share of the CPU
    it.journal.close()


def test_a_run_that_only_tells_that_it_lives_is_looked_at_again(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_SHARE", 1e9)
    it = bench(every_s=1e-9)
    it.learn(World(steps=40))
    it.watch.look()
    it.watch.look()  # nothing has come
    assert len(it.told) == 1
    assert it.rows.newest is not None
    newest_ns, step = it.rows.newest
    it.rows.newest = newest_ns + 1, step  # no row has
    it.watch.look()
    assert len(it.told) == 2
    it.watch.stop()
    it.journal.close()


@pytest.mark.parametrize(("share", "looks"), [(1e-9, 1), (1e9, 2)], ids=["spent", "left"])
def test_the_next_look_waits_until_it_is_within_the_share_of_the_cpu(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, share: float, looks: int
) -> None:
    monkeypatch.setattr(scheduler, "_SHARE", share)
    monkeypatch.setattr(scheduler, "_FIRST_PAUSE_S", DEADLINE_S)
    it = bench(every_s=1e-9)
    *before, last = World(steps=40).facts()
    for facts in before:
        it.comes_to(facts)
    it.watch.look()
    it.comes_to(last)
    it.watch.look()
    assert len(it.told) == looks
    it.watch.stop()
    it.journal.close()


def test_the_run_that_was_looked_at_longest_ago_comes_first(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_SHARE", 1e9)
    other = ExperimentKey("grpo", "other")
    it = bench(every_s=1e-9, keys=[KEY, other])
    it.learn(World(steps=30))
    it.watch.look()
    for facts in World(steps=30).facts():
        it.comes_to(facts, other)
    it.comes_to(World(steps=31).facts()[-1])
    it.watch.look()
    assert [key for key, _ in it.told] == [KEY, other, KEY]
    it.watch.stop()
    it.journal.close()


def test_a_run_that_has_ended_is_not_looked_at_because_it_makes_no_step(
    bench: Callable[..., Bench],
) -> None:
    it = bench(every_s=3600)
    *before, last = hung(0.2, 50, 60)
    for facts in before[:12]:
        it.comes_to(facts)
        it.watch.look()
    it.end()
    it.rows.newest = last.time_ns, last.step
    it.watch.look()
    assert it.told == []
    it.journal.close()


@pytest.mark.parametrize(("every_s", "steps"), [(0, 70), (3600, 5)], ids=["off", "too short"])
def test_nobody_is_asked_where_nothing_can_be_said(
    bench: Callable[..., Bench], every_s: float, steps: int
) -> None:
    it = bench(every_s=every_s)
    it.learn(World(steps=steps, slower=judges_are_slow))
    it.end()
    it.watch.start()
    it.watch.stop()
    it.watch.look_last()
    assert it.told == []
    it.journal.close()


def test_a_look_that_fails_is_counted_and_harms_nobody(bench: Callable[..., Bench]) -> None:
    it = bench(every_s=3600, arguments=["--no-such-option"])
    it.learn(World(steps=70))
    it.end()
    it.watch.start()
    it.watch.stop()
    it.watch.look_last()
    assert it.told == []
    assert it.counters.value(Counter.EXCEPTIONS, reason=Where.WATCH) == 1
    it.journal.close()


def test_a_look_that_takes_too_long_is_counted_and_said_in_a_line(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    # Its process stops before it can answer.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    it = bench(every_s=3600, last_timeout_s=0.001, environment={"PYTHONPATH": str(tmp_path)})
    it.learn(World(steps=70))
    it.end()
    it.watch.start()
    it.watch.stop()
    it.watch.look_last()
    assert it.told == []
    assert it.counters.value(Counter.EXCEPTIONS, reason=Where.WATCH) == 1
    assert "took too long" in caplog.text
    assert "Traceback" not in caplog.text
    it.journal.close()


def test_a_process_that_dies_is_counted_and_the_next_look_has_another(
    bench: Callable[..., Bench],
) -> None:
    it = bench(every_s=0.1)
    it.learn(World(steps=70, slower=judges_are_slow))
    process = DiagnosisProcess({}, it.arguments)
    healthy = process.ask(KEY, [KEY], DEADLINE_S)
    assert healthy.is_whole
    assert not process.ask(KEY, [KEY], DEADLINE_S).is_whole
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)  # so that it is killed before it can answer
    killer = threading.Timer(0.2, os.kill, (process.pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(ProcessEnded, match="-9"):
        process.ask(KEY, [KEY], DEADLINE_S)
    killer.join()
    again = process.ask(KEY, [KEY], DEADLINE_S)
    assert again.is_whole  # read anew
    assert again.report == healthy.report
    process.end()
    it.journal.close()


def test_an_interrupt_ends_a_process_only_if_it_is_asked(bench: Callable[..., Bench]) -> None:
    it = bench(every_s=0.1)
    it.learn(World(steps=70))
    process = DiagnosisProcess({}, it.arguments)
    process.ask(KEY, [KEY], DEADLINE_S)
    idle = process.pid
    process.interrupt()
    with pytest.raises(ProcessEnded):
        process.ask(KEY, [KEY], DEADLINE_S)
    process.resume()
    assert not process.ask(KEY, [KEY], DEADLINE_S).is_whole
    assert process.pid == idle
    assert idle is not None
    os.kill(idle, signal.SIGSTOP)  # so that it is asked until the interrupt
    interrupt = threading.Timer(0.2, process.interrupt)
    interrupt.start()
    with pytest.raises(ProcessEnded):
        process.ask(KEY, [KEY], DEADLINE_S)
    interrupt.join()
    process.end()
    it.journal.close()


def test_the_last_look_asks_the_process_of_those_before(bench: Callable[..., Bench]) -> None:
    it = bench(every_s=0.1)
    it.learn(World(steps=70))
    it.watch.start()
    wait_until(lambda: bool(it.told), "a look", timeout_s=DEADLINE_S)
    (before,) = children(it)
    it.watch.pause()
    assert children(it) == [before]
    it.end()
    it.learn(World(steps=70, slower=judges_are_slow))
    it.watch.look_last()
    assert len(it.told) == 2
    assert children(it) == []
    it.journal.close()


def children(it: Bench) -> list[int]:
    """Processes that look at this journal; other tests' may end meanwhile."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a ZombieProcess is one, too
            if it.arguments[1] in child.cmdline():
                found.append(child.pid)
    return found


def test_a_journal_that_is_away_for_a_while_ends_no_watch(bench: Callable[..., Bench]) -> None:
    it = bench(every_s=0.1)
    asked: list[int] = []

    class Away(Rows):
        def begun(self) -> Sequence[ExperimentKey]:
            asked.append(len(asked))
            if len(asked) < 3:
                raise JournalUnavailable("The database does not answer.", hint="Look at it.")
            return self.keys

    it.watch = DiagnosisScheduler(
        it.run_store,
        Away([KEY]),
        DiagnosisProcess({}, []),
        every_s=3600,
        counters=it.counters,
        clock_ns=time.time_ns,
    )
    it.watch.start()
    wait_until(lambda: len(asked) > 3, "a look after the journal came back", timeout_s=DEADLINE_S)
    it.watch.stop()
    assert it.counters.value(Counter.EXCEPTIONS, reason=Where.WATCH) == 0
    it.journal.close()


def finding(kind: str | None, *, worker: str = "trainer/1", step: int = 7) -> Finding:
    causes: list[Mapping[str, object]] = []
    if kind is not None:
        causes = [
            {"kind": kind, "role": "trainer", "worker": worker, "score": 0.9, "words": "slow"}
        ]
    verdict = "healthy" if kind is None else "cause"
    return Finding(step, 10**18, verdict, "it is slow", causes)


def rows(aligner: Run) -> list[Row]:
    return aligner.close(2 * 10**18)


def test_a_finding_is_a_row_with_labels_and_one_with_a_table() -> None:
    aligner = Run()
    aligner.findings.add(finding("straggler"))
    labelled, ranked = rows(aligner)
    assert (labelled.number, labelled.step, labelled.values) == (0, 7, {"diagnosis/causes": 1})
    assert labelled.labels == {
        "diagnosis/verdict": "cause",
        "diagnosis/cause": "straggler",
        "diagnosis/worker": "trainer/1",
        "diagnosis/alert": "it is slow",
    }
    table = ranked.tables["diagnosis/ranked"]
    (cause,) = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert (cause["rank"], cause["kind"], cause["phase"]) == (1, "straggler", None)


def test_only_what_is_news_is_told_also_after_a_restart() -> None:
    aligner = Run()
    aligner.findings.add(finding(None))
    assert rows(aligner) == []  # nothing was wrong before, either
    aligner.findings.add(finding("straggler"))
    assert len(rows(aligner)) == 2
    aligner = revived(aligner)
    aligner.findings.add(finding("straggler", step=9))
    assert rows(aligner) == []
    aligner.findings.add(finding("straggler", worker="trainer/0"))
    assert len(rows(aligner)) == 2
    aligner.findings.add(finding(None))
    (well,) = rows(aligner)
    labels = {f"diagnosis/{name}": "none" for name in ("cause", "worker", "alert")}
    assert well.labels == {"diagnosis/verdict": "healthy", **labels}
    assert alert_text(well.labels) is None


def test_the_process_outlives_a_database_that_does_not_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shared = JournalPlace(tmp_path, "postgresql://u:secret@127.0.0.1:1/none", MAX_BYTES)
    process = DiagnosisProcess(environment_of(shared), arguments_of(shared))
    pids = []
    for _ in range(2):
        with pytest.raises(JournalUnavailable, match="does not answer"):
            process.ask(KEY, [], DEADLINE_S)
        pids.append(process.pid)
    process.end()
    assert pids[0] == pids[1]
    assert capfd.readouterr().err == ""
