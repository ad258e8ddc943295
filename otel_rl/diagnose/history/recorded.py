"""Workers that the records of a step may lack, where there are many."""

from collections import Counter
from collections.abc import Mapping

from otel_rl.diagnose.history.records import MAX_RECORDED
from otel_rl.diagnose.history.track import Track

__all__ = ["may_lack_until"]


def may_lack_until(tracks: Mapping[str, Track]) -> int:
    """Return the last step of which any worker may have a value that was not recorded.

    Args:
        tracks: Of one phase, or of one key, by worker.

    Returns:
        -1 if all of each step was recorded.
    """
    if len(tracks) <= MAX_RECORDED:
        return -1
    told = Counter(step for track in tracks.values() for step in {*track.steps})
    return max((step for step, workers in told.items() if workers >= MAX_RECORDED), default=-1)
