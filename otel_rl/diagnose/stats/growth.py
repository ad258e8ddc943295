"""New part of series that grow: what was derived from the rest of them stays as it is."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from otel_rl.diagnose.history.track import Track

__all__ = ["ALL", "Growth", "begin_of", "cut_from"]

ALL: Final = -1
"""Before any step."""


class Growth:
    """State of the series of some workers as last seen, each in order of its steps."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Track, int]] = {}

    def first_new(self, tracks: Mapping[str, Track]) -> int | None:
        """Return the first step whose values are others than the last time; None without one.

        ``ALL`` the first time. A series that was not in order before it was put in order is
        another object, with values in between.
        """
        seen, self._seen = self._seen, {name: (of, len(of.steps)) for name, of in tracks.items()}
        if not seen or not seen.keys() <= tracks.keys():
            return ALL
        changed = (_changed(of, *seen.get(name, (of, 0))) for name, of in tracks.items())
        return min((step for step in changed if step is not None), default=None)


def _changed(track: Track, seen: Track, end: int) -> int | None:
    """Return the first step of which a series has other values than another one up to its end."""
    if seen is not track and track.head(end) != seen.head(end):
        for step, value, before, known in zip(
            track.steps, track.values, seen.steps, seen.values, strict=False
        ):
            if (step, value) != (before, known):
                return min(step, before)
    return track.steps[end] if end < len(track.steps) else None


def begin_of(track: Track, first: int) -> int:
    """Return the place of the first value of these steps, in a series in order of its steps."""
    return 0 if first == ALL else bisect_left(track.steps, first)


def cut_from(track: Track, first: int) -> None:
    """Remove the values of these steps, from a series in order of its steps."""
    place = begin_of(track, first)
    del track.steps[place:], track.times_s[place:], track.values[place:]
