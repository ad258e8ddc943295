import io
from pathlib import Path

import pytest
from pydantic import ValidationError

from otel_rl.demo import DemoResult, DemoSettings
from otel_rl.demo.progress import Progress, Status


def status(step: int) -> Status:
    return Status(
        step=step,
        steps=24,
        reward=0.5,
        tokens=0,
        staleness=1.5,
        buffered=3,
        buffer_limit=9,
        alive=9,
        expected=9,
    )


def test_a_log_file_gets_a_dozen_lines_whatever_the_steps() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    for step in range(1, 25):
        progress.show(status(step))
        progress.show(status(step))
    assert len(stream.getvalue().splitlines()) == 12
    assert "step  24/24" in stream.getvalue().splitlines()[-1]


def test_the_start_is_not_silent() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    while not stream.getvalue():
        progress.waiting(3, 9, "processes have started")
    assert stream.getvalue() == "3 of 9 processes have started\n"


def test_the_summary_says_what_happened() -> None:
    result = DemoResult(
        logs=Path("logs"),
        steps=4,
        rewards=(0.1, 0.2, 0.3, 0.4),
        staleness=1.6,
        failures=1,
        rerouted=3,
        recoveries_s=(2.5,),
    )
    assert result.ok
    assert "0.10 in the first quarter, 0.40 in the last" in str(result)
    assert "served again after: 2.5 s" in str(result)


def test_a_failed_run_says_why_first() -> None:
    result = DemoResult(logs=Path("logs"), reason="trainer-1 ended (exit 1)")
    assert not result.ok
    assert str(result).splitlines()[0].endswith("trainer-1 ended (exit 1)")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"cache_tokens": 64}, "cache_tokens"),
        ({"min_digits": 9}, "min_digits"),
        ({"heads": 5}, "width"),
        ({"inventory_groups": 10}, "inventory_groups"),
        ({"inventory_groups": 1000}, "inventory_groups"),
        ({"setps": 3}, "setps"),
    ],
)
def test_settings_that_would_wait_for_ever_are_refused(wrong: dict[str, int], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        DemoSettings.model_validate(wrong)
