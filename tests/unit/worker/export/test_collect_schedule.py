"""When an exporter collects."""

import pytest

from otel_rl.worker.export import collect_schedule
from otel_rl.worker.export.collect_schedule import CollectSchedule


class Clock:
    """The monotonic clock, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(collect_schedule, "time", clock)
    return clock


def test_a_collection_is_due_when_the_interval_is_over(clock: Clock) -> None:
    schedule = CollectSchedule(10.0, is_waited_for=False)
    clock.now_s += 9.9
    assert not schedule.is_due()
    clock.now_s += 0.1
    assert schedule.is_due()
    schedule.begin()
    assert not schedule.is_due()


@pytest.mark.parametrize(("is_waited_for", "look_s"), [(True, 0.1), (False, 1.0)])
def test_the_first_records_are_looked_for_sooner_where_a_receiver_waits(
    clock: Clock, is_waited_for: bool, look_s: float
) -> None:
    schedule = CollectSchedule(10.0, is_waited_for=is_waited_for)
    assert schedule.wake_s() == clock.now_s + look_s
    schedule.found_records()
    assert schedule.wake_s() == clock.now_s + 1.0


def test_the_look_is_no_later_than_the_collection(clock: Clock) -> None:
    schedule = CollectSchedule(0.5, is_waited_for=False)
    assert schedule.wake_s() == clock.now_s + 0.5


def test_an_early_collection_is_due_at_once_and_the_next_one_a_quarter_second_later(
    clock: Clock,
) -> None:
    schedule = CollectSchedule(3600.0, is_waited_for=False)
    schedule.hurry()
    assert schedule.is_due()
    schedule.begin()
    schedule.hurry()
    assert not schedule.is_due()
    clock.now_s += 0.25
    assert schedule.is_due()
