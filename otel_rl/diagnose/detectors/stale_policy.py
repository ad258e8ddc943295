"""Detectors of old weights, when generators do not take up new ones."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from math import inf

from otel_rl.diagnose.classify import Subject, Work, only_waits, tracks_about, work_of
from otel_rl.diagnose.history.delays import as_sent
from otel_rl.diagnose.history.recorded import may_lack_until
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.result import MOST_EVIDENCE, Cause, Evidence, Kind
from otel_rl.diagnose.stats.levels import LevelChange, begun, level
from otel_rl.diagnose.thresholds import (
    A_FEW,
    CLEARLY,
    FEWEST_PEERS,
    IN_ORDER,
    MUCH_LONGER,
    NEARLY_ALL,
    SEVERAL,
)
from otel_rl.semconv.spec import STEP_SPAN

_BEHIND = 2  # versions


def stale_policy(history: RunHistory) -> Iterator[Cause]:
    """Find generators that fall behind the trainer's weights, although pulling is no slower."""
    reported = set()
    for cause in _behind(history):
        reported.add(cause.role)
        yield cause
    for place, of in history.spans.items():
        is_of_steps = PhaseKey(place.role, STEP_SPAN) in history.spans
        if place.role not in reported and (stopped := _stopped(history, place)):
            reported.add(place.role)
            yield _of_no_pulls(place, stopped, among=len(of))
        if (
            work_of(place) is Work.SYNC
            and not is_of_steps
            and place not in history.unspanned
            and place.role not in reported
            and may_lack_until(history.counts[place]) < 0
        ):
            rarer = [
                (worker, change)
                for worker in of
                if (change := level(_between(history.counts[place][worker]), among=len(of)))
                is not None
                and change.is_rise(ratio=MUCH_LONGER)
                and change.after - change.before >= 1
                and _is_rarer_than_its_work(history, place, worker, change.step)
            ]
            if rarer:
                reported.add(place.role)
                yield _of_rare_pulls(place, rarer, among=len(of))


def _stopped(history: RunHistory, place: PhaseKey) -> Mapping[str, int]:
    """Return working workers that take up no more weights, with the last step in which they did.

    Workers of a stage that all end with the last step, as a trainer's own sync does, are left out.
    """
    if work_of(place) is not Work.SYNC or PhaseKey(place.role, STEP_SPAN) in history.spans:
        return {}
    stopped = {}
    unsure = may_lack_until(history.counts[place])
    for worker, track in history.counts[place].items():
        steps = sorted(set(track.steps))
        gaps = [b - a for a, b in pairwise(steps)]
        last = max([unsure, *steps[-1:]])
        since = history.last - last
        is_long = len(steps) >= SEVERAL and since >= max(SEVERAL, SEVERAL * max(gaps[-SEVERAL:]))
        if is_long and _works_until(history, place, worker) >= history.last - since // A_FEW:
            stopped[worker] = last
    return stopped


def _works_until(history: RunHistory, place: PhaseKey, worker: str) -> int:
    """Return the last step in which a worker that pulls weights generated; -1 for none.

    On a busy machine spans of pulls come later than measured phases, which count only as far as
    spans of the role have come.
    """
    of_role = {other: of for other, of in history.spans.items() if other.role == place.role}
    measured = history.unspanned if place not in history.unspanned else set()
    tracks = (of.values() for other, of in of_role.items() if other not in measured)
    reached = max((track.steps[-1] for of in tracks for track in of if track.steps), default=-1)
    return max(
        (
            min(of[worker].steps[-1], reached) if other in measured else of[worker].steps[-1]
            for other, of in of_role.items()
            if other != place and worker in of and of[worker].steps
            if not only_waits(history, other) and work_of(other) is Work.GENERATION
        ),
        default=-1,
    )


def _of_no_pulls(place: PhaseKey, stopped: Mapping[str, int], *, among: int) -> Cause:
    one = next(iter(stopped)) if len(stopped) == 1 < among else None
    since = min(stopped.values()) + 1
    return Cause(
        Kind.STALE_POLICY,
        f"{one or place.role} takes up no new weights since step {since}, and goes on working",
        role=place.role,
        worker=one,
        phase=place.phase,
        since=since,
        evidence=[
            Evidence(f"last step with {place.phase}", f"phase/{place}", worker, None, float(last))
            for worker, last in [*stopped.items()][:MOST_EVIDENCE]
        ],
    )


def _is_rarer_than_its_work(history: RunHistory, place: PhaseKey, worker: str, since: int) -> bool:
    """Return whether a worker pulls less often without a reason: it works as much between pulls.

    A worker that pulls before each piece of work pulls less often if its work takes more steps.
    """
    pieces = Counter[int]()
    for other, of in history.counts.items():
        is_work = not only_waits(history, other) and work_of(other) is not Work.SYNC
        if other.role == place.role and worker in of and is_work:
            pieces.update(_summed(of[worker]))
    pulls = Counter[int](_summed(history.counts[place][worker]))
    before, after = (
        sum(n for step, n in pieces.items() if (step < since) == early)
        / max(1, sum(n for step, n in pulls.items() if (step < since) == early))
        for early in (True, False)
    )
    return not pieces or after >= CLEARLY * before


def _summed(counts: Track) -> Mapping[int, int]:
    summed = Counter[int]()
    for step, count in counts.pairs():
        summed[step] += round(count)
    return summed


