"""Workers that a step's records may lack, where there are many workers."""

from collections import Counter
from collections.abc import Mapping
from math import inf

from otel_rl.diagnose.history.records import ALL_RECORDED, MOST_EXTREME
from otel_rl.diagnose.history.track import Track


def may_lack_until(tracks: Mapping[str, Track]) -> int:
    """Return the last step of which any worker may have a value that was not recorded.

    Args:
        tracks: Series of one phase, or of one key, by worker.

    Returns:
        The step; -1 if everything of each step was recorded.
    """
    if len(tracks) <= MOST_EXTREME:
        return -1
    # A snapshot has all of them, or as many as stand out.
    told = Counter(
        place for track in tracks.values() for place in zip(track.steps, track.times_s, strict=True)
    )
    # Of so few workers, each snapshot since the first one of more than those has all.
    more_s = (at_s for (_, at_s), of in told.items() if of > MOST_EXTREME)
    all_s = min(more_s, default=inf) if len(tracks) <= ALL_RECORDED else inf
    unsure = (step for (step, at_s), of in told.items() if of == MOST_EXTREME and at_s < all_s)
    return max(unsure, default=-1)
