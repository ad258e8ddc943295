"""Settings that a program reports: values that stay equal for many steps, and then change.

A curriculum's level or a data set's number changes on purpose, and measurements change with it.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.thresholds import FEWEST_STEPS

_SINCE: Final = 2  # equal values since then
_NEAR: Final = 1  # steps: the row of a change may tell the old or the new value
_RATE: Final = "/rate"
_NOT_SET: Final = (
    *("otel_rl/", "critical_path/", "phase/", "goodput/", "service/", "health/", "diagnosis/"),
)
# Measured, though often the same for long: the highest reward, the part of groups that all fail.
_MEASURED: Final = re.compile(
    r"rewards?(?![a-z])(?!.*(scale|weight|coef))|advantage|score|return"
    r"|(^|/|_)(frac(tion)?|ratio|rate|errors?|fail\w*|invalid|timeouts?|nans?|clip\w*|count)(/|_|$)"
    r"|(/|_)(min|max|mean|std)$"
)


class SettingChange(NamedTuple):
    """Change of a setting.

    Attributes:
        step: First step with the new value.
    """

    key: str
    step: int
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.key} is {self.after:.6g} since step {self.step}, {self.before:.6g} before"


def settings_changed(history: RunHistory, step: int) -> Iterator[SettingChange]:
    for key, track in history.rows.items():
        if key.startswith(_NOT_SET) or _MEASURED.search(key):
            continue
        if key.endswith(_RATE) or key + _RATE in history.rows:
            continue  # a counter, which nothing has counted for a while
        place = next((at for at, of in enumerate(track.steps) if of >= step - _NEAR), None)
        for at in (place, (place or 0) + 1, (place or 0) + 2) if place is not None else ():
            if at < len(track.steps) and track.steps[at] <= step + _NEAR and _is_set(track, at):
                before, after = track.values[at - 1], track.values[at]
                yield SettingChange(key, track.steps[at], before, after)


def _is_set(track: Track, place: int) -> bool:
    """Return whether another value begins here, after equal ones and before equal ones."""
    before, after = track.values[:place], track.values[place : place + FEWEST_STEPS]
    return (
        len(before) >= FEWEST_STEPS
        and len(after) >= _SINCE
        and len(set(before[-FEWEST_STEPS:])) == len(set(after)) == 1
        and before[-1] != after[0]
    )