def _behind(history: RunHistory) -> Iterator[Cause]:
    """Find generators that are behind by their reported versions."""
    versions: dict[str, dict[str, Track]] = {}
    for key, worker, track in tracks_about(history, Subject.POLICY_VERSION):
        if worker is not None:
            versions.setdefault(key.partition("/")[0], {})[worker] = track
    if len(versions) < 2:
        return
    leader = _leader(versions)
    first, newest = max(versions[leader].items(), key=lambda one: len(one[1].values))
    of_leader = as_sent(history, first, newest)
    for role, of in versions.items():
        behind: list[tuple[str, LevelChange]] = []
        sent = [as_sent(history, worker, track) for worker, track in of.items()]
        newest, ahead = of_leader, leader
        if role == leader:
            # Who takes up versions may tell them before those who make them.
            if work_of(PhaseKey(role, "")) is Work.TRAINING or len(of) < FEWEST_PEERS:
                continue
            newest, ahead = _newest_of_all(sent), "its peers"
        for worker, gap in zip(of, versions_behind(newest, sent), strict=True):
            change = level(gap, among=len(of))
            if (
                change is not None
                and change.after - _farthest(gap.values[: change.change.place]) >= _BEHIND
                and change.change.order > IN_ORDER
                and change.is_clear
            ):
                behind.append((worker, begun(gap, change)))
        if not behind:
            continue
        worst = max(behind, key=lambda one: one[1].after)
        one = worst[0] if len(behind) == 1 and len(of) > 1 else None
        yield Cause(
            Kind.STALE_POLICY,
            f"{one or role} works with old weights since step {worst[1].step}: "
            f"{worst[1].after:.2g} versions behind {ahead}, {worst[1].before:.2g} before",
            role=role,
            worker=one,
            since=worst[1].step,
            evidence=[
                Evidence("versions behind", f"{role}/policy/version", worker, c.before, c.after)
                for worker, c in behind[:MOST_EVIDENCE]
            ],
        )


def _newest_of_all(reports: Iterable[Track]) -> Track:
    """Return the newest version that any worker had reported, at the time of each report."""
    newest, so_far = Track(), -inf
    told = (zip(of.times_s, of.steps, of.values, strict=True) for of in reports)
    for at_s, step, version in sorted(chain.from_iterable(told)):
        so_far = max(so_far, version)
        newest.add(step, at_s, so_far)
    return newest


def _farthest(behind: Sequence[float]) -> float:
    """Return the distance, in versions, that only few reports exceed."""
    return sorted(behind)[int(NEARLY_ALL * (len(behind) - 1))]


def _leader(versions: Mapping[str, Mapping[str, Track]]) -> str:
    """Return the role that first had the newest version, for most versions that others had, too.

    The last version alone may be that of several roles: roles that follow have it in the end, too.
    A mean of quick updates is a version that one role alone has had. The role that makes versions
    may report them later than roles that take them up, but none of these has newer ones.
    """
    first: dict[float, dict[str, float]] = defaultdict(dict)
    for role, of in versions.items():
        for track in of.values():
            for value, at_s in zip(track.values, track.times_s, strict=True):
                first[value][role] = min(first[value].get(role, at_s), at_s)
    led = Counter(
        role
        for at_s in first.values()
        if len(at_s) > 1
        for role, role_s in at_s.items()
        if role_s == min(at_s.values())
    )
    trains = {role: work_of(PhaseKey(role, "")) is Work.TRAINING for role in versions}
    shared = {role for at_s in first.values() if len(at_s) > 1 for role in at_s}
    newest = {role: max(value for value, at_s in first.items() if role in at_s) for role in shared}
    goes_on = {
        role: newest.get(role, -inf) > max(newest.values(), default=inf) - _BEHIND
        for role in versions
    }
    return max(versions, key=lambda role: (goes_on[role], led[role], trains[role], role))


def _of_rare_pulls(place: PhaseKey, rarer: list[tuple[str, LevelChange]], *, among: int) -> Cause:
    worst, change = max(rarer, key=lambda one: one[1].after)
    one = worst if len(rarer) == 1 < among else None
    return Cause(
        Kind.STALE_POLICY,
        f"{one or place.role} takes up new weights every {change.after:.2g} steps since step "
        f"{change.step}, every {change.before:.2g} before",
        role=place.role,
        worker=one,
        phase=place.phase,
        since=change.step,
        evidence=[
            Evidence(
                f"steps from one {place.phase} to the next",
                f"phase/{place}",
                worker,
                c.before,
                c.after,
            )
            for worker, c in rarer[:MOST_EVIDENCE]
        ],
    )


def _between(counts: Track) -> Track:
    """Return the steps between two events, from the number of events in each step."""
    between = Track()
    before = None
    for step, time_s, count in zip(counts.steps, counts.times_s, counts.values, strict=True):
        if before is not None and step > before and count:
            between.add(step, time_s, (step - before) / count)
        before = step
    return between


def versions_behind(newest: Track, reports: Iterable[Track]) -> Iterator[Track]:
    """Yield by how many versions each worker is behind, at the times of its own reports.

    Counting begins with the worker's first updates: no worker is far behind the first version. A
    worker that was replaced, and has an older version than before, begins again, unless it stays
    there.

    Args:
        newest: Versions of the leader.
        reports: Versions of each worker.
    """
    newest_s = [*accumulate(newest.times_s, max)]
    for own in reports:
        behind = Track()
        changes = place = 0
        again = inf  # reports until it should have taken up the newest
        before = None
        for step, time_s, value in zip(own.steps, own.times_s, own.values, strict=True):
            # A search, because a walk over all versions would be made for each worker.
            place = bisect_right(newest_s, time_s, lo=place)
            if before is not None and value < before:
                changes, again = 0, SEVERAL
            else:
                changes += before is not None and value != before
                again -= 1
            before = value
            if place and (changes >= A_FEW or again <= 0):
                behind.add(step, time_s, max(0.0, newest.values[place - 1] - value))
        yield behind
