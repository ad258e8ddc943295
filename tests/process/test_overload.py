"""More than a bridge can take. The long form, with figures, is ``make overload``."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.overload import BOUNDS, PEAK_MB, Figures, over_bounds, overload


@pytest.mark.process
@pytest.mark.slow
def test_an_overloaded_bridge_refuses_recovers_and_loses_nothing(tmp_path: Path) -> None:
    figures = overload(tmp_path, 6.0, calibration_s=3.0, journal_bytes=2 << 20)
    assert figures.refused > 0
    assert figures.acknowledged > 0
    assert (figures.lost, figures.doubled) == (0, 0)


SOUND = Figures(2, 600.0, 1.0, 2.0, 1, 1, 0, 0, [100.0] * 10, 1.0, 0, 0.5)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_figure_over_its_bound_is_named(name: str) -> None:
    assert not over_bounds(SOUND)
    (wrong,) = over_bounds(Figures(**{**asdict(SOUND), name: BOUNDS[name] + 1}))
    assert wrong.startswith(name)


@pytest.mark.parametrize("peaks", [[PEAK_MB + 1] * 10, [100.0] * 9 + [200.0]])
def test_memory_that_is_too_much_or_grows_is_named(peaks: list[float]) -> None:
    assert over_bounds(replace(SOUND, peak_mb=peaks))
