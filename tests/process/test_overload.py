"""More than a bridge can take. The long form, with figures, is ``make overload``."""

from pathlib import Path

import pytest

from tests.overload import overload


@pytest.mark.process
@pytest.mark.slow
def test_an_overloaded_bridge_refuses_recovers_and_loses_nothing(tmp_path: Path) -> None:
    figures = overload(tmp_path, 6.0, calibration_s=3.0, journal_bytes=2 << 20)
    assert figures.refused > 0
    assert figures.acknowledged > 0
    assert (figures.lost, figures.doubled) == (0, 0)
    assert figures.victim_failed == 0
