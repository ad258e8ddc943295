"""Steps that come again, and ranks that come late: one row a step, or one that says it is partial.

All times are given to the aligner, so nothing depends on how fast the machine is.
"""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from otel_rl.records import (
    Decoded,
    Departure,
    Export,
    Measurements,
    Series,
    SpanRecord,
    Worker,
)
from otel_rl.semconv.spec import STEP_SPAN
from tests.support.kept import revived
from tests.support.slow import slow_after
from tests.unit.bridge.rows.steps.jobs import EXPECTED, REPORTED, T0, Job, S, ranks


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("per_export", slow_after(1, [5, 1]))
@pytest.mark.parametrize("lag_s", slow_after(1, [0.2, 0.0]))
def test_a_rollback_of_four_ranks_makes_one_row_a_step_again(
    lag_s: float, per_export: int, restarts: bool
) -> None:
    job = Job(restarts=restarts)
    workers = ranks()
    run = partial(job.run, workers, lag_s=lag_s, per_export=per_export)
    at_s = run(range(401, 501), from_s=0, value=1.0)
    at_s = job.idle(workers, from_s=at_s, for_s=3)
    at_s = run(range(401, 531), from_s=at_s, value=100.0)
    job.look(at_s + 60, everything=True)
    for key in ("trainer/loss", "trainer/kl"):
        assert job.losses(key=key) == [
            *((step, 2.5) for step in range(401, 501)),
            *((step, 101.5) for step in range(401, 531)),
        ]
    assert job.marks() == []
    assert job.aligner.sample_counts.late == 0


def test_a_rollback_in_the_middle_of_an_export_keeps_the_two_passes_apart() -> None:
    """Steps of 20 ms: an export has fifty, and the last of them are open when the loop goes back.

    Each rank reports the old pass's last steps and the new pass's first ones in one export.
    """
    job = Job()
    workers = ranks()
    at_s = job.run(workers, range(1, 501), from_s=0, value=1.0, per_export=50)
    mixed = [*range(501, 526), *range(400, 425)]
    for rank, worker in enumerate(workers):
        made = [(at_s + rank * 0.2 + n * 0.018, step) for n, step in enumerate(mixed)]
        for part, value in ((made[:25], 1.0), (made[25:], 100.0)):
            name = Series(worker, "loss")
            times_ns = [T0 + int(t * S) for t, _ in part]
            point = Measurements(name, times_ns, [value + rank] * 25, [step for _, step in part])
            job.aligner.add(Decoded([point], []), received_ns=T0 + int((at_s + rank * 0.2 + 1) * S))
        job.export(worker, [], at_s + rank * 0.2 + 1)
    at_s = job.run(workers, range(425, 650), from_s=at_s + 1, value=100.0, per_export=25)
    job.look(at_s + 60, everything=True)
    assert job.losses() == [
        *((step, 2.5) for step in range(1, 526)),
        *((step, 101.5) for step in range(400, 650)),
    ]
    assert job.marks() == []


def test_steps_that_are_repeated_before_they_have_a_row_are_kept_apart() -> None:
    job = Job({"wait_s": 1_000, "worker_timeout_s": 1_000})
    leader, behind = ranks(2)
    job.export(behind, [(0.0, 1)], 0.5)
    at_s = job.run([leader], range(1, 21), from_s=0, value=1.0)
    at_s = job.run([leader], range(5, 8), from_s=at_s + 1, value=100.0)
    job.look(at_s + 1, everything=True)
    assert [value for step, value in job.losses() if step == 6] == [1.0, 100.0]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("away_s", slow_after(1, [6.0, 20.0]))
@pytest.mark.parametrize("apart_s", slow_after(1, [0.2, 3.0]))
@pytest.mark.parametrize("back_to", slow_after(1, [400, 499]))
def test_a_job_that_is_started_again_from_a_checkpoint_makes_one_row_a_step_again(
    back_to: int, apart_s: float, away_s: float, known: bool, restarts: bool
) -> None:
    """Other processes, which come one after another, some before the old ones are missed."""
    job = Job(restarts=restarts)
    before, after = ranks(known=known), ranks(life="again", known=known)
    at_s = job.run(before, range(401, 501), from_s=0, value=1.0)
    job.look(at_s + 2)
    at_s += away_s
    again = list(range(back_to, back_to + 60))
    for rank, worker in enumerate(after):
        for n in range(int(3 - apart_s) if rank == 0 else 0):
            job.export(worker, [], at_s - 3 + n)
    at_s = job.run(after, again, from_s=at_s, value=100.0, lag_s=apart_s)
    job.look(at_s + 60, everything=True)
    assert sorted(job.losses()) == sorted(
        [*((step, 2.5) for step in range(401, 501)), *((step, 101.5) for step in again)]
    )
    assert job.marks() == []


