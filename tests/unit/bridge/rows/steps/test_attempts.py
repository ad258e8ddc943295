"""Attempts: a run that goes back to an earlier step says of every row which pass it is of."""

from collections.abc import Mapping, Sequence

import pytest

from otel_rl.bridge.rows.steps.step_axis import Attempts
from otel_rl.records import Decoded, Export, Measurements, Row, Series, Worker
from tests.support.kept import revived
from tests.unit.bridge.rows.steps.jobs import T0, Job, S, ranks

LOSS = "trainer/loss"


def chart(rows: Sequence[Row], key: str = LOSS) -> Mapping[int, float]:
    """What a reader sees who takes of each step the row of the newest attempt."""
    newest: dict[int, tuple[int, float]] = {}
    for row in rows:
        if key in row.values:
            one = row.attempt, row.values[key]
            newest[row.step] = max(newest.get(row.step, (0, 0.0)), one)
    return {step: value for step, (_, value) in newest.items()}


def places(rows: Sequence[Row], key: str = LOSS) -> list[tuple[int, int]]:
    """Attempt and step of each row with a key."""
    return [(row.attempt, row.step) for row in rows if key in row.values]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("away_s", "known"),
    [
        (0.5, True),
        # One that does not know its index is told from a second rank by the silence of the first.
        (6.0, False),
        *(pytest.param(s, known, marks=pytest.mark.slow) for s in (6.0, 60.0) for known in (0, 1)),
    ],
)
def test_a_chart_of_a_resumed_run_has_one_value_a_step(
    away_s: float, known: bool, restarts: bool
) -> None:
    """Another process of the same name repeats the steps from a checkpoint on, and goes further."""
    job = Job(restarts=restarts)
    before, after = ranks(1, known=known), ranks(1, life="again", known=known)
    at_s = job.run(before, range(401, 501), from_s=0, value=1.0)
    job.look(at_s + away_s)
    at_s = job.run(after, range(400, 521), from_s=at_s + away_s, value=100.0)
    job.look(at_s + 60, everything=True)
    assert sorted(places(job.rows)) == [
        *((1, step) for step in range(401, 501)),
        *((2, step) for step in range(400, 521)),
    ]
    assert chart(job.rows) == dict.fromkeys(range(400, 521), 100.0)
    assert [row.number for row in job.rows] == list(range(len(job.rows)))
    (second,) = job.aligner.attempts
    assert (second.number, second.first_step) == (2, 400)
    assert job.rows[second.first_row].attempt == 2
    assert {row.attempt for row in job.rows[: second.first_row]} == {1}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_loop_that_goes_back_in_its_process_has_another_attempt_each_time(restarts: bool) -> None:
    job = Job(restarts=restarts)
    workers, at_s = ranks(3), 0.0
    passes = [range(1, 51), range(30, 61), range(45, 71)]
    for number, steps in enumerate(passes):
        at_s = job.run(workers, steps, from_s=at_s + 3, value=100.0 * number)
    job.look(at_s + 60, everything=True)
    assert sorted(places(job.rows)) == [
        (number, step) for number, steps in enumerate(passes, 1) for step in steps
    ]
    assert [(one.number, one.first_step) for one in job.aligner.attempts] == [
        (2, 30),
        (3, 45),
    ]


def test_a_run_that_goes_on_where_it_was_has_one_attempt() -> None:
    job = Job()
    at_s = job.run(ranks(2), range(1, 21), from_s=0)
    at_s = job.run(ranks(2, life="again"), range(21, 41), from_s=at_s + 20)
    job.look(at_s + 60, everything=True)
    assert {row.attempt for row in job.rows} == {1}
    assert not job.aligner.attempts


