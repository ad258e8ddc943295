"""What a terminal shows of a run, from its journal."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.reader import KnownWorker, looking, read_runs, total_steps
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.journal.state import encode_keys
from otel_rl.bridge.keys import DIAGNOSIS_CAUSE
from otel_rl.bridge.rows.messages import Finding
from otel_rl.cli.run_snapshot import (
    RunWatch,
    Snapshot,
    WorkerLine,
    summary,
    worker_lines,
    worst_first,
)
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts, StepFacts, WorkerFacts
from otel_rl.records import Description, ExperimentKey, KeySpec, RoleStanding, Value
from otel_rl.view.run_data import RunData
from tests.journals.small_run import ENDED, LIVE, T0, Life, begin, start_ns, step

S = 1_000_000_000
RUN = ExperimentKey("grpo", "one")
KEYS = [
    KeySpec("r", "rl.reward.mean"),
    KeySpec("r/max", "rl.reward.mean", statistic="rank_max"),
    KeySpec("lost", "otel_rl.bridge.samples.dropped", statistic="total"),
]


class Kept:
    """A journal that a bridge writes while it is looked at."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.watch = RunWatch()
        self._journal = SqliteJournal(directory)
        self._store = RunStore(self._journal)

    def keep(self, facts: Facts) -> None:
        roles = {"trainer": RoleStanding(2, 1, 0, None)}
        added = {
            Log.HISTORY: (facts.time_ns, facts.encode()),
            Log.KEYS: (0, encode_keys(KEYS)),
        }
        self._store.commit([Commit(RUN, [], 3, b"", added=added, roles=roles, step=7)])

    def look(self, now_ns: int = 0) -> Snapshot:
        with looking(self.directory) as connection:
            (run,) = read_runs(connection)
            return self.watch.look(connection, run, now_ns or None)

    def close(self) -> None:
        self._journal.close()


@contextmanager
def kept(directory: Path) -> Iterator[Kept]:
    journal = Kept(directory)
    yield journal
    journal.close()


def rows(first: int, last: int, every_s: float) -> list[RowFacts]:
    return [
        RowFacts(step, round(step * every_s * S), {"r": step / 100, "r/max": 9.0, "lost": 2.0})
        for step in range(first, last + 1)
    ]


def test_a_run_in_one_line(tmp_path: Path) -> None:
    with kept(tmp_path) as journal:
        journal.keep(Facts(1, 7, rows=rows(0, 7, 0.5)))
        assert summary(journal.look()) == ("step 7  2 steps/s  reward 0.07  workers 1/2  dropped 2")


@pytest.mark.parametrize(
    ("config", "total"),
    [
        ({"max_steps": 100}, 100),
        ({"trainer": {"total_training_steps": 100, "lr": 0.1}}, 100),
        ({"trainer.num_train_steps": 100}, 100),
        ({"max_steps": -1, "epochs": 3}, None),
        ({"max_steps": 100, "num_iterations": 16}, None),  # which one is it?
        ({"max_steps": 500, "num_iterations": 1}, 500),  # updates of a batch, as in TRL
        ({"max_steps": -1, "num_iterations": 2}, None),
        ({}, None),
    ],
)
def test_the_number_of_steps_is_what_the_configuration_tells(
    config: dict[str, Value], total: int | None
) -> None:
    assert total_steps(config) == total


def test_a_run_of_known_length_tells_what_is_left(tmp_path: Path) -> None:
    with kept(tmp_path) as journal:
        journal.keep(Facts(1, 7, rows=rows(0, 7, 0.5)))
        with looking(tmp_path) as connection:
            (run,) = read_runs(connection)
            known = replace(run, description=Description({"max_steps": 107}))
            at_ns = run.changed_ns
            line = summary(journal.watch.look(connection, known, at_ns))
    assert line.startswith("step 7/107  2 steps/s  50 s left  reward 0.07")


