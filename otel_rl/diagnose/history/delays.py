"""Delays of reports: after an outage on the way, they arrive late, and not those of all at once."""

from itertools import accumulate
from typing import Final

from otel_rl.diagnose.history.run_history import RunHistory, Track

__all__ = ["as_sent", "is_late"]

_LATE_S: Final = 2.0


def as_sent(history: RunHistory, worker: str, reports: Track) -> Track:
    """Return reports of a worker at the times when it sent them, in order, in s.

    By the delay of its exports beyond the least one, which has the difference of the clocks in it.
    """
    exports = history.lags.get(worker)
    if exports is None or not exports.values:
        return reports
    least_s = min(exports.values)
    if max(exports.values) - least_s < _LATE_S:
        return reports
    late_s = dict(zip(exports.times_s, exports.values, strict=True))
    sent_s = (at_s - max(0.0, late_s.get(at_s, least_s) - least_s) for at_s in reports.times_s)
    return Track.of(reports.steps, accumulate(sent_s, max), reports.values)


def is_late(history: RunHistory, since_s: float, until_s: float, by_s: float) -> bool:
    """Return whether exports of this time, since the first record, had been sent so much before."""
    return any(
        delay_s - min(exports.values) >= by_s
        for exports in history.lags.values()
        for at_s, delay_s in zip(exports.times_s, exports.values, strict=True)
        if since_s <= at_s <= until_s
    )
