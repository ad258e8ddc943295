"""Detector of messages that take longer in transit, while answers are as fast as before."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from statistics import fmean, median
from typing import NamedTuple

from otel_rl.diagnose.classify import Subject, Work, only_waits, tracks_about, work_of
from otel_rl.diagnose.detectors.slow_phases import in_seconds
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.result import MOST_WORKERS, Cause, Evidence, Kind
from otel_rl.diagnose.stats.levels import LevelChange, common_ratio, medians, settled, soon
from otel_rl.diagnose.stats.pooled import pooled
from otel_rl.diagnose.step_times import step_time
from otel_rl.diagnose.thresholds import (
    A_FEW,
    AS_MUCH,
    FEWEST_SINCE,
    GOOD_PART,
    HALF,
    IN_ORDER,
    IN_ORDER_OF_STEPS,
    LARGE_PART,
    LEAST_PART,
    LONGER,
    MOSTLY,
    MUCH_LONGER,
)

_PROTOCOLS = ("http", "rpc")
_MIN_DELAY_S = 0.01


def slow_messages(history: RunHistory) -> Iterator[Cause]:
    """Find calls that take longer for their callers, but not for the roles that answer."""
    syncs = list(_slower_syncs(history))
    late = [one for one in _late_calls(history) if not _is_of_a_sync(one, syncs)]
    # A single long call may be told twice: soon is only what most callers tell.
    if 2 * len(late) <= _comparable(history):
        named = {(one.key, one.worker) for one in late}
        late = [one for one in late if one.is_lasting and _is_apart(history, one, named)]
    # Without a reported answer time, the answer itself may have become slower.
    if not any(one.answered_by for one in late):
        return
    late.sort(key=lambda one: (not one.answered_by, -one.on_the_way))
    worst = late[0]
    is_little = worst.on_the_way < LEAST_PART * _step_since(history, worst)
    if len(late) == 1 and is_little and not _is_felt(history, worst):
        return
    if len(late) < LARGE_PART * _comparable(history) and not _is_felt(history, worst):
        return
    if not any(_explains(history, one) for one in late):
        return  # what makes steps longer makes calls longer, as a host that is busy with other work
    since = int(median(one.change.step for one in late))
    roles = {one.key.partition("/")[0] for one in late}
    workers = {one.worker for one in late}
    yield Cause(
        Kind.NETWORK_DELAY,
        f"messages take {in_seconds(worst.on_the_way)} longer on their way since step {since}: "
        f"{worst.key} of {worst.worker or 'its callers'} went from "
        f"{in_seconds(worst.change.before)} to {in_seconds(worst.change.after)}, and those who "
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
            for one in late[:MOST_WORKERS]
        ],
    )


def _late_calls(history: RunHistory) -> Iterator["_Late"]:
    """Find calls whose added time is mostly spent in transit."""
    answered: dict[str, list[tuple[str, Track]]] = defaultdict(list)
    by_answer = {protocol: _part_of_answers(history, protocol) for protocol in _PROTOCOLS}
    for key, _, track in tracks_about(history, Subject.SERVER_CALLS):
        for like in (_method(key), _protocol(key)):
            answered[like].append((key.partition("/")[0], track))
    work = _work_without_syncs(history)
    for key, worker, track in tracks_about(history, Subject.CLIENT_CALLS):
        track = settled(track)
        change = soon(track, among=len(history.workers.get(key, ())))
        if change is None or not change.is_rise(ratio=MUCH_LONGER, order=IN_ORDER_OF_STEPS):
            continue
        if change.ratio < MUCH_LONGER * common_ratio(work, change.step):
            continue
        more = change.after - change.before
        if servers := answered.get(_method(key), []):
            served = [
                found[1] - found[0]
                for _, one in servers
                if (found := medians(one, change.step)) is not None
            ]
        elif (part := by_answer[_protocol(key)]) is not None:
            servers, served = answered[_protocol(key)], [part * more]
        else:
            served = []
        on_the_way = min(more, _longer_fastest(track, change)) - max(served, default=0.0)
        if on_the_way >= max(_MIN_DELAY_S, HALF * more):
            yield _Late(on_the_way, change, key, worker, frozenset(of for of, _ in servers))


def _longer_fastest(track: Track, change: LevelChange) -> float:
    """Return by how many seconds the fastest calls take longer.

    A longer transit slows each message; a queue before the answer only slows some.
    """
    values, place = track.finite().values, change.change.place
    before, after = sorted(values[:place]), sorted(values[place:])
    return after[int(LARGE_PART * len(after))] - before[int(LARGE_PART * len(before))]


class _Late(NamedTuple):
    """Calls that take longer for their caller than for the roles that answer.

    Attributes:
        on_the_way: Added time in transit, in s.
        change: Change of the caller's time.
        key: Tracker key of the caller's time.
        worker: The caller, if it is known.
        answered_by: Roles that report how long they take to answer.
    """

    on_the_way: float
    change: LevelChange
    key: str
    worker: str | None
    answered_by: frozenset[str]

    @property
    def is_lasting(self) -> bool:
        """Return whether the finding does not rest on the last few values."""
        return self.change.change.length - self.change.change.place >= FEWEST_SINCE


def _is_apart(history: RunHistory, late: _Late, named: Collection[tuple[str, str | None]]) -> bool:
    """Return whether calls take longer than those of most other callers of the same servers.

    A queue before the answer is long for one caller and then for another, and longest for all
    alike; a transit is long for one. Some callers may be farther away than others.
    """
    others = [
        since
        for worker, track in history.workers.get(late.key, {}).items()
        if (late.key, worker) not in named and (since := _since(history, late, track))
    ]
    if not others:
        return True
    own = _since(history, late, history.workers.get(late.key, {}).get(late.worker or "", Track()))
    longest_s = median(map(_slowest, others))
    is_longest = not own or _slowest(own) >= longest_s + HALF * late.on_the_way
    return is_longest and late.change.after >= LONGER * median(map(median, others))


def _since(history: RunHistory, late: _Late, track: Track) -> Sequence[float]:
    return settled(track).finite().between(late.change.step, history.last).values


def _slowest(values: Sequence[float]) -> float:
    return sorted(values)[int((1 - LARGE_PART) * (len(values) - 1))]


def _work_without_syncs(history: RunHistory) -> list[Track]:
    """Return the times of the phases that do work, each over its workers."""
    return [
        pooled(history, place)
        for place in history.spans
        if not only_waits(history, place) and work_of(place) is not Work.SYNC
    ]


def _comparable(history: RunHistory) -> int:
    return sum(1 for _ in tracks_about(history, Subject.CLIENT_CALLS))


def _is_felt(history: RunHistory, late: _Late) -> bool:
    """Return whether steps take longer by at least half of what the calls added."""
    found = medians(step_time(history), late.change.step, shortest=A_FEW)
    return found is not None and found[1] - found[0] >= HALF * late.on_the_way


def _explains(history: RunHistory, late: _Late) -> bool:
    """Return whether calls explain a good part of the time by which a worker's steps are longer."""
    found = medians(step_time(history), late.change.step, shortest=A_FEW)
    if found is None:
        return True
    calls = max(1.0, _calls(history, late) / max(1, history.last - late.change.step + 1))
    return calls * late.on_the_way >= GOOD_PART * (found[1] - found[0])


