"""Work that workers begin in the middle of a run: another tool, a further model, a new loss."""

import re
from collections.abc import Iterator
from typing import Final

from otel_rl.diagnose.classify import only_waits
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.thresholds import FEWEST_BEFORE, FEWEST_SINCE, HALF
from otel_rl.semconv.spec import STEP_SPAN

# Work that is begun because of trouble, and not on purpose.
_TROUBLE: Final = re.compile(
    r"retr(y|ies)|recover|restart|reconnect|re?compil|backoff|fail|error|timeout|throttl|evict"
)


def new_work(history: RunHistory) -> Iterator[tuple[PhaseKey, int]]:
    """Yield (phase, first step) of work that workers did not do in the first part of a run.

    Such work is done in most steps since then, by workers that did other work before.
    """
    for place, tracks in history.spans.items():
        if place.phase == STEP_SPAN or _TROUBLE.search(place.phase):
            continue
        since = min((track.steps[0] for track in tracks.values() if track.steps), default=0)
        if since <= history.first + FEWEST_BEFORE or only_waits(history, place):
            continue
        done = {step for track in tracks.values() for step in track.steps}
        if len(done) < max(FEWEST_SINCE, HALF * (history.last - since + 1)):
            continue
        if all(_worked_before(history, place, worker, since) for worker in tracks):
            yield place, since


def _worked_before(history: RunHistory, place: PhaseKey, worker: str, since: int) -> bool:
    return any(
        of[worker].steps[0] < since - FEWEST_BEFORE
        for other, of in history.spans.items()
        if other.role == place.role and worker in of and of[worker].steps
    )
