"""Uses logged times of each step in place of spans that came together.

Where steps are short, exports far apart and spans without their step, one record has the spans of
many steps, and their mean hides the few long ones. Many programs log the same times in each step.
"""

from collections.abc import Iterator
from copy import copy
from typing import Final

from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.history.timings import as_seconds, each_time, timed_part
from otel_rl.diagnose.history.track import Track
from otel_rl.diagnose.thresholds import ALIKE, FEWEST_STEPS

_FINER: Final = 2  # times as many values


def with_logged_work(history: RunHistory) -> RunHistory:
    """Return the history with logged times of work where those are finer; else the same one."""
    return history.once("logged work", None, lambda: _with_logged_work(history))


def _with_logged_work(history: RunHistory) -> RunHistory:
    found = dict(_finer(history))
    if not found:
        return history
    whole = copy(history)
    whole.spans, whole.counts = copy(history.spans), copy(history.counts)
    whole.spans.update(found)
    for place, tracks in found.items():
        whole.counts[place] = {
            worker: Track.of(track.steps, track.times_s, [1.0] * len(track.steps))
            for worker, track in tracks.items()
        }
    whole.forget_derived(found.keys())
    return whole


def _finer(history: RunHistory) -> Iterator[tuple[PhaseKey, dict[str, Track]]]:
    for key, logged in history.workers.items():
        part = timed_part(key)
        if part is None or not (spans := history.spans.get(place := PhaseKey(*part))):
            continue
        if place in history.unspanned or not spans.keys() <= logged.keys():
            continue
        tracks = {worker: each_time(as_seconds(key, logged[worker])) for worker in spans}
        if all(_is_finer(history, place, worker, track) for worker, track in tracks.items()):
            yield place, tracks


def _is_finer(history: RunHistory, place: PhaseKey, worker: str, logged: Track) -> bool:
    """Return whether a worker has logged its spans' time in more parts than the spans came in."""
    spans, counts = history.spans[place][worker], history.counts[place][worker]
    if len(spans.values) < FEWEST_STEPS or len(logged.values) < _FINER * len(spans.values):
        return False
    spans_s = sum(mean_s * n for mean_s, n in zip(spans.values, counts.values, strict=True))
    return spans_s <= ALIKE * sum(logged.values) <= ALIKE * ALIKE * spans_s
