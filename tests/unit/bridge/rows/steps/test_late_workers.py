"""Rows whose workers come late: one row a step for a job that starts within a minute.

Whatever happens, the newest row of a step is the mean over every worker that has reported it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from otel_rl.records import Decoded, Departure, Export, Measurements, Series, Worker
from tests.support.slow import slow_after
from tests.unit.bridge.rows.steps.jobs import EXPECTED, REPORTED, T0, Job, S, ranks


@dataclass
class Life:
    """A worker that makes steps from ``first`` on, and measures ``value`` in each.

    Attributes:
        begins_s: Its first export.
        until: Its last step is the one before.
        dies: Whether it ends without a word.
        every_s: Duration of a step.
        goes_on: Whether it lives on after its last step.
    """

    worker: Worker
    begins_s: float
    value: float
    until: int = 1_000
    first: int = 0
    dies: bool = False
    every_s: float = 0.05
    goes_on: bool = False


def lived(job: Job, lives: Sequence[Life], *, for_s: float) -> None:
    """Each worker exports once a second what it has done since; rows are looked at between."""
    done = {life.worker.instance: life.first for life in lives}
    ended = set[str]()
    beats = sorted((life.begins_s + n, life.worker.instance) for life in lives for n in range(999))
    by_name = {life.worker.instance: life for life in lives}
    for at_s, name in beats:
        if at_s > for_s or name in ended:
            continue
        life = by_name[name]
        begin = done[name]
        # The first export comes with the start, before any step.
        end = min(life.until, life.first + round((at_s - life.begins_s) / life.every_s))
        done[name] = end
        is_over = end >= life.until and not life.goes_on
        if is_over and life.dies:
            ended.add(name)
        made = [(life.begins_s + (n - life.first) * life.every_s, n) for n in range(begin, end)]
        job.export(life.worker, made, at_s, value=life.value, names=["loss"])
        if is_over and not life.dies:
            ended.add(name)
            bye = Departure(life.worker, T0 + int(at_s * S), failed=False)
            job.aligner.add(Decoded([], [], departures=[bye]), received_ns=T0 + int(at_s * S))
    job.look(for_s + 60, everything=True)


def means(lives: Sequence[Life]) -> Mapping[int, float]:
    """What each step should be."""
    of_step: dict[int, list[float]] = {}
    for life in lives:
        for step in range(life.first, life.until):
            of_step.setdefault(step, []).append(life.value)
    return {step: sum(values) / len(values) for step, values in sorted(of_step.items())}


def staggered(begins_s: Sequence[float], *, known: bool = False, until: int = 1_000) -> list[Life]:
    return [
        Life(worker, begin_s, 1.0 + place, until)
        for place, (worker, begin_s) in enumerate(
            zip(ranks(len(begins_s), known=known), begins_s, strict=True)
        )
    ]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    "begins_s",
    slow_after(1, [[0, 0.8, 2.5, 4], [0, 0.1, 0.2, 0.3], [0, 4, 8, 12]]),
    ids=["4 s", "at once", "12 s"],
)
def test_processes_without_an_index_that_start_one_after_another_have_one_row_a_step(
    begins_s: Sequence[float], restarts: bool
) -> None:
    job, lives = Job(restarts=restarts), staggered(begins_s)
    lived(job, lives, for_s=70)
    assert job.newest() == means(lives)
    assert job.repeated() == set()
    assert job.marks() == []


def test_an_announced_rank_whose_import_takes_forty_seconds_is_waited_for() -> None:
    job, lives = Job(), staggered([0.1 * n for n in range(7)] + [40], known=True, until=800)
    for life in lives:
        life.every_s, life.goes_on = 0.01, True
    lived(job, lives, for_s=90)
    assert job.newest() == means(lives)
    assert job.repeated() == set()


def test_an_announced_rank_that_comes_when_the_others_have_ended_is_waited_for() -> None:
    job = Job()
    for number, worker in enumerate(ranks(2, known=True)):
        now_s = 2.0 + 30 * number
        steps = [(now_s - 2 + 0.1 * n, n) for n in range(20)]
        job.export(worker, steps, now_s, value=1.0 + number, names=["loss"])
        bye = Departure(worker, T0 + int(now_s * S), failed=False)
        job.aligner.add(Decoded([], [], departures=[bye]), received_ns=T0 + int(now_s * S))
        job.look(now_s + 20)
        assert len(job.losses()) == 20 * number
    assert job.newest() == dict.fromkeys(range(20), 1.5)
    assert job.repeated() == set()


def test_the_steps_of_a_process_that_comes_when_rows_are_there_are_written_again() -> None:
    job, lives = Job(), staggered([0, 0.8, 2.5, 20], until=1_200)
    lived(job, lives, for_s=90)
    assert job.newest() == means(lives)
    first = job.losses()[0]
    assert first == (0, 2.0)


def test_a_process_that_joins_later_steps_makes_no_earlier_row_wait_or_come_again() -> None:
    job = Job()
    lives = staggered([0, 0.1, 0.2])
    lives.append(Life(Worker("trainer", "later", None), 25, 9.0, first=500))
    lived(job, lives, for_s=70)
    assert job.newest() == means(lives)
    assert job.repeated() == set()


def test_a_rank_that_is_killed_holds_rows_up_only_until_its_timeout() -> None:
    job, lives = Job(), staggered([0.05 * n for n in range(8)], known=True)
    lives[7].until, lives[7].dies = 100, True
    lived(job, lives, for_s=70)
    assert job.newest() == means(lives)
    assert job.repeated() == set()
    assert all(row.values[REPORTED] == 7 and row.values[EXPECTED] == 8 for row in job.rows
               if REPORTED in row.values)  # fmt: skip


def test_generators_without_steps_are_not_waited_for() -> None:
    job = Job({"start_wait_s": 5.0})
    stepping = Worker("generator", "stepping", None)
    for n in range(10):
        job.export(stepping, [(n, n)], n + 0.5, names=["loss"])
    for n in range(20):
        job.export(Worker("generator", f"new {n}", None), [], 10 + n / 10)
    job.export(stepping, [(10, 10), (11, 11)], 12, names=["loss"])
    assert [step for step, _ in job.losses(key="generator/loss")] == list(range(11))


def test_six_of_eight_ranks_that_go_on_are_all_that_is_expected() -> None:
    job = Job()
    before = staggered([0.05 * n for n in range(8)], known=True, until=200)
    for life in before:
        life.dies = True
    after = [
        Life(Worker("trainer", f"again {n}", n, 6), 30 + n, 100.0, until=600, first=200)
        for n in range(6)
    ]
    lived(job, [*before, *after], for_s=90)
    assert job.newest() == means([*before, *after])
    assert job.repeated() == set()
    assert job.marks() == []


def test_a_worker_that_says_goodbye_before_another_comes_has_its_rows_at_once() -> None:
    job = Job()
    lives = staggered([0], until=20)
    lived(job, lives, for_s=3)
    begun = Job()
    worker = lives[0].worker
    begun.export(worker, [(0.1 * n, n) for n in range(20)], 2, names=["loss"])
    assert begun.losses() == []
    bye = Departure(worker, T0 + int(2.1 * S), failed=False)
    begun.aligner.add(Decoded([], [], departures=[bye]), received_ns=T0 + int(2.1 * S))
    begun.look(3.2)
    assert len(begun.losses()) == 20


def test_the_command_of_otel_rl_run_is_waited_for_by_nobody() -> None:
    job = Job()
    job.aligner.launched = 4711
    worker = Worker("trainer", "one", None)
    series = Series(worker, "loss")
    point = Measurements(series, [T0, T0 + S // 2], [1.0, 2.0], [1, 2])
    export = Export(worker, T0 + S, host="h", pid=4711)
    job.aligner.add(Decoded([point], [export]), received_ns=T0 + S)
    job.look(1)
    assert job.losses() == [(1, 1.0)]


def test_a_row_that_is_written_again_keeps_the_policy_version_of_its_step() -> None:
    job, (first, second) = Job({"start_wait_s": 0.0, "worker_timeout_s": 600.0}), ranks(2)
    for n in range(12):
        at_ns = T0 + n * S
        version = Measurements(Series(first, "rl.policy.version"), [at_ns], [100.0 + n], [None])
        job.aligner.add(Decoded([version], [Export(first, at_ns)]), received_ns=at_ns)
        job.export(first, [(n + 0.1, n)], n + 0.5, names=["loss"])
        if n < 4:
            job.export(second, [(n + 0.1, n)], n + 0.6, names=["loss"])
    job.look(60)
    job.restarts = True
    job.export(second, [(n + 8.1, n) for n in range(4, 12)], 61, names=["loss"])
    job.look(100)
    again = [row for row in job.rows if row.replaces]
    assert {row.step: row.policy_version for row in again} == {n: 100 + n for n in range(4, 12)}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_row_that_is_whole_after_all_says_that_it_is(restarts: bool) -> None:
    job, (first, second) = (
        Job({"start_wait_s": 0.0, "worker_timeout_s": 600.0}, restarts=restarts),
        ranks(2),
    )
    for n in range(6):
        job.export(first, [(n, n)], n + 0.5, names=["loss"])
        if n < 3:
            job.export(second, [(n, n)], n + 0.6, names=["loss"])
    job.look(30)
    assert job.marks() == [(n, 1.0, 2.0) for n in (3, 4, 5)]
    job.export(second, [(n, n) for n in range(3, 6)], 31, names=["loss"])
    job.look(60)
    assert job.marks()[3:] == [(n, 2.0, 2.0) for n in (3, 4, 5)]


def test_an_announced_worker_that_never_comes_is_marked_as_missing() -> None:
    job, lives = Job(), staggered([0, 0.1, 0.2], known=True, until=100)
    for life in lives:
        life.worker = ranks(4)[int(life.value) - 1]
        life.every_s, life.goes_on = 1.0, True
    lived(job, lives, for_s=120)
    assert job.newest() == means(lives)
    assert job.marks() == [(n, 3.0, 4.0) for n in range(100)]


def test_of_announced_workers_one_that_said_goodbye_is_not_missing() -> None:
    job, lives = Job({"forget_s": 60.0}), staggered([0.1 * n for n in range(4)], known=True)
    for life in lives:
        life.every_s, life.until, life.goes_on = 1.0, 300, True
    lives[3].until, lives[3].goes_on = 20, False
    lived(job, lives, for_s=330)
    assert job.newest() == means(lives)
    assert job.marks() == []
