"""Goodput of a run, as its last rows had it."""

from collections.abc import Mapping
from typing import Final

from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.goodput import Spent
from otel_rl.semconv.names import RlGoodputPartValues

_SECTION: Final = "goodput/"

_FIELDS: Final = {
    RlGoodputPartValues.PRODUCTIVE: "productive_s",
    RlGoodputPartValues.OVERHEAD: "overhead_s",
    RlGoodputPartValues.IDLE: "idle_s",
    RlGoodputPartValues.WASTED: "wasted_s",
}


def goodput_of(history: RunHistory) -> Mapping[str, Spent]:
    """Return the time of each role with goodput, and of the run, whose role is empty."""
    last_s = max(
        (track.times_s[-1] for key, track in history.rows.items() if key.startswith(_SECTION)),
        default=0.0,
    )
    found: dict[str, Spent] = {}
    for key, track in sorted(history.rows.items()):
        role, _, part = key.removeprefix(_SECTION).rpartition("/")
        # What is not told with the others was 0.
        if key.startswith(_SECTION) and part in _FIELDS and track.times_s[-1] == last_s:
            spent = found.get(role, Spent(0.0, 0.0, 0.0, 0.0))
            values = {_FIELDS[RlGoodputPartValues(part)]: track.values[-1]}
            found[role] = spent._replace(**values)
    return dict(sorted(found.items()))
