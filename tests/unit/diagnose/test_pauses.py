"""A job that is suspended and resumed: what stood still together is nobody's fault, and named."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.history.silences import Silences
from otel_rl.diagnose.result import Kind
from otel_rl.goodput import duration

_NS = 1_000_000_000
STEP_S = 5
AT_S = 200 + 2
"""Seconds after the start at which it is suspended, within a step."""


def heard(second: int, now_s: int, *, ages: bool) -> Facts:
    """What two ranks tell after so many seconds of work, which is at some later time."""
    step, within = divmod(second, STEP_S)
    ranks = ("trainer/0", "trainer/1")
    spans = [SpanFacts(step, "trainer", "train", rank, False, 1, 4.0, 4.0, 0) for rank in ranks]
    age_s = float(within + (now_s - second if step == AT_S // STEP_S else 0))
    told = [WorkerFacts(rank, None, 1, age_s, 0) for rank in ranks]
    return Facts(
        (100 + now_s) * _NS,
        step,
        [RowFacts(step, now_s * _NS, {"trainer/loss": 1.0})],
        workers={"trainer/worker/phase/age/train": told} if ages and within < 4 else {},
        spans=spans if within == 4 else [],
        lags=[(rank, 0.1) for rank in ranks],
        status="running",
    )


def looks(pause_s: int, *, ages: bool, until_s: int = 260) -> Sequence[RunHistory]:
    """The run at each second since it was resumed."""
    facts = [
        heard(second, second + (pause_s if second >= AT_S else 0), ages=ages)
        for second in range(until_s)
    ]
    return [RunHistory(facts[:count]) for count in range(AT_S + 1, until_s, 3)]


@pytest.mark.parametrize("ages", [True, False])
@pytest.mark.parametrize("pause_s", [30, 300, 40_000])
def test_a_run_that_was_suspended_does_not_stand_still_when_it_goes_on(
    pause_s: int, *, ages: bool
) -> None:
    found = [diagnose(history) for history in looks(pause_s, ages=ages)]
    assert [one.causes for one in found if one.causes] == []
    (words,) = found[-1].changes
    assert words.startswith(f"no worker was heard for {duration(pause_s + 1)} after step 40")


def test_many_pauses_of_a_job_are_one_line() -> None:
    paused_s = [60 * (second // 30 + second // 120) for second in range(260)]
    facts = [heard(second, second + paused, ages=False) for second, paused in enumerate(paused_s)]
    (words,) = diagnose(RunHistory(facts)).changes
    assert words.startswith(
        "no worker was heard for 61 s to 2.02 min after steps 5, 11, 17, 23 and 4 more: all stood"
    )


def test_a_long_stall_is_told_in_hours() -> None:
    facts = [heard(s, s, ages=False) for s in range(240)]
    alive = {"host/load": [WorkerFacts("trainer/0", None, 1, 1.0, 0)]}
    lags = [("trainer/0", 0.1), ("trainer/1", 0.1)]
    facts += [
        Facts((340 + 10 * n) * _NS, 47, workers=alive, lags=lags, status="running")
        for n in range(4_000)
    ]
    (cause,) = diagnose(RunHistory(facts)).causes
    assert "for 11.1 h, usually 5 s; " in cause.words


def test_a_run_that_hangs_after_it_was_resumed_stands_still_as_soon_as_any_other() -> None:
    resumed_s = AT_S + 300
    facts = [heard(s, s + (300 if s >= AT_S else 0), ages=False) for s in range(240)]
    lags = [("trainer/0", 0.1), ("trainer/1", 0.1)]
    alive = {"host/load": [WorkerFacts("trainer/0", None, 1, 1.0, 0)]}
    facts += [
        Facts((100 + at_s) * _NS, 47, workers=alive, lags=lags, status="running")
        for at_s in range(resumed_s + 38, resumed_s + 38 + 60)
    ]
    assert [one.kind for one in diagnose(RunHistory(facts)).causes] == [Kind.STALL]


def heard_of_one(times_s: Sequence[float]) -> Silences:
    """What is known of a single worker that exports at these times."""
    told = Silences()
    for before_s, at_s in pairwise([None, *times_s]):
        told.hear(at_s or 0.0, before_s)
    return told


def test_exports_a_minute_apart_are_no_silence_and_far_longer_times_between_them_are() -> None:
    told = heard_of_one([0.0, 60.0, 121.0, 180.0, 600.0, 660.0])
    assert [*told] == [(180.0, 600.0)]
    assert told.between(100.0, 610.0) == 420.0
    assert told.between(200.0, 300.0) == 100.0
    assert told.between(601.0, 660.0) == 0.0


def test_a_pause_of_a_night_hides_no_shorter_ones() -> None:
    times_s = [*range(100), *range(40_000, 40_100), *range(40_200, 40_300)]
    assert [*heard_of_one(times_s)] == [(99, 40_000), (40_099, 40_200)]


@pytest.mark.parametrize("workers", [2, 3, 32])
def test_many_workers_that_export_together_once_a_minute_are_silent_in_no_minute(
    workers: int,
) -> None:
    told = Silences()
    for minute in range(20):
        for worker in range(workers):
            at_s = 60.0 * minute + worker
            told.hear(at_s, at_s - 60.0 if minute else None)
    assert [*told] == []
    told.hear(20 * 60.0 + 300.0, 19 * 60.0)
    assert [*told] == [(19 * 60.0 + workers - 1, 20 * 60.0 + 300.0)]


def test_a_run_whose_workers_only_export_more_slowly_while_it_hangs_stands_still() -> None:
    lags = [("trainer/0", 0.1), ("trainer/1", 0.1)]
    facts = [heard(second, second, ages=False) for second in range(300)]
    facts += [
        Facts((100 + at_s) * _NS, 59, lags=lags, status="running")
        for at_s in range(315, 315 + 15 * 20, 15)
    ]
    assert [one.kind for one in diagnose(RunHistory(facts)).causes] == [Kind.STALL]


def test_the_time_since_the_last_export_is_silence_as_far_as_is_known() -> None:
    assert heard_of_one(range(60)).between(50.0, 65.0) == 6.0