def test_the_rate_is_that_of_the_last_half_minute(tmp_path: Path) -> None:
    with kept(tmp_path) as journal:
        journal.keep(Facts(1, 7, rows=rows(0, 99, 0.1)))
        assert journal.look().steps_per_s == 10
        later = [RowFacts(100 + n, (10 + 4 * n) * S, {"r": 1.0}) for n in range(20)]
        journal.keep(Facts(2, 7, rows=later))
        assert journal.look().steps_per_s == 0.25


def test_the_newest_part_of_a_long_history_is_enough(tmp_path: Path) -> None:
    with kept(tmp_path) as journal:
        for second in range(300):
            journal.keep(Facts(second * S, second, rows=rows(second, second, 1)))
        assert (seen := journal.look()).steps_per_s == 1
        assert seen.reward == 2.99


def test_a_run_whose_steps_take_minutes_has_its_reward_too(tmp_path: Path) -> None:
    with kept(tmp_path) as journal:
        journal.keep(Facts(0, 7, rows=rows(7, 7, 1)))
        for second in range(1, 400):
            journal.keep(Facts(second * S, 7))  # heartbeats
        assert journal.look().reward == 0.07
        journal.keep(Facts(401 * S, 7))
        assert journal.look().reward == 0.07


def test_a_run_of_spans_alone_has_the_step_of_its_spans(tmp_path: Path) -> None:
    with kept(tmp_path) as journal:
        journal.keep(Facts(1, 9, steps=[StepFacts(8, 1, [], [], [], "")]))
        with looking(tmp_path) as connection:
            (run,) = read_runs(connection)
            assert journal.watch.look(connection, replace(run, step=None)).step == 8


def process(name: str, *, standing: int = 1, received_ns: int = 0) -> KnownWorker:
    return KnownWorker(name, name, standing, 0, received_ns, 7)


def read(*facts: Facts) -> RunData:
    data = RunData()
    for number, one in enumerate(facts, 1):
        data.add(number, one)
    return data


def phase(
    worker: str, name: str, took_s: float, *, step: int = 1, waits: bool = False
) -> SpanFacts:
    role = worker.partition("/")[0]
    return SpanFacts(step, role, name, worker, waits, 1, took_s, took_s, 0)


def test_a_worker_shows_the_work_in_which_it_differs_from_its_peers() -> None:
    trainers = [f"trainer/{n}" for n in range(5)]
    spans = [
        phase(name, work, took_s, step=step, waits=work == "wait")
        for step in (1, 2)
        for name in trainers
        for work, took_s in (
            ("train", 8.0 if name == "trainer/3" else 2.0),
            ("load", 3.0),
            ("wait", 0.0 if name == "trainer/3" else 6.0),
        )
    ]
    lines = worker_lines([*map(process, trainers)], read(Facts(S, 1, spans=spans)), S)
    slow = lines[3]
    assert (slow.name, slow.phase, slow.phase_s, slow.ratio) == ("trainer/3", "train", 8.0, 4.0)
    assert {(one.phase_s, one.ratio) for one in lines if one != slow} <= {(2.0, 1.0), (3.0, 1.0)}
    assert worst_first(lines)[0] == slow


def test_a_worker_alone_in_its_role_has_no_peers() -> None:
    facts = Facts(S, 1, spans=[phase("judge/0", "score", 2.0)])
    (line,) = worker_lines([process("judge/0")], read(facts), S)
    assert (line.phase, line.phase_s, line.ratio) == ("score", 2.0, None)


@pytest.mark.parametrize(
    ("standing", "now_s", "seen"),
    [(1, 110, ("train", 70.0)), (3, 110, ("sync", 0.125))],  # of a failed one it is over
)
def test_a_worker_that_hangs_shows_its_phase_and_for_how_long(
    standing: int, now_s: int, seen: tuple[str, float]
) -> None:
    hangs = {"trainer/phase/age/train": [WorkerFacts("trainer/0", None, 1, 60.0, 0)]}
    data = read(
        Facts(1 * S, 1, spans=[phase("trainer/0", "sync", 0.125)]),
        Facts(100 * S, 1, workers=hangs),
    )
    (line,) = worker_lines([process("trainer/0", standing=standing)], data, now_s * S)
    assert (line.phase, line.phase_s) == seen


