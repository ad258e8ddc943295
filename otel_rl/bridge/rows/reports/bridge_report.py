"""Report of the bridge in the runs that it writes.

The section ``otel_rl/bridge/`` of a run: accepted samples, repeats, late, refused and dropped ones
by reason, and pending data. The keys are the names of the bridge's own counters, with slashes for
dots and the reason as suffix:

    otel_rl.bridge.samples.dropped{rl.reason="too_old"}  ->  otel_rl/bridge/samples/dropped/too_old
"""

from collections.abc import Mapping

from otel_rl.bridge.counters import Counter, SampleDrop
from otel_rl.bridge.rows.reports.sample_counts import SampleCounts

__all__ = ["BridgeReport"]


class BridgeReport:
    """Decides when a run gets a report.

    Args:
        interval_ns: Between two reports, by the bridge's clock.
    """

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._told_ns = 0
        self._told: Mapping[str, float] = {}

    def is_due(self, now_ns: int) -> bool:
        """Return whether the last report is old enough, or of a clock that was set back since."""
        return not 0 <= now_ns - self._told_ns < self._interval_ns

    def has_changed(self, values: Mapping[str, float]) -> bool:
        """Return whether ``values`` differ from the last report."""
        return values != self._told

    def written(self, values: Mapping[str, float], now_ns: int) -> None:
        """Record that the run has these values."""
        self._told, self._told_ns = values, now_ns

    @staticmethod
    def values(
        sample_counts: SampleCounts,
        counts: Mapping[tuple[str, str], int],
        gauges: Mapping[str, float],
    ) -> dict[str, float]:
        """Return the section, by tracker key.

        Args:
            sample_counts: Counts of the run's samples.
            counts: Other counts of the run, by (name, reason).
            gauges: By the name of the gauge.
        """
        dropped = {
            SampleDrop.TOO_MANY_SERIES: sample_counts.too_many_series,
            SampleDrop.TOO_OLD: sample_counts.too_old,
        }
        return {
            _key(Counter.SAMPLES_TAKEN): sample_counts.taken,
            _key(Counter.SAMPLES_LATE): sample_counts.late,
            _key(Counter.SAMPLES_DUPLICATE): sample_counts.duplicate,
            **{_key(Counter.SAMPLES_DROPPED, reason): n for reason, n in dropped.items() if n},
            **(
                {_key(Counter.SPANS_TOO_OLD): sample_counts.spans_too_old}
                if sample_counts.spans_too_old
                else {}
            ),
            **{_key(name, reason): n for (name, reason), n in counts.items()},
            **{_key(name): value for name, value in gauges.items()},
        }


def _key(name: str, reason: str = "") -> str:
    path = name.replace(".", "/")
    return f"{path}/{reason}" if reason else path