def test_a_job_that_goes_on_with_fewer_ranks_is_whole_again() -> None:
    job = Job()
    at_s = job.run(ranks(), range(401, 501), from_s=0)
    after = ranks(3, life="again")
    at_s = job.run(after, range(400, 480), from_s=at_s + 20, value=100.0)
    job.look(at_s + 60, everything=True)
    again = [row for row in job.losses() if row[1] > 50]
    assert again == [(step, 101.0) for step in range(400, 480)]
    # The fourth was waited for.
    assert {step for step, *_ in job.marks()} <= set(range(400, 420))


@pytest.mark.parametrize("known", [True, False])
def test_those_seen_before_are_waited_for_when_a_job_is_started_again(known: bool) -> None:
    """It goes on where it was. The leases of the old processes are over before all have come."""
    job = Job()
    at_s = job.run(ranks(known=known), range(1, 21), from_s=0)
    after = ranks(life="again", known=known)
    at_s = job.run(after, range(21, 60), from_s=at_s + 14, lag_s=4.0)
    job.look(at_s + 60, everything=True)
    assert job.losses() == [(step, 2.5) for step in range(1, 60)]
    assert job.aligner.sample_counts.late == 0


def test_late_ranks_join_their_steps_which_say_how_many_ranks_they_had_before() -> None:
    job = Job({"wait_s": 5.0})
    workers = ranks()
    job.run(workers, range(1, 5), from_s=0)
    at_s = job.run(workers[:2], range(5, 40), from_s=4)
    job.look(at_s)
    for step in range(5, 40):  # two that were kept from running for half a minute
        for rank in (2, 3):
            job.export(workers[rank], [(at_s, step)], at_s + rank * 0.1, value=1.0 + rank)
        at_s += 0.2
    job.look(at_s + 60, everything=True)
    assert job.newest() == dict.fromkeys(range(1, 40), 2.5)
    found = Counter(step for step, _ in job.losses())
    late = [step for step, count in found.items() if count > 1]
    assert late
    assert max(found.values()) == 2
    assert {value for step, value in job.losses() if step in late} == {1.5, 2.5}
    assert sorted(job.marks()) == [(step, has, 4.0) for step in late for has in (2.0, 4.0)]
    assert [row.step for row in job.rows if row.replaces] == late


def test_a_rank_that_begins_late_joins_the_steps_of_the_others() -> None:
    """Three ranks of four are at step 60 when the fourth, on a starved machine, begins."""
    job = Job({"wait_s": 5.0, "start_wait_s": 1.0})
    workers = ranks()
    at_s = job.run(workers[:3], range(1, 60), from_s=0)
    at_s = job.run(workers[3:], range(1, 60), from_s=at_s, every_s=0.5, value=4.0)
    job.run(workers, range(60, 70), from_s=at_s)
    job.look(at_s + 90, everything=True)
    assert job.newest() == dict.fromkeys(range(1, 70), 2.5)
    assert job.repeated() == set(range(1, 60))
    assert {value for _, value in job.losses()} == {2.0, 2.5}


def test_what_is_closed_without_a_rank_says_so() -> None:
    job = Job({"wait_s": 5.0, "worker_timeout_s": 3.0})
    workers = ranks()
    job.run(workers, range(1, 5), from_s=0)
    at_s = job.run(workers[:3], range(5, 20), from_s=4)
    job.look(at_s + 60, everything=True)
    assert [step for step, _ in job.losses()] == list(range(1, 20))
    assert job.marks() == [(step, 3.0, 4.0) for step in range(5, 20)]


def test_ranks_that_were_announced_and_have_not_come_are_missed_in_the_first_rows() -> None:
    job = Job({"wait_s": 5.0})
    job.run(ranks()[:3], range(1, 4), from_s=0)
    job.look(4.9, everything=True)
    assert job.marks() == [(step, 3.0, 4.0) for step in range(1, 4)]


def test_ranks_that_have_said_goodbye_are_not_missed() -> None:
    job = Job()
    workers = ranks()
    job.run(workers, range(1, 5), from_s=0)
    goodbye = Departure(workers[3], T0 + 5 * S, failed=False)
    job.aligner.add(Decoded([], [], departures=[goodbye]), received_ns=T0 + 5 * S)
    at_s = job.run(workers[:3], range(5, 40), from_s=6)
    departures = [Departure(worker, T0 + int(at_s * S), failed=False) for worker in workers[:3]]
    job.aligner.add(Decoded([], [], departures=departures), received_ns=T0 + int((at_s + 1) * S))
    job.look(at_s + 1, everything=True)
    assert job.losses()[-1] == (39, 2.0)
    assert job.marks() == []