def _calls(history: RunHistory, late: _Late) -> float:
    """Return how many calls a caller has made since then; those of a histogram are in its rows."""
    callers = history.workers.get(late.key, {})
    own = history.measurements.get(late.key, {}).get(late.worker or "", Track())
    in_rows = history.rows.get(f"{late.key}/count", Track()).finite()
    told, of_all = (
        sum(track.between(late.change.step, history.last).values) for track in (own, in_rows)
    )
    return max(told, of_all / max(1, len(callers)))


def _step_since(history: RunHistory, late: _Late) -> float:
    found = medians(step_time(history), late.change.step)
    return found[1] if found is not None else 0.0


def _slower_syncs(history: RunHistory) -> Iterator[tuple[str, LevelChange]]:
    """Yield (worker, level) of slower weight transfers, whose calls are not messages."""
    for place, of in history.spans.items():
        if work_of(place) is Work.SYNC:
            for worker, track in of.items():
                change = soon(settled(track))
                if change is not None and change.is_rise(ratio=MUCH_LONGER):
                    yield worker, change


def _is_of_a_sync(late: _Late, syncs: list[tuple[str, LevelChange]]) -> bool:
    """Return whether the calls became slower by a weight transfer of that worker."""
    more = late.change.after - late.change.before
    return any(late.worker in {None, by} and _is_as_much(change, more) for by, change in syncs)


def _is_as_much(change: LevelChange, more: float) -> bool:
    least, most = AS_MUCH
    return least * more <= change.after - change.before <= most * more


def _method(key: str) -> str:
    """Return the part after the metric's name: the method, as an attribute in a key."""
    return key.partition("duration")[2]


def _protocol(key: str) -> str:
    return "http" if re.search(r"(^|/)http/(client|server)/", key) else "rpc"


def _part_of_answers(history: RunHistory, protocol: str) -> float | None:
    """Return the part of the added time that answers explain; None unless all calls are reported.

    Callers and servers may label a call differently: of HTTP one reports the port, the other the
    route. But if as many calls were answered as made, the sums agree. If some share labels, the
    missing reports can be identified.
    """
    made_to, answered_by = (
        {_method(key) for key, *_ in tracks_about(history, subject) if _protocol(key) == protocol}
        for subject in (Subject.CLIENT_CALLS, Subject.SERVER_CALLS)
    )
    if made_to & answered_by:
        return None
    calls = dict.fromkeys((Subject.CLIENT_CALLS, Subject.SERVER_CALLS), 0.0)
    longer_s = dict(calls)
    for key, of in history.workers.items():
        if _protocol(key) == protocol and f"{key}/count" in history.rows:
            count = sum(history.rows[f"{key}/count"].finite().values)
            longer = fmean(_longer_s(track) for track in of.values())
            for subject in calls:
                if re.search(subject, key):
                    calls[subject] += count
                    longer_s[subject] += count * longer
    made, answered = calls.values()
    made_s, answered_s = longer_s.values()
    return answered_s / made_s if made_s > 0 and answered >= MOSTLY * made else None


def _longer_s(track: Track) -> float:
    """Return by how many seconds the series grew, or 0."""
    change = soon(settled(track))
    return change.after - change.before if change and change.change.order >= IN_ORDER else 0.0
