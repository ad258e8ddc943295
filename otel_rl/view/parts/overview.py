"""Data of the page *Overview* beside its charts: times of steps, goodput."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Final

from otel_rl.bridge.journal.reader import Standing, read_named_keys
from otel_rl.bridge.rows.stored_run import read_standing
from otel_rl.goodput import as_json as as_json_goodput
from otel_rl.goodput import in_words
from otel_rl.records import KeySpec
from otel_rl.view.found import Found
from otel_rl.view.run_data import RunData, Series
from otel_rl.view.text import label, passage

_MS_PER_S: Final = 1e3

_LAST_STEPS: Final = 20
_LAST_VALUES: Final = 200  # of a key that may have several in a step


def time_of_step(data: RunData, step: int | None) -> float | None:
    """Return when a step was, in ms since the epoch; None if no value is of it."""
    if step is None:
        return None
    places = ((of, of.place_of(step)) for of in data.series.values())
    return next((of.times_ms[place] for of, place in places if place is not None), None)


def step_seconds(data: RunData) -> float | None:
    """Return the median duration of the last steps, or time between their values without spans.

    None if neither is known.
    """
    last = [step.seconds for step in data.steps[-_LAST_STEPS:]] or _between_values(data)
    return median(last) if last else None


def _between_values(data: RunData) -> list[float]:
    """Return seconds per step between the values of the key with most of them."""
    series = max(data.series.values(), key=lambda one: len(one.values), default=Series())
    newest = zip(series.steps[-_LAST_VALUES:], series.times_ms[-_LAST_VALUES:], strict=True)
    ends = sorted(dict(newest).items())[-_LAST_STEPS:]
    return [
        (time_ms - earlier_ms) / _MS_PER_S / (step - earlier)
        for (earlier, earlier_ms), (step, time_ms) in pairwise(ends)
    ]


def standing_of(found: Found) -> Standing:
    """Return the standing of a run, just read."""
    with found.open() as connection:
        return read_standing(connection, found.id)


def keys_of(found: Found) -> Sequence[KeySpec]:
    """Return the keys of a run."""
    with found.open() as connection:
        return read_named_keys(connection, found.id).specs


def goodput(standing: Standing) -> dict[str, Any] | None:
    """Return the goodput of a run; None if it is unknown."""
    spent = standing.goodput
    if not in_words(spent):
        return None
    roles = {label(role): of for role, of in as_json_goodput(spent).items()}
    return {"words": passage(in_words(spent)), "spent": roles}