def test_only_ranks_that_report_steps_are_missed() -> None:
    """In many programs rank 0 alone reports; and a launcher may count other roles, too."""
    job = Job({"wait_s": 5.0})
    workers = ranks(8)[:4]
    at_s = job.idle(workers, from_s=0, for_s=8)
    at_s = job.run(workers[:1], range(1, 10), from_s=at_s)
    job.look(at_s + 60, everything=True)
    assert len(job.losses()) == 9
    assert job.marks() == []


def test_one_rank_that_is_started_again_alone_joins_the_others_when_it_has_caught_up() -> None:
    job = Job({"wait_s": 5.0})
    workers = ranks()
    at_s = job.run(workers, range(1, 21), from_s=0)
    workers[3] = Worker("trainer", "again", 3, 4)
    step, behind = 21, 10
    while step < 80:
        for rank in range(3):
            job.export(workers[rank], [(at_s + rank * 0.1, step)], at_s + 0.5, value=1.0 + rank)
        made = [(at_s + 0.3 + n * 0.1, behind + n) for n in range(3) if behind + n <= step]
        job.export(workers[3], made, at_s + 0.8, value=4.0)
        behind, step, at_s = min(behind + 3, step + 1), step + 1, at_s + 1
    job.look(at_s + 60, everything=True)
    whole = [row for row in job.rows if "trainer/loss" in row.values and REPORTED not in row.values]
    steps = [row.step for row in whole]
    assert len(steps) == len(set(steps))
    assert set(range(60, 80)) <= set(steps)
    again = [row for row in job.rows if row.values.get("trainer/loss") == 4.0]
    assert {row.step for row in again} >= set(range(10, 20))
    assert {(row.values[REPORTED], row.values[EXPECTED]) for row in again} == {(1.0, 4.0)}
    assert max(Counter(step for step, _ in job.losses()).values()) == 2
    assert job.aligner.sample_counts.late > 0