def test_a_rank_that_is_started_again_alone_begins_no_attempt() -> None:
    job = Job({"wait_s": 5.0})
    workers = ranks(2)
    at_s = job.run(workers, range(1, 21), from_s=0)
    workers[1] = Worker("trainer", "again", 1, 2)
    for step in range(21, 61):
        job.export(workers[0], [(at_s, step)], at_s + 0.5)
        job.export(workers[1], [(at_s, step - 10 + (step - 21) // 4)], at_s + 0.8)
        at_s += 1
    job.look(at_s + 60, everything=True)
    assert {row.attempt for row in job.rows} == {1}


def test_a_single_value_of_an_old_step_begins_no_attempt() -> None:
    """The leading series of the only worker names an old step once, and goes on."""
    job = Job()
    solo = ranks(1)
    at_s = job.run(solo, range(1, 31), from_s=0)
    job.look(at_s + 10)
    job.export(solo[0], [(at_s + 11, 27)], at_s + 11)
    at_s = job.run(solo, range(31, 41), from_s=at_s + 12)
    job.look(at_s + 60, everything=True)
    assert {row.attempt for row in job.rows} == {1}
    assert [step for step, _ in job.losses()] == [*range(1, 31), 27, *range(31, 41)]


def test_a_step_that_is_repeated_after_a_crash_is_of_the_next_attempt() -> None:
    job = Job()
    at_s = job.run(ranks(1), range(1, 31), from_s=0)
    job.look(at_s + 10)
    at_s = job.run(ranks(1, life="again"), range(30, 41), from_s=at_s + 10, value=9.0)
    job.look(at_s + 60, everything=True)
    assert places(job.rows) == [
        *((1, step) for step in range(1, 31)),
        *((2, step) for step in range(30, 41)),
    ]


def test_what_comes_late_of_the_former_pass_is_of_the_former_attempt() -> None:
    job = Job({"wait_s": 5.0})
    workers = ranks(1)
    end_s = job.run(workers, range(1, 51), from_s=0)
    at_s = job.run(workers, range(20, 31), from_s=end_s + 5, value=9.0)
    job.export(workers[0], [(end_s - 1.5, 49)], at_s, names=["judge"])
    at_s = job.run(workers, range(31, 61), from_s=at_s + 1, value=9.0)
    job.look(at_s + 60, everything=True)
    assert places(job.rows, "trainer/judge") == [(1, 49)]


def test_values_by_time_have_the_attempt_in_progress() -> None:
    job = Job()
    solo = ranks(1)[0]
    for start_s, steps in ((0.0, range(1, 21)), (25.0, range(10, 31))):
        for n, step in enumerate(steps):
            at_s = start_s + n
            depth = Measurements(Series(solo, "depth"), [T0 + int(at_s * S)], [1.0], [None])
            job.aligner.add(Decoded([depth], [Export(solo, 0)]), received_ns=T0 + int(at_s * S))
            job.export(solo, [(at_s, step)], at_s + 0.9)
    job.look(120, everything=True)
    rows = [row for row in job.rows if "trainer/depth" in row.values]
    began_ns = T0 + 25 * S
    assert {row.attempt for row in rows if row.time_ns < began_ns} == {1}
    assert {row.attempt for row in rows if row.time_ns > began_ns + 10 * S} == {2}


def test_attempts_of_a_crash_loop_are_bounded() -> None:
    attempts = Attempts()
    for n in range(1_000):
        attempts.begin(first_step=5, since_ns=n + 1)
        attempts.has_row(attempts.newest, n)
    assert attempts.newest == 1_001
    assert len(attempts.begun) <= 100
    assert [attempts.at(time_ns) for time_ns in (1_000, 1_001, 5_000)] == [1_000, 1_001, 1_001]


@pytest.mark.parametrize(("count", "known"), [(2, True), (1, False)])
@pytest.mark.parametrize("failed", [True, False])
def test_a_job_that_is_started_again_with_its_bridge_has_another_attempt(
    failed: bool, count: int, known: bool
) -> None:
    """Under ``otel-rl run``: the bridge ends with the job, and its downtime is no silence."""
    job = Job()
    at_s = job.run(ranks(count, known=known), range(1, 21), from_s=0, per_export=20)
    job.aligner.end(failed=failed)
    job.look(at_s + 1, everything=True)
    job.aligner = revived(job.aligner)
    job.aligner.go_on(T0 + int((at_s + 600) * S))
    job.look(at_s + 601)
    again = ranks(count, life="again", known=known)
    at_s = job.run(again, range(11, 41), from_s=at_s + 601, value=9.0, per_export=30)
    job.aligner.end(failed=failed)
    job.look(at_s + 1, everything=True)
    assert places(job.rows) == [
        *((1, step) for step in range(1, 21)),
        *((2, step) for step in range(11, 41)),
    ]
