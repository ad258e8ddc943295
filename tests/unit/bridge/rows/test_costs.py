"""What one experiment costs grows with what it sends, not with the square of that.

Each shape is measured at a size and at four times the size.
"""

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from otel_rl.bridge.rows.dedup.series_dedup import SeriesDedup
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Decoded, Export, Measurements, Series, Worker
from tests.support.costs import cost_ratio

T0 = 1_700_000_000_000_000_000

_MOST = 8.0
"""Times as much, for four times as much."""


def ratio(work: Callable[[int], object], size: int) -> float:
    return cost_ratio(lambda n: partial(work, n), size, most=_MOST)


def points_newest_first(n: int) -> None:
    seen = SeriesDedup()
    assert all(seen.take_time(time_ns) for time_ns in range(n, 0, -1))


def steps_newest_first(n: int) -> None:
    changes = SeriesDedup().known_changes()
    assert all(changes.take(step, 1, step, float(step)) for step in range(n, 0, -1))


def values_of_one_step(n: int) -> None:
    changes = SeriesDedup().known_changes()
    assert all(changes.take(1, 1, time_ns, float(time_ns)) for time_ns in range(1, n))


def starts_of_one_step(n: int) -> None:
    changes = SeriesDedup().known_changes()
    assert all(changes.take(1, start_ns, 1, float(start_ns)) for start_ns in range(n, 0, -1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        pytest.param(points_newest_first, 20_000, id="points newest first"),
        pytest.param(steps_newest_first, 8_000, id="steps newest first"),
        pytest.param(values_of_one_step, 2_000, id="values of one step"),
        pytest.param(starts_of_one_step, 2_000, id="starts of one step"),
    ],
)
def test_what_was_taken_is_remembered_at_one_cost_a_point(
    shape: Callable[[int], None], size: int
) -> None:
    assert ratio(shape, size) < _MOST


def look_at(workers: Sequence[Worker]) -> None:
    """One measurement of a step from each, then looks while they live, are silent, and are gone."""
    aligner = Run(AlignSettings(max_series=len(workers)))
    points = [Measurements(Series(of, "loss"), [T0], [1.0], [1]) for of in workers]
    aligner.add(Decoded(points, [Export(of, T0) for of in workers]), received_ns=T0)
    for seconds in (0, 10, 300, 4_000):
        aligner.close(T0 + seconds * 1_000_000_000)


def roles(n: int) -> None:
    look_at([Worker(f"role-{of}", str(of)) for of in range(n)])


def workers_without_an_index(n: int) -> None:
    look_at([Worker("trainer", str(of)) for of in range(n)])


def workers_that_say_how_many_they_are(n: int) -> None:
    look_at([Worker("trainer", str(of), None, 7) for of in range(n)])


def workers_with_an_index(n: int) -> None:
    look_at([Worker("trainer", str(of), of, n) for of in range(n)])


def workers_of_one_index(n: int) -> None:
    look_at([Worker("trainer", str(of), 0, n) for of in range(n)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (roles, 800),
        (workers_without_an_index, 800),
        (workers_that_say_how_many_they_are, 800),
        (workers_with_an_index, 800),
        (workers_of_one_index, 800),
    ],
)
def test_workers_are_looked_after_at_one_cost_each(shape: Callable[[int], None], size: int) -> None:
    assert ratio(shape, size) < _MOST
