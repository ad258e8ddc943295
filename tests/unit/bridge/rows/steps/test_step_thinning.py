"""A run of more rows a minute than its tracker should get has rows of fewer steps."""

from collections import Counter as Counts
from itertools import pairwise

from otel_rl.bridge.rows.row_maker import StepThinning
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Decoded, Export, Measurements, Row, Series, Worker

S = 1_000_000_000
MINUTE = 60 * S
T0 = 28_333_333 * MINUTE

TRAINER = Worker("trainer", "t0", index=0, count=1)
GENERATOR = Worker("generator", "g0", index=0, count=1)

LOSSES = {"trainer/loss", "generator/train/loss"}


def kept(thinning: StepThinning, steps: range, per_s: float, most: int) -> list[int]:
    found = []
    for step in steps:
        time_ns = T0 + int(step / per_s * S)
        if thinning.keeps(step, time_ns, most):
            thinning.count(time_ns, most)
            found.append(step)
    return found


def test_a_run_below_the_bound_keeps_every_step() -> None:
    found = kept(StepThinning(), range(1800), per_s=15, most=1000)
    assert found[:500] == [*range(500)]
    assert found[-900:] == [*range(900, 1800)], "it is known that the second minute has room"


def test_without_a_bound_every_step_is_kept() -> None:
    assert len(kept(StepThinning(), range(100_000), per_s=1e6, most=0)) == 100_000


def test_no_minute_has_more_rows_than_the_bound() -> None:
    found = kept(StepThinning(), range(100_000), per_s=333, most=1000)
    by_minute = Counts(int(step / 333 // 60) for step in found)
    assert max(by_minute.values()) <= 1000
    # From the second minute on the distance is known, and steps are even.
    later = [step for step in found if step / 333 >= 60]
    assert {b - a for a, b in pairwise(later)} == {32}


def test_the_first_minute_thins_out_and_has_no_gap() -> None:
    found = kept(StepThinning(), range(3000), per_s=50, most=1000)
    distances = [b - a for a, b in pairwise(found)]
    assert found[:500] == [*range(500)]
    assert max(distances) <= 64
    assert found[-1] >= 3000 - 64


def test_every_step_is_kept_again_once_a_minute_would_have_had_room() -> None:
    thinning = StepThinning()
    kept(thinning, range(6000), per_s=100, most=1000)  # the first minute
    for step in range(600):  # the second, in which a tenth as many come
        thinning.keeps(step, T0 + MINUTE + step * S // 10, 1000)
    assert thinning.keeps(7, T0 + 2 * MINUTE, 1000)


def test_other_rows_take_room_and_are_never_left_out() -> None:
    thinning = StepThinning()
    for _ in range(1000):
        thinning.count(T0, 1000)
    assert not thinning.keeps(0, T0, 1000)
    assert thinning.keeps(0, T0 + 5 * MINUTE, 1000)


def test_a_late_row_counts_as_of_the_present_minute() -> None:
    thinning = StepThinning()
    kept(thinning, range(500), per_s=1000, most=1000)
    assert not thinning.keeps(901, T0 - MINUTE, 1000)
    assert thinning.keeps(902, T0 - MINUTE, 1000)


def rows_of(aligner: Run, steps: range) -> list[Row]:
    for worker in (TRAINER, GENERATOR):
        series = Series(worker, "rl.train.loss", "1", ())
        times = [T0 + step * S // 100 for step in steps]
        points = Measurements(series, times, [float(step) for step in steps], [*steps])
        aligner.add(Decoded([points], [Export(worker, 0)]), received_ns=times[-1])
    return [*aligner.close(T0 + 100 * S, everything=True)]


def test_all_roles_keep_the_same_steps_with_their_own_values_and_the_rest_is_counted() -> None:
    steps = range(400)
    aligner = Run(AlignSettings(max_rows_per_minute=200))
    rows = [row for row in rows_of(aligner, steps) if row.values.keys() & LOSSES]
    assert 150 < len(rows) <= 200
    assert all(row.values[key] == row.step for row in rows for key in row.values.keys() & LOSSES)
    roles = [{row.step for row in rows if key in row.values} for key in sorted(LOSSES)]
    assert len(roles[0] ^ roles[1]) <= 8, "one each time that the distance grew"
    everything = rows_of(Run(AlignSettings()), steps)
    kept = sum(len(row.values) for row in rows)
    wanted = sum(len(row.values) for row in everything if row.values.keys() & LOSSES)
    assert aligner.row_maker.take_thinned() == wanted - kept > 0
    assert aligner.row_maker.take_thinned() == 0


def test_every_step_has_rows_unless_a_bound_is_set() -> None:
    rows = rows_of(Run(AlignSettings()), range(2000))
    assert {row.step for row in rows if row.values.keys() & LOSSES} == {*range(2000)}
