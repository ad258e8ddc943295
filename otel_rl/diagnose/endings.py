"""Causes before the end of a run: a run may have been killed because it hung or was too slow.

The crash that follows is a fact, and explains nothing. So the run is diagnosed as it was before its
end, and the crash is ranked after what happened first.
"""

from collections.abc import Sequence
from copy import copy
from itertools import chain

from otel_rl.diagnose.detectors.hung_worker import hung_workers
from otel_rl.diagnose.detectors.idle_workers import idle_workers
from otel_rl.diagnose.detectors.processes import first_failure
from otel_rl.diagnose.detectors.stalls import stalls
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause, Kind
from otel_rl.diagnose.thresholds import NEWS_S, SLACK
from otel_rl.records import ExperimentStatus, WorkerFailure


def stalls_before_the_end(history: RunHistory) -> Sequence[Cause]:
    """Return the stalls that a run was in when it was killed, or when an error ended it."""
    failure = _end_of(history)
    lags = None if failure is None else history.lags.get(failure.worker)
    if lags is None:
        return ()
    before = copy(history)
    before.ends_s = min(history.ends_s, lags.times_s[-1])
    before.losses = [one for one in history.losses if one.time_s < before.ends_s]
    before.failures = [one for one in history.failures if one.recovery_s is not None]
    before.status = ExperimentStatus.RUNNING
    return [*chain(stalls(before), hung_workers(before), idle_workers(before))]


def in_order_of_time(history: RunHistory, causes: Sequence[Cause]) -> Sequence[Cause]:
    """Return the causes, with the end of a killed run after the causes that preceded it."""
    ends = [one for one in causes if one.kind is Kind.CRASH and one.since is not None]
    if not ends or not _is_killed(history):
        return causes
    (end,) = ends
    before = [one for one in causes if one is not end and _is_long_before(one, end)]
    return [*before, end, *(one for one in causes if one is not end and one not in before)]


def _end_of(history: RunHistory) -> WorkerFailure | None:
    """Return the failure that ended the run; None if the run did not crash."""
    if history.status != ExperimentStatus.CRASHED:
        return None
    return first_failure(history)


def _is_killed(history: RunHistory) -> bool:
    """Return whether all workers were gone at once, without an error of their own."""
    lasting = [one for one in history.failures if one.recovery_s is None]
    if history.status != ExperimentStatus.CRASHED or any(one.error for one in lasting):
        return False
    last_s = [track.times_s[-1] for track in history.lags.values() if track.times_s]
    own_s = [history.lags[one.worker].times_s[-1] for one in lasting if one.worker in history.lags]
    return bool(own_s) and min(own_s) >= max(last_s) - NEWS_S


def _is_long_before(cause: Cause, end: Cause) -> bool:
    return cause.since is not None and cause.since < (end.since or 0) - SLACK and not cause.until
