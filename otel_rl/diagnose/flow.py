"""What is wrong between processes: samples do not come or get lost, messages are slow."""

import re
from collections import defaultdict
from collections.abc import Iterator
from math import isfinite
from statistics import fmean, median
from typing import NamedTuple

from otel_rl.diagnose.causes import Cause, Evidence, Kind
from otel_rl.diagnose.history import History, PhaseKey, Track
from otel_rl.diagnose.levels import Level, level, levels, medians, smoothed
from otel_rl.diagnose.pace import step_time, traces_of
from otel_rl.diagnose.vocabulary import Subject, Work, tracks_about, work_of

__all__ = ["evictions", "slow_messages", "starvation"]

_MIN_SHARE = 0.25
_MIN_DELAY_S = 0.01
_MIN_EVICTED = 0.1
_ANSWERED = 0.8  # of all calls, the rest being on their way or in another export
_MIN_PART_OF_STEP = 0.02  # that a call of one worker takes longer, if all others' take as long


def starvation(history: History) -> Iterator[Cause]:
    """Trainers wait for samples longer than they did."""
    steps = step_time(history)
    if not steps.values:
        return
    usual = median(steps.finite().values)
    found = sorted(
        (
            (change.after - change.before, place, worker, change)
            for place in history.waits
            if _is_wait_for_samples(place)
            for worker, track in history.spans[place].items()
            if (change := level(track)) is not None and _is_longer_wait(change, usual)
        ),
        key=lambda one: -one[0],
    )
    if not found:
        return
    more, place, _, change = found[0]
    evidence = [
        Evidence(
            f"{one.phase} of a step",
            f"phase/{one.role}/{one.phase}",
            of,
            by.before,
            by.after,
            "s",
            traces_of(history, by.step),
        )
        for _, one, of, by in found[:3]
    ]
    evidence += _idle_others(history, place.role)
    yield Cause(
        Kind.STARVATION,
        0.5 + 0.1 * min(1.0, more / usual) + 0.02 * min(5, len(evidence)),
        f"{place.role} waits for samples since step {change.step}: {place.phase} took "
        f"{change.before * 1e3:.3g} ms of a step before and {change.after * 1e3:.3g} ms now, and "
        "nobody who makes them works slower",
        role=place.role,
        phase=place.phase,
        since=change.step,
        evidence=evidence,
    )


def _is_longer_wait(change: Level, usual_s: float) -> bool:
    clear = change.is_rise(ratio=2.5, order=0.75, size=2.5) and change.jump > 0.3
    return clear and change.after - change.before >= _MIN_SHARE * usual_s


def _idle_others(history: History, role: str) -> Iterator[Evidence]:
    """What says that those who make samples have nothing to do."""
    for subject, what in ((Subject.IDLE_TIME, "idle time"), (Subject.QUEUE_DEPTH, "queue")):
        for key, worker, track in tracks_about(history, subject):
            moved = None if key.startswith(f"{role}/") else level(track)
            if moved is None or abs(moved.change.order) < 0.7:
                continue
            if (moved.after > moved.before) == (subject is Subject.IDLE_TIME):
                yield Evidence(what, key, worker, moved.before, moved.after)


def slow_messages(history: History) -> Iterator[Cause]:
    """Calls that take longer for their callers, and not for those who answer them."""
    answered: dict[str, list[tuple[str, Track]]] = defaultdict(list)
    answered_all = {one for one in ("http", "rpc") if _are_all_answered(history, one)}
    for key, _, track in tracks_about(history, Subject.SERVER_CALLS):
        for like in (_method(key), _protocol(key)):
            answered[like].append((key.partition("/")[0], track))
    late: list[_Late] = []
    for key, worker, track in tracks_about(history, Subject.CLIENT_CALLS):
        change = level(track)
        if change is None or not change.is_rise(ratio=1.7, order=0.75, size=2.0):
            continue
        servers = answered.get(_method(key), [])
        if not servers and _protocol(key) in answered_all:
            servers = answered[_protocol(key)]
        served = [
            found[1] - found[0]
            for _, one in servers
            if (found := medians(one, change.step)) is not None
        ]
        on_the_way = change.after - change.before - max(served, default=0.0)
        if on_the_way >= max(_MIN_DELAY_S, 0.5 * (change.after - change.before)):
            late.append(_Late(on_the_way, change, key, worker, frozenset(of for of, _ in servers)))
    syncs = list(_slower_syncs(history))
    late = [one for one in late if not _is_of_a_sync(one, syncs)]
    # Where nobody says how long it took to answer, it may have been the answer.
    if not any(one.answered_by for one in late):
        return
    late.sort(key=lambda one: (not one.answered_by, -one.on_the_way))
    worst = late[0]
    if len(late) == 1 and worst.on_the_way < _MIN_PART_OF_STEP * _step_since(history, worst):
        return
    since = int(median(one.change.step for one in late))
    roles = {one.key.partition("/")[0] for one in late}
    workers = {one.worker for one in late}
    yield Cause(
        Kind.NETWORK_DELAY,
        0.8 + 0.02 * min(5, len(late)),
        f"messages take {worst.on_the_way * 1e3:.3g} ms longer on their way since step {since}: "
        f"{worst.key} of {worst.worker or 'its callers'} went from "
        f"{worst.change.before * 1e3:.3g} to {worst.change.after * 1e3:.3g} ms, and those who "
        "answer are as fast as before",
        role=next(iter(roles)) if len(roles) == 1 else None,
        worker=worst.worker if len(workers) == 1 else None,
        since=since,
        answered_by=frozenset().union(*(one.answered_by for one in late)),
        evidence=[
            Evidence(
                "time of a call, for its caller",
                one.key,
                one.worker,
                one.change.before,
                one.change.after,
                "s",
            )
            for one in late[:6]
        ],
    )


