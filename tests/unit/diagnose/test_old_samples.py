"""Samples that wait longer for their use, and buffers that are full, which is no fault."""

from math import sin

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause, Kind
from tests.unit.diagnose.made import AT, Series, made


def old_since(step: int, before: float, more: float, *, filling: int = 6) -> Series:
    """Return an age that grows from one level to another, as a queue becomes longer."""
    return lambda at: before + more * min(1.0, max(0.0, (at - step + 1) / filling))


def steady(step: int) -> float:
    return 1.0 + 0.02 * sin(7.3 * step)


def stale(ages: Series, waits: Series, *, took_s: Series = steady, steps: int = 80) -> list[Cause]:
    spans = {("trainer", "collector_wait", 0): waits, ("trainer", "train", 0): took_s}
    rows = {"trainer/sample/age/versions": ages}
    history = made(steps, step_s=took_s, rows=rows, spans=spans, waits=["collector_wait"])
    return [one for one in diagnose(history).causes if one.kind is Kind.STALENESS_GROWTH]


@pytest.mark.parametrize(("wait_s", "is_found"), [(0.001, True), (0.2, False)])
def test_a_buffer_that_was_full_before_has_another_bound(wait_s: float, *, is_found: bool) -> None:
    """One whose trainers had to wait for samples has become full, as it should."""
    found = stale(old_since(AT, 2.8, 2.4), lambda _: wait_s)
    assert [abs(cause.since - AT) <= 3 for cause in found if cause.since] == [True] * is_found


def test_ages_that_repeat_from_push_to_push_are_compared_by_their_mean() -> None:
    def ages(step: int) -> float:
        young = (4.9, 4.0, 4.0, 8.0) if step >= AT else (0.0, 4.0, 4.0, 3.3)
        return young[step % 4]

    assert len(stale(ages, lambda _: 0.001)) == 1


@pytest.mark.parametrize("apart", [1, 16])
def test_the_first_samples_of_a_run_whose_step_numbers_count_updates_are_young(apart: int) -> None:
    """They are of the first policy: three steps are three, also if they are 48 updates."""
    ages = [0.0, 0.0, 0.0, *(4.0, 4.0, 2.0, 0.0) * 9]
    facts = [
        Facts(at, apart * n, [RowFacts(apart * n, at, {"trainer/sample/age/versions": age})])
        for n, age in enumerate(ages)
        for at in [(1_000 + n) * 1_000_000_000]
    ]
    assert not diagnose(RunHistory(facts)).causes


def test_samples_that_are_older_by_less_than_two_versions_are_of_one_bound() -> None:
    assert not stale(old_since(AT, 1.8, 1.2), lambda _: 0.001)


@pytest.mark.parametrize(("start", "is_found"), [(4, False), (0, True)])
def test_a_start_with_long_steps_is_no_time_in_which_samples_had_an_age(
    start: int, *, is_found: bool
) -> None:
    """While the trainer warms up, its queue fills no faster than it is emptied."""

    def took_s(step: int) -> float:
        return steady(step) * (4.0 if step < start else 1.0)

    ages = old_since(7, 1.0, 2.0, filling=3)
    found = stale(ages, lambda step: 0.001 if step else 3.0, took_s=took_s, steps=14)
    assert bool(found) == is_found


@pytest.mark.parametrize(("held", "is_found"), [(13, False), (40, True)])
def test_a_queue_that_has_grown_at_one_rate_has_no_step_where_a_version_is_full(
    held: int, *, is_found: bool
) -> None:
    def ages(step: int) -> float:
        return 1.0 + (0 if step < held else 1 + (step - held) // 13)

    assert bool(stale(ages, lambda _: 0.001, steps=held + 26)) == is_found


EVERY = 16


def evaluating(step: int) -> float:
    return steady(step) + 3.0 * (step > 0 and step % EVERY == 0)


def older_by(versions: float) -> Series:
    """Return ages that grow by so many versions in the steps after each evaluation."""

    def ages(step: int) -> float:
        done, since = divmod(step, EVERY)
        return 1.0 + versions * max(0.0, done - 1 + min(1.0, since / 3)) * (step >= EVERY)

    return ages


@pytest.mark.parametrize(("versions", "is_found"), [(2.5, False), (3.0, False), (7.0, True)])
@pytest.mark.parametrize("steps", [EVERY + 7, 2 * EVERY + 7])
def test_what_is_made_in_an_evaluation_waits_for_as_long_as_that_took(
    versions: float, steps: int, *, is_found: bool
) -> None:
    found = stale(older_by(versions), lambda _: 0.001, took_s=evaluating, steps=steps)
    assert bool(found) == is_found
