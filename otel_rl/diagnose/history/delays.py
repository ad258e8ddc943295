"""Delays of reports: after an outage on the way, reports of some workers arrive late."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from math import inf
from typing import Final

from otel_rl.diagnose.history.run_history import RunHistory, Track

_LATE_S: Final = 2.0
_SET_BACK_S: Final = 0.5  # an exporter sends in order


def as_sent(history: RunHistory, worker: str, reports: Track) -> Track:
    """Return reports of a worker at the times when it sent them, in order, in s.

    The times follow from the delay of its exports beyond the least delay, which contains the
    difference of the clocks. If the worker's clock was set back, that difference is another one
    since then.
    """
    exports = history.lags.get(worker)
    if exports is None or not exports.values:
        return reports
    least_s = min(exports.values)
    if max(exports.values) - least_s < _LATE_S:
        return reports
    late_s = dict(zip(exports.times_s, _beyond_the_least(exports), strict=True))
    sent_s = (at_s - late_s.get(at_s, 0.0) for at_s in reports.times_s)
    return Track.of(reports.steps, accumulate(sent_s, max), reports.values)


def _beyond_the_least(exports: Track) -> Iterator[float]:
    """Yield how much later each export came than the least late one by the same clock."""
    parts: list[list[float]] = [[]]
    before_s = -inf
    for at_s, delay_s in zip(exports.times_s, exports.values, strict=True):
        if at_s - delay_s < before_s - _SET_BACK_S:
            parts.append([])
        parts[-1].append(delay_s)
        before_s = at_s - delay_s
    for part in parts:
        least_s = min(part)
        yield from (delay_s - least_s for delay_s in part)


def is_late(history: RunHistory, since_s: float, until_s: float, by_s: float) -> bool:
    """Return whether exports of this time, since the first record, were sent ``by_s`` earlier."""
    for exports in history.lags.values():
        first, end = bisect_left(exports.times_s, since_s), bisect_right(exports.times_s, until_s)
        if first < end and max(exports.values[first:end]) - min(exports.values) >= by_s:
            return True
    return False
