import pytest

from otel_rl.demo.phases import PhaseClock


class FakeTime:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


def test_an_inner_phase_stops_the_outer(time: FakeTime) -> None:
    clock = PhaseClock(time)
    with clock.phase("train"):
        time.now_s += 1
        with clock.phase("param_sync"):
            time.now_s += 2
        time.now_s += 4
    assert clock.take() == {"train": 5, "param_sync": 2}


def test_a_part_repeats_time_of_its_phase(time: FakeTime) -> None:
    clock = PhaseClock(time)
    with clock.phase("weight_sync"):
        time.now_s += 1
        with clock.part("weight_push"):
            time.now_s += 2
    assert clock.take() == {"weight_sync": 3, "weight_push": 2}


def test_time_outside_every_phase_belongs_to_none(time: FakeTime) -> None:
    clock = PhaseClock(time)
    time.now_s += 5
    with clock.phase("train"):
        time.now_s += 1
    time.now_s += 5
    assert clock.take() == {"train": 1}


def test_taking_starts_anew(time: FakeTime) -> None:
    clock = PhaseClock(time)
    with clock.phase("train"):
        time.now_s += 1
    clock.take()
    assert clock.take() == {}


def test_a_phase_that_fails_has_lasted_until_then(time: FakeTime) -> None:
    clock = PhaseClock(time)

    def wait_in_vain() -> None:
        with clock.phase("collector_wait"):
            time.now_s += 3
            raise EOFError

    with pytest.raises(EOFError):
        wait_in_vain()
    assert clock.take() == {"collector_wait": 3}