def test_workers_of_an_interrupted_run_are_not_called_alive(tmp_path: Path) -> None:
    def seen() -> tuple[str, list[str]]:
        with looking(tmp_path) as connection:
            (run,) = read_runs(connection, tmp_path)
            snapshot = RunWatch().look(connection, run)
        return snapshot.counted, [one.standing for one in snapshot.workers]

    life = Life(tmp_path)
    life.take(begin(ENDED, 0), begin(ENDED, 1), now_ns=start_ns(ENDED))
    assert seen() == ("2/2", ["alive", "alive"])
    life.journal.close()  # as a bridge that was killed
    assert seen() == ("?/2", ["unknown", "unknown"])


def test_the_accused_the_failed_the_slow_the_late_and_those_behind_come_first() -> None:
    def worker(
        name: str,
        standing: str = "alive",
        step: int | None = 50,
        idle_s: float = 1.0,
        ratio: float | None = 1.0,
    ) -> WorkerLine:
        return WorkerLine(name, standing, step, "train", 1.0, ratio, idle_s)

    workers = [
        worker("env/0", step=None, ratio=None),
        *(worker(f"trainer/{n}", step=50 - n % 2) for n in range(5)),
        worker("trainer/5", step=48),
        worker("trainer/6", "ended", step=10, idle_s=500),
        worker("trainer/7", idle_s=11, ratio=0.9),
        worker("trainer/8", "failed", step=3, idle_s=90),
        worker("trainer/9", ratio=1.6),
        worker("trainer/10", ratio=4.0),
        worker("trainer/11"),
    ]
    assert [one.name for one in worst_first(workers, "straggler trainer/11")] == [
        *("trainer/11", "trainer/8", "trainer/10", "trainer/9", "trainer/5", "trainer/7"),
        "env/0",
        *(f"trainer/{n}" for n in range(5)),
        "trainer/6",
    ]
    assert worst_first([]) == []


@pytest.mark.parametrize(
    ("alive", "expected", "told"), [(1, 2, "1/2"), (None, 2, "?/2"), (0, 0, "-"), (None, 0, "-")]
)
def test_workers_are_counted_of_those_that_should_live(
    alive: int | None, expected: int, told: str
) -> None:
    run = Snapshot(
        key=RUN,
        state="finished",
        step=7,
        steps_per_s=None,
        reward=None,
        alive=alive,
        expected=expected,
        drops=0,
        verdict="",
        goodput={},
        age_s=1.0,
        idle_s=1.0,
        workers=(),
    )
    assert run.counted == told


@pytest.mark.parametrize(
    ("finding", "told"),
    [
        ({"kind": "straggler", "role": "trainer", "worker": "trainer/1"}, "straggler trainer/1"),
        ({"kind": "slow_reward", "role": "judge", "worker": None}, "slow_reward judge"),
        ({"kind": "reward_drop"}, "reward_drop"),
        (None, "no clear cause"),
    ],
)
def test_the_verdict_names_the_first_cause(
    tmp_path: Path, finding: dict[str, Value] | None, told: str
) -> None:
    life = Life(tmp_path)
    slow = Finding(3, T0, "cause", "it is slow", [{"kind": "slow"}])
    last = Finding(4, T0, "cause" if finding else told, "words", [finding] if finding else [])
    for one in (slow, last):
        life.processor.add_finding(ENDED, one)
        life.take(begin(ENDED, 0), now_ns=start_ns(ENDED))
    with looking(tmp_path) as connection:
        (run,) = read_runs(connection, tmp_path)
        snapshot = RunWatch().look(connection, run)
    life.journal.close()
    assert snapshot.verdict == told
    assert summary(snapshot).startswith(f"{told}  ")  # a narrow terminal cuts off the end


