"""What a run says of the bridge that wrote it, so that nobody has to guess what is missing.

The section ``otel_rl/bridge/`` of a run: what was taken, what came twice, what was late, refused or
dropped and why, and what still waits. The keys are the names of the bridge's own counters, with
slashes for dots and the reason behind:

    otel_rl.bridge.samples.dropped{rl.reason="too_old"}  ->  otel_rl/bridge/samples/dropped/too_old
"""

from collections.abc import Mapping

from otel_rl.bridge.align import Tally
from otel_rl.bridge.counters import Counter, SampleDrop

__all__ = ["Report"]


class Report:
    """Says when a run is told, and what.

    Args:
        interval_ns: Between two reports, by the bridge's clock.
    """

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._told_ns = 0
        self._told: Mapping[str, float] = {}

    def is_due(self, now_ns: int) -> bool:
        """Whether the last report is old enough, or of a clock that has been set back since."""
        return not 0 <= now_ns - self._told_ns < self._interval_ns

    def is_news(self, values: Mapping[str, float]) -> bool:
        """Whether ``values`` say something that the last report did not."""
        return values != self._told

    def told(self, values: Mapping[str, float], now_ns: int) -> None:
        """The run has these."""
        self._told, self._told_ns = values, now_ns

    @staticmethod
    def values(
        tally: Tally, counts: Mapping[tuple[str, str], int], gauges: Mapping[str, float]
    ) -> dict[str, float]:
        """The section, by tracker key.

        Args:
            tally: What became of the samples of the run.
            counts: What else was counted for it, by (name, reason).
            gauges: By the name of the gauge.
        """
        dropped = {
            SampleDrop.TOO_MANY_SERIES: tally.too_many_series,
            SampleDrop.TOO_OLD: tally.too_old,
        }
        return {
            _key(Counter.SAMPLES_TAKEN): tally.taken,
            _key(Counter.SAMPLES_LATE): tally.late,
            _key(Counter.SAMPLES_DUPLICATE): tally.duplicate,
            **{_key(Counter.SAMPLES_DROPPED, reason): n for reason, n in dropped.items() if n},
            **({_key(Counter.SPANS_TOO_OLD): tally.spans_too_old} if tally.spans_too_old else {}),
            **{_key(name, reason): n for (name, reason), n in counts.items()},
            **{_key(name): value for name, value in gauges.items()},
        }


def _key(name: str, reason: str = "") -> str:
    path = name.replace(".", "/")
    return f"{path}/{reason}" if reason else path
