import logging

import pytest

from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard


def test_an_error_is_swallowed_and_counted() -> None:
    drops = Drops()
    with Guard(drops):
        raise RuntimeError("inside")
    assert drops.counts() == {DropReason.INTERNAL: 1}


def test_ctrl_c_passes() -> None:
    with pytest.raises(KeyboardInterrupt), Guard(Drops()):
        raise KeyboardInterrupt


def test_a_fault_that_repeats_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    guard = Guard(Drops(), clock_s=lambda: now_s)
    with caplog.at_level(logging.WARNING, "otel_rl"):
        for _ in range(100):
            guard.drop(DropReason.BAD_STEP, "The step is bad.")
        now_s = 61.0
        guard.drop(DropReason.BAD_STEP, "The step is bad.")
    assert [record.message for record in caplog.records] == ["The step is bad."] * 2
    assert guard.drops.counts() == {DropReason.BAD_STEP: 101}