def test_a_run_without_a_fault_is_called_healthy_once_it_was_looked_at(tmp_path: Path) -> None:
    """It gets no row of it: a tracker is told of faults."""
    life = Life(tmp_path)
    told = []
    for finding in (None, Finding(4, T0, "healthy", "no fault found")):
        if finding is not None:
            life.processor.add_finding(ENDED, finding)
        life.take(begin(ENDED, 0), now_ns=start_ns(ENDED))
        with looking(tmp_path) as connection:
            (run,) = read_runs(connection, tmp_path)
            told.append(RunWatch().look(connection, run).verdict)
    rows = life.runs.rows(ENDED, start=0, limit=100)
    life.journal.close()
    assert told == ["", "healthy"]
    assert not any(DIAGNOSIS_CAUSE in row.labels for row in rows)


@pytest.mark.parametrize(
    ("kind", "seconds_later", "state"),
    [
        ("stall", 9, "running"),  # a step has come since
        ("stall", 11, "stalled"),
        ("straggler", 11, "running"),
        ("straggler", 61, "stalled"),  # nothing was reported for a minute
    ],
)
def test_a_run_is_stalled_as_soon_as_the_diagnosis_says_so(
    tmp_path: Path, kind: str, seconds_later: int, state: str
) -> None:
    life = Life(tmp_path)
    life.take(begin(ENDED, 0), *step(ENDED, 0, 1), now_ns=start_ns(ENDED))
    cause: dict[str, Value] = {"kind": kind, "role": "trainer", "worker": "trainer/0"}
    life.processor.add_finding(ENDED, Finding(1, T0, "cause", "words", [cause]))
    life.take(begin(ENDED, 1), now_ns=start_ns(ENDED))
    with looking(tmp_path) as connection:
        (run,) = read_runs(connection, tmp_path)
        snapshot = RunWatch().look(connection, run, T0 + seconds_later * S)
    life.journal.close()
    assert (run.step, snapshot.state) == (1, state)


def test_the_last_report_of_a_worker_is_by_the_clock_on_the_wall_after_a_bridges_downtime(
    tmp_path: Path,
) -> None:
    before_ns, after_ns = start_ns(LIVE), start_ns(LIVE) + 3_600 * S
    life = Life(tmp_path)
    life.take(begin(LIVE, 0), begin(LIVE, 1), now_ns=before_ns)
    life.journal.close()
    life = Life(tmp_path)
    life.processor.round(after_ns)  # it cannot have received anything before
    late = [replace(batch, received_ns=after_ns + 2 * S) for batch in step(LIVE, 0, 0)]
    life.take(*late, now_ns=after_ns + 4 * S)
    assert idle(life, tmp_path, after_ns + 10 * S) == [("trainer/0", 8), ("trainer/1", 3_610)]


def test_of_two_downtimes_of_a_bridge_both_count(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.take(begin(LIVE, 0), begin(LIVE, 1), now_ns=start_ns(LIVE))
    now_ns = start_ns(LIVE)
    for number in range(2):
        life.journal.close()
        life = Life(tmp_path)
        now_ns += 1_000 * S
        life.processor.round(now_ns)
        # Its clock is right, and the last export is before the last downtime.
        ranks = (0, 1) if number == 0 else (0,)
        late = [
            replace(batch, received_ns=now_ns)
            for rank in ranks
            for batch in step(LIVE, rank, (now_ns - start_ns(LIVE)) // S - 1)
        ]
        life.take(*late, now_ns=now_ns + S)
    assert idle(life, tmp_path, now_ns + 10 * S) == [("trainer/0", 10), ("trainer/1", 1_010)]


def idle(life: Life, directory: Path, now_ns: int) -> list[tuple[str, int]]:
    with looking(directory) as connection:
        (run,) = read_runs(connection, directory)
        snapshot = RunWatch().look(connection, run, now_ns)
    life.journal.close()
    return [(one.name, round(one.idle_s)) for one in snapshot.workers]
