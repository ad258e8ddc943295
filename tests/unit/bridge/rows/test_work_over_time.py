"""Work by time, in a bounded number of parts."""

import pytest

from otel_rl.bridge.rows.goodput import WorkOverTime

S = 1_000_000_000
T0 = 1_700_000_000 * S


def made(count: int, every_ns: int = S) -> WorkOverTime:
    work = WorkOverTime()
    for place in range(count):
        work.add(T0 + place * every_ns, 1.0)
    return work


def test_a_short_run_is_exact() -> None:
    work = made(1000)
    assert work.take(T0 + 600 * S, T0 + 899 * S + 1_500_000) == pytest.approx(300, abs=1e-9)
    assert sum(work.parts.values()) == pytest.approx(700)


def test_a_long_run_is_known_to_a_thousandth_or_two_and_takes_no_more_memory() -> None:
    work = made(100_000)
    assert len(work.parts) <= 1024
    assert sum(work.parts.values()) == pytest.approx(100_000)
    assert work.take(T0 + 60_000 * S, T0 + 80_000 * S) == pytest.approx(20_000, abs=250)


def test_work_that_is_not_over_is_left_in_its_part() -> None:
    work = made(100_000)
    first = min(work.parts)
    half_ns = (first << work.shift) + (1 << work.shift) // 2
    whole_s = work.parts[first]
    assert work.take(0, half_ns) == pytest.approx(whole_s / 2)
    assert work.parts[first] == pytest.approx(whole_s / 2)


def test_the_work_of_a_run_has_a_bound_whenever_it_was_done() -> None:
    work = WorkOverTime()
    for place in range(2000):
        work.add(place << 51, 1.0)
    assert sum(work.parts.values()) == 2000