class _Late(NamedTuple):
    """Calls that take longer for their caller than for those who answer.

    Attributes:
        on_the_way: How much longer, in s.
        change: Of the time for the caller.
        key: Of that, for a person to look at.
        worker: The caller, if that is known.
        answered_by: The roles that say how long they take to answer.
    """

    on_the_way: float
    change: Level
    key: str
    worker: str | None
    answered_by: frozenset[str]


def evictions(history: History) -> Iterator[Cause]:
    """Samples leave the buffer unused, more than they did, and a good part of all."""
    found: list[tuple[float, str, str | None, Level]] = []
    for key, worker, track in tracks_about(history, Subject.EVICTIONS):
        # Neighbours of a mean are alike, so they are in order by chance more often.
        rises = (
            one
            for one in levels(smoothed(track), shortest=6)
            if one.is_rise(ratio=4.0, order=0.75, size=1.5)
        )
        if (change := next(rises, None)) is not None:
            rate = _mean_since(track, change.step)
            if rate >= _MIN_EVICTED * _intake(history, key, worker, change.step):
                found.append((rate, key, worker, change))
    if not found:
        return
    found.sort(key=lambda one: -one[0])
    _, key, _, change = found[0]
    yield Cause(
        Kind.EVICTION,
        0.72,
        f"samples are thrown away unused since step {change.step}: {key} rose from "
        f"{change.before:.3g} to {change.after:.3g} per export",
        role=key.partition("/")[0],
        since=change.step,
        evidence=[
            Evidence("samples evicted or dropped per export", of, by, c.before, c.after)
            for _, of, by, c in found[:4]
        ],
    )


def _intake(history: History, key: str, worker: str | None, since: int) -> float:
    """What comes into the buffer per export, if it says so."""
    role = key.partition("/")[0]
    taken = [
        _mean_since(track, since)
        for other, by, track in tracks_about(history, Subject.INTAKE)
        if other.partition("/")[0] == role and by in {None, worker}
    ]
    return max(taken, default=0.0)


def _mean_since(track: Track, step: int) -> float:
    values = [
        v for s, v in zip(track.steps, track.values, strict=True) if s >= step and isfinite(v)
    ]
    return fmean(values) if values else 0.0


def _is_wait_for_samples(place: PhaseKey) -> bool:
    words = ("collector", "replay", "batch", "sample", "data", "rollout", "queue", "fetch")
    learner = not any(word in place.role for word in ("generator", "reward", "env", "rollout"))
    return learner and any(word in place.phase for word in words)


def _step_since(history: History, late: _Late) -> float:
    """How long a step takes since then, in s."""
    found = medians(step_time(history), late.change.step)
    return found[1] if found is not None else 0.0


def _slower_syncs(history: History) -> Iterator[tuple[str, Level]]:
    """(worker, level) of transfers of weights that take longer: their calls are no messages."""
    for place, of in history.spans.items():
        if work_of(place) is Work.SYNC:
            for worker, track in of.items():
                change = level(track)
                if change is not None and change.is_rise(ratio=1.7):
                    yield worker, change


def _is_of_a_sync(late: _Late, syncs: list[tuple[str, Level]]) -> bool:
    """Whether the calls became slower by what a transfer of weights of that worker did."""
    more = late.change.after - late.change.before
    return any(
        late.worker in {None, by} and 0.6 * more <= change.after - change.before <= 1.6 * more
        for by, change in syncs
    )


def _method(key: str) -> str:
    """What follows the name of the metric: the method, as an attribute stands in a key."""
    return key.partition("duration")[2]


def _protocol(key: str) -> str:
    return "http" if re.search(r"(^|/)http/(client|server)/", key) else "rpc"


def _are_all_answered(history: History, protocol: str) -> bool:
    """Whether about as many calls were answered as made: nobody else was called.

    Who calls and who answers need not say the same of a call. Of HTTP one says to which port it
    was, the other on which route.
    """
    made, answered = (
        sum(
            sum(counts.values)
            for key, of in history.measurements.items()
            if re.search(subject, key) and _protocol(key) == protocol
            for counts in of.values()
        )
        for subject in (Subject.CLIENT_CALLS, Subject.SERVER_CALLS)
    )
    return answered >= _ANSWERED * made
