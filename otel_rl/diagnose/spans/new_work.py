"""Work that workers begin in the middle of a run: another tool, a further model, a new loss."""

import re
from collections.abc import Iterator
from typing import Final

from otel_rl.diagnose.classify import only_waits
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["new_work"]

_START: Final = 10  # steps in which some work may not have come up yet
_FEWEST: Final = 4  # steps with it
_PART: Final = 0.5  # of the steps since then have it: an evaluation or a save comes now and then

# Work that is begun because of trouble, and not on purpose.
_TROUBLE: Final = re.compile(
    r"retr(y|ies)|recover|restart|reconnect|re?compil|backoff|fail|error|timeout|throttl|evict"
)


def new_work(history: RunHistory) -> Iterator[tuple[PhaseKey, int]]:
    """Yield (phase, first step) of work that workers have not done for the first part of a run.

    It is done in most steps since then, by workers that did other work before.
    """
    for place, tracks in history.spans.items():
        if place.phase == STEP_SPAN or _TROUBLE.search(place.phase):
            continue
        since = min((track.steps[0] for track in tracks.values() if track.steps), default=0)
        if since <= history.first + _START or only_waits(history, place):
            continue
        done = {step for track in tracks.values() for step in track.steps}
        if len(done) < max(_FEWEST, _PART * (history.last - since + 1)):
            continue
        if all(_worked_before(history, place, worker, since) for worker in tracks):
            yield place, since


def _worked_before(history: RunHistory, place: PhaseKey, worker: str, since: int) -> bool:
    return any(
        of[worker].steps[0] < since - _START
        for other, of in history.spans.items()
        if other.role == place.role and worker in of and of[worker].steps
    )