def test_samples_that_name_a_step_or_two_before_are_of_the_same_pass() -> None:
    """An asynchronous loop names the step by whose policy a sample was made."""
    job = Job()
    solo = ranks(1)
    named = [1, 2, 1, 2, 3, 2, 4, 3, 4, 5, 4, 6, 5, 6, 5]
    series = Series(solo[0], "reward")
    times_ns = [T0 + n * S // 20 for n in range(len(named))]
    point = Measurements(series, times_ns, [float(n) for n in range(len(named))], named)
    job.aligner.add(Decoded([point], [Export(solo[0], times_ns[-1])]), received_ns=T0 + S)
    job.look(60, everything=True)
    expected = {
        step: [float(n) for n, of in enumerate(named) if of == step] for step in range(1, 7)
    }
    assert sorted(job.losses(key="trainer/reward")) == [
        (step, sum(values) / len(values)) for step, values in expected.items()
    ]


def test_an_evaluation_of_an_old_checkpoint_is_no_new_pass() -> None:
    job = Job()
    solo = ranks(1)
    at_s = job.run(solo, range(1, 31), from_s=0)
    job.export(solo[0], [(at_s, 20)], at_s, names=["eval"])
    at_s = job.run(solo, range(31, 41), from_s=at_s + 1)
    job.export(solo[0], [(at_s, 10)], at_s, names=["eval"])  # it took longer
    at_s = job.run(solo, range(41, 51), from_s=at_s + 1)
    job.look(at_s + 60, everything=True)
    assert sorted(step for step, _ in job.losses()) == sorted([*range(1, 51), 10, 20])
    assert [step for step, _ in job.losses(key="trainer/eval")] == [20, 10]
    assert {row.attempt for row in job.rows} == {1}


def test_an_export_that_was_held_back_is_no_new_pass() -> None:
    job = Job({"wait_s": 5.0})
    workers = ranks(2)
    at_s = job.run(workers, range(1, 21), from_s=0)
    held = [(at_s, 21), (at_s + 1, 22)]
    at_s = job.run(workers[:1], [21, 22], from_s=at_s)
    at_s = job.run(workers, range(23, 50), from_s=at_s)
    job.export(workers[1], held, at_s)
    at_s = job.run(workers, range(50, 70), from_s=at_s)
    job.look(at_s + 60, everything=True)
    found = Counter(step for step, _ in job.losses())
    assert {step for step, count in found.items() if count > 1} == {21, 22}
    assert job.marks() == [(step, has, 2.0) for has in (1.0, 2.0) for step in (21, 22)]
    assert {job.newest()[step] for step in (21, 22)} == {1.0}


def test_a_step_is_written_again_when_late_samples_pause_or_after_the_time_it_may_wait() -> None:
    job = Job({"wait_s": 10.0})
    workers = ranks(2)
    job.run(workers, range(1, 21), from_s=0)
    job.look(31, everything=True)
    job.export(workers[0], [(31, 5)], 32, names=["judge"])
    job.look(32.99)
    assert job.losses(key="trainer/judge") == []
    job.look(33.0)
    assert job.losses(key="trainer/judge") == [(5, 1.0)]
    for n in range(40):
        job.export(workers[0], [(40 + n / 2, 6)], 40 + n / 2, names=["judge"])
    job.look(61)
    assert [step for step, _ in job.losses(key="trainer/judge")] == [5, 6, 6]


def test_a_step_waits_for_a_live_rank_as_long_as_it_may_and_no_longer() -> None:
    job = Job({"wait_s": 10.0, "worker_timeout_s": 1000.0})
    workers = ranks(2)
    job.run(workers, range(1, 4), from_s=0)
    job.export(workers[0], [(4, 4)], 5)
    job.export(workers[0], [(5, 5)], 6)
    job.look(14.99)
    assert [step for step, _ in job.losses()] == [1, 2, 3]
    assert [row.step for row in job.look(15.0) if "trainer/loss" in row.values] == [4]
    assert [row.step for row in job.look(15.99) if "trainer/loss" in row.values] == []
    assert [row.step for row in job.look(16.0) if "trainer/loss" in row.values] == [5]


def test_a_window_waits_for_a_live_worker_as_long_as_it_may_and_no_longer() -> None:
    job = Job({"wait_s": 10.0, "worker_timeout_s": 1000.0, "window_s": 5.0})
    workers = ranks(2)
    for rank, worker in enumerate(workers):
        job.export(worker, [], 0.1 + rank)
    point = Measurements(Series(workers[0], "depth"), [T0 + 2 * S], [3.0], [None])
    job.aligner.add(Decoded([point], [Export(workers[0], T0 + 20 * S)]), received_ns=T0 + 20 * S)
    assert not any("trainer/depth" in row.values for row in job.look(29.99))
    assert any("trainer/depth" in row.values for row in job.look(30.0))


def test_the_step_that_was_closed_last_is_closed_and_the_next_is_not() -> None:
    job = Job({"wait_s": 10.0})
    solo = ranks(1)
    job.run(solo, range(1, 21), from_s=0)
    job.look(60, everything=True)
    job.export(solo[0], [(60, 20)], 61, names=["judge"])
    assert job.aligner.sample_counts.late == 1
    job.export(solo[0], [(61, 21)], 62, names=["judge"])
    assert job.aligner.sample_counts.late == 1


def test_the_steps_of_a_second_pass_are_explained_as_well() -> None:
    def root(rank: int, step: int, start_s: float, run: str) -> SpanRecord:
        start_ns = T0 + int(start_s * S)
        return SpanRecord(
            f"{run}{step}.{rank}".encode(), None, (), "trainer", str(rank), "host",
            start_ns, start_ns + S, STEP_SPAN, step=step,
        )  # fmt: skip

    job = Job()
    workers = ranks(2)
    at_s = 0.0
    for run, steps in (("one", range(1, 31)), ("two", range(11, 41))):
        at_s += 20
        for step in steps:
            for rank in range(2):
                spans = [root(rank, step, at_s + rank * 0.1, run)]
                decoded = Decoded([], [Export(workers[rank], 0)], spans=spans)
                received_ns = T0 + int((at_s + 1.5) * S)
                job.aligner.add(decoded, received_ns=received_ns)
            job.export(workers[0], [(at_s, step)], at_s + 1.6)
            job.export(workers[1], [(at_s, step)], at_s + 1.7)
            at_s += 1
    # One that comes late is of a step that was explained.
    late = replace(root(0, 40, at_s - 1, "late"), worker="2")
    job.look(at_s + 30)
    job.aligner.add(Decoded([], [], spans=[late]), received_ns=T0 + int((at_s + 31) * S))
    job.look(at_s + 90, everything=True)
    explained = [row.step for row in job.rows if any(k.startswith("critical") for k in row.values)]
    assert explained == [*range(1, 31), *range(11, 41)]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_job_whose_last_ranks_leave_before_the_next_look_is_started_again(
    restarts: bool,
) -> None:
    """The bridge may restart between the ends of the old processes and the first sample anew."""
    job = Job()
    old = ranks(2, known=False)
    at_s = job.run(old, range(1, 11), from_s=0, value=1.0)
    left_ns = T0 + int(at_s * S) + 1
    departures = [Departure(worker, left_ns, failed=False) for worker in old]
    job.aligner.add(Decoded([], [], departures=departures), received_ns=left_ns)
    job.restarts = restarts
    new = ranks(2, life="new", known=False)
    if restarts:
        job.aligner = revived(job.aligner)
    at_s = job.run(new, range(4, 15), from_s=at_s + 0.5, value=100.0)
    job.look(at_s + 60, everything=True)
    assert job.aligner.sample_counts.late == 0
    assert [step for step, _ in job.losses()] == [*range(1, 11), *range(4, 15)]
