from pathlib import Path

from otel_rl.demo import DemoResult


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
