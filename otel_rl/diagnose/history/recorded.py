"""Workers that the records of a step may lack, where there are many."""

from collections import Counter
from collections.abc import Mapping

from otel_rl.diagnose.history.records import MOST_EXTREME
from otel_rl.diagnose.history.track import Track

__all__ = ["may_lack_until"]


def may_lack_until(tracks: Mapping[str, Track]) -> int:
    """Return the last step of which any worker may have a value that was not recorded.

    Args:
        tracks: Of one phase, or of one key, by worker.

    Returns:
        -1 if all of each step was recorded.
    """
    if len(tracks) <= MOST_EXTREME:
        return -1
    # A snapshot has all of them, or as many as stand out.
    told = Counter(
        place for track in tracks.values() for place in zip(track.steps, track.times_s, strict=True)
    )
    return max((step for (step, _), of in told.items() if of == MOST_EXTREME), default=-1)
