"""Detector of workers that were frozen or cut off for a while, and then went on.

Other workers waited for them. No work of their own took longer: a stopped process ends its span
later, if it reports the span at all, and that is one of many steps.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

from otel_rl.diagnose.detectors.stalls import always_heard
from otel_rl.diagnose.history.departures import has_shrunk
from otel_rl.diagnose.history.quiet_workers import Silent
from otel_rl.diagnose.history.rhythm import Rhythm
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.history.track import gaps_s
from otel_rl.diagnose.result import MOST_WORKERS, Cause, Evidence, Kind, listed
from otel_rl.diagnose.thresholds import FAR, FEWEST_STEPS, LONGER, NEWS_S


def frozen_workers(history: RunHistory) -> Iterator[Cause]:
    """Find workers that were silent for a while, most others not, and steps longer meanwhile."""
    rhythm = Rhythm.of(history)
    if rhythm is None or rhythm.steps < FEWEST_STEPS:
        return
    silent = Silent(history)
    begun = sorted((at_s, step) for step, at_s in history.begun_s.items())
    known = sorted(history.known_steps)
    always = always_heard(history)
    taken_until_s = 0.0
    for begin_s, end_s in _silences(silent):
        if begin_s < taken_until_s:
            continue  # the others of these were silent at the same time
        since = begun[max(0, bisect_right(begun, (begin_s, history.last)) - 1)][1]
        until = begun[min(len(begun) - 1, bisect_left(begun, (end_s, 0)))][1]
        steps = bisect_right(begun, (end_s, history.last)) - bisect_right(
            begun, (begin_s, history.last)
        )
        steps = max(steps, bisect_left(known, until) - bisect_right(known, since))
        took_s = history.age_s(begin_s, end_s) / max(1, steps)
        if since < history.first + FEWEST_STEPS or took_s < LONGER * rhythm.usual_s:
            continue
        quiet = silent.between(begin_s, end_s)
        roles = {
            role
            for role in {name.rpartition("/")[0] for name in quiet}
            if role in always or _are_peers_heard(history, role, quiet)
            if not has_shrunk(history, role, begin_s, end_s)
        }
        workers = sorted(
            name
            for name in quiet
            if name.rpartition("/")[0] in roles and not _is_replaced(history, name, since)
        )
        if not any((begin_s, end_s) in silent.by_worker.get(name, ()) for name in workers):
            continue
        taken_until_s = end_s
        yield _cause(workers, end_s - begin_s, (since, until), (took_s, rhythm.usual_s))


def _silences(silent: Silent) -> Sequence[tuple[float, float]]:
    """Return the long silences that have ended, each once, in order of time."""
    found = {one for of in silent.by_worker.values() for one in of}
    return sorted(one for one in found if one[1] - one[0] >= NEWS_S)


def _are_peers_heard(history: RunHistory, role: str, quiet: Mapping[str, float]) -> bool:
    """Return whether most of a role went on to report, and were never silent for nearly as long.

    Workers of such a role report at all times, as those of a stock SDK may, though no setting says
    so. Most stock SDKs send only changes: they are silent while nothing changes.
    """
    of_role = [name for name in history.lags if name.rpartition("/")[0] == role]
    missed = [quiet[name] for name in of_role if name in quiet]
    others_s = (
        gap_s
        for name in of_role
        for gap_s in sorted(gaps_s(history.lags[name].times_s))[: -1 if name in quiet else None]
    )
    return 2 * len(missed) < len(of_role) and min(missed) >= FAR * max(others_s, default=0.0)


def _is_replaced(history: RunHistory, worker: str, since: int) -> bool:
    """Return whether another process took the worker's place, as the failure is then known."""
    return any(
        one.worker == worker and not one.is_same
        for one in history.failures
        if one.step is None or one.step >= since - FEWEST_STEPS
    )


def _cause(
    workers: Sequence[str], silent_s: float, steps: tuple[int, int], took_s: tuple[float, float]
) -> Cause:
    since, until = steps
    roles = {worker.rpartition("/")[0] for worker in workers}
    return Cause(
        Kind.STALL,
        f"{listed(workers)} reported nothing for {silent_s:.3g} s after "
        f"step {since}, and then went on: frozen, or cut off; a step took {took_s[0]:.3g} s "
        f"meanwhile, usually {took_s[1]:.3g}; over since step {until}",
        role=roles.pop() if len(roles) == 1 else None,
        worker=workers[0] if len(workers) == 1 else None,
        since=since,
        until=until,
        evidence=[
            Evidence("time without a report", None, worker, None, silent_s, "s")
            for worker in workers[:MOST_WORKERS]
        ],
    )
