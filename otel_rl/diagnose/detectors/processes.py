"""Detectors of process faults: crashes, thrashing, throttling, clock skew."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate
from math import inf
from statistics import median

from otel_rl.diagnose.classify import Subject, summed_by_step, tracks_about, with_gaps
from otel_rl.diagnose.detectors.slow_phases import in_seconds
from otel_rl.diagnose.detectors.stalls import always_heard
from otel_rl.diagnose.history.quiet_workers import QUIET_S, quiet_workers
from otel_rl.diagnose.history.rhythm import Rhythm
from otel_rl.diagnose.history.run_history import Loss, RunHistory, Track
from otel_rl.diagnose.history.track import gaps_s, newest_s
from otel_rl.diagnose.result import MOST_EVIDENCE, Cause, Evidence, Kind
from otel_rl.diagnose.stats.changes import LEAST_DIVISOR
from otel_rl.diagnose.stats.levels import LevelChange, level, medians, smoothed, soon
from otel_rl.diagnose.thresholds import (
    A_FEW,
    FEWEST_PEERS,
    FEWEST_STEPS,
    GOOD_PART,
    HALF,
    IN_ORDER,
    IN_ORDER_OF_MANY,
    LEAST_PART,
    LONGER,
    NEARLY_ALL,
    NEWS_S,
    NOISE_OF_COUNTS,
    OFTEN,
    SEVERAL,
    SLACK,
    SMALL_PART,
)
from otel_rl.records import ExperimentStatus, WorkerFailure

_CRASHES_OF_ONE = 2
_FEWEST_OF_JOB = 2  # workers
_SKEW_S = 1.5
_LATE_OF_TWO_S = 15.0  # an SDK's exporter waits for 5 s and sends for up to 10
_EVIDENT_SKEW_S = 0.02
_OF_MISSES = 0.3  # weight of cache misses
_MORE_GC, _IN_ORDER_OF_GC = 3.0, 0.6  # times before: collections come now and then


def crashes(history: RunHistory) -> Iterator[Cause]:
    """Find the failure that ended the run, else the first lasting error of a worker."""
    failure = first_failure(history)
    has_crashed = history.status == ExperimentStatus.CRASHED
    if failure is None or failure.is_interrupt or _was_through(history, failure):
        return
    goes_on = not _stands_still(history, failure) and not _is_left(history, failure)
    if not has_crashed and failure.error is None and goes_on:
        return
    role = failure.worker.rpartition("/")[0]
    if any(loop.role == role for loop in crash_loops(history)):
        return
    lost = _lost_peer(history, failure)
    if lost is not None:
        yield lost
        return
    yield Cause(
        Kind.CRASH,
        failure.as_crash if has_crashed else failure.in_a_live_run,
        role=role,
        worker=failure.worker,
        since=failure.step,
        evidence=[Evidence(failure.message)] if failure.message else (),
    )


def first_failure(history: RunHistory) -> WorkerFailure | None:
    """Return the failure that caused the last ones, however much later those came.

    If a worker is lost that all wait for, the others stand still until somebody ends them, which
    they may report as errors.
    """
    ended = ended_with_the_run(history)
    failures = [one for one in history.failures if one.worker not in ended]
    first = WorkerFailure.first_cause(failures)
    rhythm = Rhythm.of(history)
    if first is None or first.is_interrupt or rhythm is None or rhythm.steps < FEWEST_STEPS:
        return first
    for one in sorted(failures, key=lambda one: one.time_ns):
        if one.recovery_s is not None or one.step is None or one.time_ns >= first.time_ns:
            continue
        stood_s = (first.time_ns - one.time_ns) / 1e9
        more = history.last - one.step
        # At least the step in progress takes its time.
        is_long = stood_s > max(NEWS_S, A_FEW * max(1, more) * rhythm.usual_s)
        if is_long and more <= SLACK:
            return one
    return first


def _lost_peer(history: RunHistory, failure: WorkerFailure) -> Cause | None:
    """Return the silent worker whose end an error reports, before its lease has ended."""
    if not failure.is_by_lost_peer:
        return None
    known, always = {one.worker for one in history.failures}, always_heard(history)
    quiet = quiet_workers(history, history.ends_s - QUIET_S, history.ends_s)
    silent = {
        name: silent_s
        for name, silent_s in quiet.items()
        if name not in known and name.rpartition("/")[0] in always
    }
    if len(silent) != 1:
        return None
    ((worker, silent_s),) = silent.items()
    exports = history.lags[worker]
    return Cause(
        Kind.CRASH,
        f"{worker} has reported nothing for {silent_s:.3g} s: killed, frozen, or cut off; "
        f"{failure} lost its connection",
        role=worker.rpartition("/")[0],
        worker=worker,
        since=exports.steps[-1],
        evidence=[Evidence(failure.message)] if failure.message else (),
    )


def _was_through(history: RunHistory, failure: WorkerFailure) -> bool:
    """Return whether a worker without a reported end had done the last steps of a finished run.

    Makers of samples finish before the workers that train on them, which then wait for nobody.
    """
    is_told = failure.error is not None or failure.reports_ends
    if is_told or failure.step is None or history.status != ExperimentStatus.COMPLETE:
        return False
    if history.last - failure.step > 1:
        return False
    at_work = [newest_s(of) for of in history.spans.values()]
    alive = [newest_s(history.lags), *map(newest_s, history.workers.values())]
    worked_s = max([*at_work, *history.begun_s.values()], default=0.0)
    return max(alive) <= worked_s + _at_once_s(history)


def _stands_still(history: RunHistory, failure: WorkerFailure) -> bool:
    """Return whether the run's last step is far longer ago than a step takes."""
    rhythm = Rhythm.of(history)
    if failure.step is None or rhythm is None or rhythm.steps < FEWEST_STEPS:
        return False
    if history.last >= failure.step + A_FEW:
        return False  # others could do without it
    return rhythm.stands_s > max(NEWS_S, LONGER * rhythm.longest_s)


def _is_left(history: RunHistory, failure: WorkerFailure) -> bool:
    """Return whether a worker was not heard of any more, while others made further steps."""
    if failure.step is None or history.last < failure.step + A_FEW:
        return False
    lost = [loss for loss in history.losses if loss.worker == failure.worker]
    own = history.lags.get(failure.worker)
    return bool(lost) and (own is None or own.times_s[-1] <= lost[-1].time_s)


def fell_silent_together(history: RunHistory) -> bool:
    """Return whether all workers stopped at once, and have SDKs that report no end.

    Nobody can tell whether their run has ended or was killed.
    """
    return bool(ended_with_the_run(history))


def ended_with_the_run(history: RunHistory) -> AbstractSet[str]:
    """Return the workers that fell silent with all others, and have SDKs that report no end.

    Their leases end one after the other, so the first one to be missed is not the first to stop.
    """
    lasting = [one for one in history.failures if one.recovery_s is None]
    if not lasting or any(one.error is not None or one.reports_ends for one in lasting):
        return frozenset()
    last_s: dict[str, float] = {}  # by the bridge's clock: a worker's own may be wrong
    for of in (history.lags, *history.spans.values(), *history.workers.values()):
        for name, track in of.items():
            last_s[name] = max(last_s.get(name, 0.0), track.times_s[-1])
    silent = {one.worker for one in lasting}
    # Processes without a part in steps, such as a buffer, may outlive the others.
    at_work = {name for of in history.spans.values() for name in of} & {*last_s} or {*last_s}
    newest_s = _latest_s({name: last_s[name] for name in at_work})
    together = {name for name, at_s in last_s.items() if at_s >= newest_s - _at_once_s(history)}
    # One that is missed among others that go on is dead: those are silent for as long.
    quiet_s = history.ends_s - newest_s
    is_over = together & at_work <= silent or quiet_s >= NEWS_S
    return silent & together if is_over else frozenset()


def _latest_s(last_s: Mapping[str, float]) -> float:
    """Return the last sign of life of the run, without the few of several roles that live on.

    A controller may write its results after other workers have left.
    """
    times_s = sorted(last_s.values())
    if not times_s:
        return 0.0
    roles = {name.rpartition("/")[0] for name in last_s}
    return times_s[int(OFTEN * (len(times_s) - 1))] if len(roles) > 1 else times_s[-1]


def _at_once_s(history: RunHistory) -> float:
    """Return the seconds within which the last reports of a run come if it ends at once.

    Each role reports at its own part of a step, and no more often than its SDK exports.
    """
    begun_s = [history.begun_s[step] for step in sorted(history.begun_s)]
    return max(_noticed_s(history), A_FEW * median(gaps_s(begun_s) or [0.0]))


def _noticed_s(history: RunHistory) -> float:
    """Return the seconds within which workers that stop at once are missed: exports take turns."""
    exports_s = [median(gaps_s(track.times_s) or [0.0]) for track in history.lags.values()]
    return max(NEWS_S, 2 * max(exports_s, default=0.0))


def crash_loops(history: RunHistory) -> Iterator[Cause]:
    """Find workers of a role that fail repeatedly. A single failure is an accident.

    Workers that stop together have failed once: a launcher restarts all of them, or a host is lost.
    """
    of_role: dict[str, list[Loss]] = {}
    ended = Counter[str]()
    with_the_run = ended_with_the_run(history)
    newest = {loss.worker: loss for loss in history.losses}
    noticed_s = _noticed_s(history) if history.losses else 0.0
    restarts = _restarts(history, noticed_s)
    for loss in history.losses:
        role = loss.worker.partition("/")[0]
        if loss.worker in with_the_run and loss is newest[loss.worker]:
            ended[role] += 1
        else:
            of_role.setdefault(role, []).append(loss)
    roles = {
        key.split("/")[1]: track
        for key, track in history.rows.items()
        if key.startswith("service/") and key.endswith("/failures") and key.count("/") == 2
    }
    for role in sorted({*of_role, *roles}):
        lost = of_role.get(role, [])
        # The count may be of workers that were only silent, and have reported since.
        is_counted = role in roles and role not in history.returned_roles
        counted = _grown(roles[role]) - ended[role] if is_counted else 0.0
        failures = max(len(lost), int(counted))
        workers = Counter(loss.worker for loss in lost if loss not in restarts)
        worker, most = workers.most_common(1)[0] if workers else (None, 0)
        times = _incidents(lost, noticed_s) + failures - len(lost)
        if times < A_FEW and most < _CRASHES_OF_ONE:
            continue
        if most == 1 and not _came_back(history, role):
            continue  # each has failed once: the end of the run, or the loss of some workers
        one = worker if most > failures / 2 else None
        since = _first_step(history, role, lost)
        if since is None:
            since = _first_rise(roles.get(role, Track()))
        yield Cause(
            Kind.CRASH_LOOP,
            f"{one or role} fails again and again: {failures} times since step {since}",
            role=role,
            worker=one,
            since=since,
            evidence=[
                Evidence(
                    "failures of workers",
                    key=f"service/{role}/failures",
                    worker=one,
                    before=0.0,
                    after=float(failures),
                )
            ],
        )


def _came_back(history: RunHistory, role: str) -> bool:
    """Return whether a role's failed worker was replaced, or failures of the role are unknown."""
    of_role = [one for one in history.failures if one.worker.rpartition("/")[0] == role]
    return not of_role or any(one.recovery_s is not None for one in of_role)


def clock_skew(history: RunHistory) -> Iterator[Cause]:
    """Find workers whose clock differs from all others, as exports come far too early or late.

    Links between spans prove much smaller differences, unless the exports contradict them: a
    message sent long before its span ended proves nothing.
    """
    measured = {worker: lags for worker, lags in history.lags.items() if len(lags.values) >= A_FEW}
    proven: dict[str, list[float]] = {}
    for step in history.steps:
        for worker, ahead_s in step.clocks:
            proven.setdefault(worker, []).append(ahead_s)
    usual, ahead = _UsualLags(measured), _few_ahead(history, measured)
    for worker, lags in sorted(measured.items()):
        middle_s = usual.of(lags.times_s[0], lags.times_s[-1], 0.0 if worker in ahead else None)
        if middle_s is None:
            continue
        ahead_s, since = middle_s - min(lags.values), None
        if abs(ahead_s) < _SKEW_S and (first := _set_back(lags)) is not None:
            middle_s = usual.of(lags.times_s[first], lags.times_s[-1])
            if middle_s is not None:
                ahead_s, since = middle_s - min(lags.values[first:]), lags.steps[first]
        is_unsure = len(measured) < FEWEST_PEERS and -_LATE_OF_TWO_S < ahead_s < _SKEW_S
        if is_unsure or _catches_up(lags.values, -ahead_s):
            continue
        if abs(ahead_s) < _SKEW_S:
            if worker in proven and abs(ahead_s - median(proven[worker])) > abs(ahead_s):
                proven.pop(worker)
            continue
        when = "before" if ahead_s > 0 else "long after"
        what = f"exports come {when} their time by the bridge's clock"
        yield _skewed(worker, ahead_s, what, since)
        proven.pop(worker, None)
    for worker, found in sorted(proven.items()):
        ahead_s = median(found)
        if abs(ahead_s) >= _EVIDENT_SKEW_S and len(found) * A_FEW >= len(history.steps):
            yield _skewed(worker, ahead_s, "messages are received before they are sent")


def _few_ahead(history: RunHistory, measured: Mapping[str, Track]) -> AbstractSet[str]:
    """Return the workers whose exports all come before their time; none if most do.

    Of workers that only send spans, exports are only known if they have a span of the future.
    """
    ahead = {worker for worker, lags in measured.items() if max(lags.values) <= -_SKEW_S}
    known = {*history.lags, *(worker for of in history.spans.values() for worker in of)}
    return ahead if len(known) >= FEWEST_PEERS and 2 * len(ahead) < len(known) else frozenset()


class _UsualLags:
    """Least lag of most workers over time, as the bridge's clock may be set, or all be held up."""

    def __init__(self, measured: Mapping[str, Track]) -> None:
        self._measured = measured
        self._ever_s = {worker: min(lags.values) for worker, lags in measured.items()}
        self._known: dict[tuple[float, float], float | None] = {}  # most workers live as long

    def of(self, begun_s: float, ended_s: float, otherwise_s: float | None = None) -> float | None:
        """Return the lag in s; ``otherwise_s`` if too few workers were heard."""
        lived = begun_s, ended_s
        if lived not in self._known:
            self._known[lived] = self._found(*lived)
        usual_s = self._known[lived]
        return otherwise_s if usual_s is None else usual_s

    def _found(self, begun_s: float, ended_s: float) -> float | None:
        measured = self._measured
        least_s = [
            self._ever_s[name] if len(at_the_time) == len(track.values) else min(at_the_time)
            for name, track in measured.items()
            if len(at_the_time := _meanwhile(track, begun_s, ended_s)) >= A_FEW
        ]
        if len(measured) == len(least_s) == FEWEST_PEERS - 1:
            return _agreed(least_s)
        # Its own one among them: of two others, a wrong clock would move the middle.
        return median(least_s) if len(least_s) >= FEWEST_PEERS else None


def _set_back(lags: Track) -> int | None:
    """Return the place of the first export after a worker's clock was set back; None without one.

    The worker's own time is then before that of an earlier export. Exports that were held up come
    in order and catch up; a clock that was set keeps its distance.
    """
    times_s, values = lags.times_s, lags.values
    ever_s, least_s = min(values), inf
    for place in range(len(values) - 1, 1, -1):
        least_s = min(least_s, values[place])
        if least_s < ever_s + _SKEW_S / 2:
            break
        # An export of a snapshot may have arrived at any time since the snapshot before.
        farther_s = values[place] - values[place - 1]
        if farther_s < _SKEW_S or farther_s <= times_s[place] - times_s[place - 2]:
            continue
        middle = (place + len(values)) // 2
        if len(values) - place < SEVERAL or least_s < values[place - 1] + farther_s / 2:
            continue
        moved_s = abs(min(values[place:middle]) - min(values[middle:]))
        if moved_s <= SMALL_PART * farther_s:
            return place
    return None


def _catches_up(lags_s: Sequence[float], late_s: float) -> bool:
    """Return whether exports come nearer to their time, one by one, as delayed ones do.

    Exports wait while the bridge starts, or cannot be reached. A wrong clock keeps its distance.
    """
    *_, before, last, newest = lags_s
    return before > last > newest == min(lags_s) and before - newest > GOOD_PART * late_s > 0


def _agreed(of_two_s: Sequence[float]) -> float | None:
    """Return the one of two lags that agrees with the bridge's clock; None unless just one does.

    Exports of the other worker may come late, but not before their time.
    """
    agree = [lag_s for lag_s in of_two_s if abs(lag_s) < _SKEW_S]
    return agree[0] if len(agree) == 1 else None


def _meanwhile(track: Track, begun_s: float, ended_s: float) -> Sequence[float]:
    """Return the values between two times, both inclusive."""
    first, end = bisect_left(track.times_s, begun_s), bisect_right(track.times_s, ended_s)
    return track.values[first:end]


def _skewed(worker: str, ahead_s: float, what: str, since: int | None = None) -> Cause:
    return Cause(
        Kind.CLOCK_SKEW,
        f"the clock of {worker} is {abs(ahead_s):.3g} s {'ahead' if ahead_s > 0 else 'behind'}",
        role=worker.partition("/")[0],
        worker=worker,
        since=since,
        strength=HALF if abs(ahead_s) >= _SKEW_S else 0.0,
        evidence=[Evidence(what, worker=worker, before=0.0, after=ahead_s, unit="s")],
    )


def gc_pauses(history: RunHistory) -> Iterator[Cause]:
    """Find processes that the garbage collector stops for a good part of their time."""
    found: list[tuple[float, str, str | None, LevelChange]] = []
    tracks = [
        (key, worker, with_gaps(history, summed_by_step(track)))
        for key, worker, track in tracks_about(history, Subject.GC_TIME)
    ]
    # A pause that one process had before is nothing new in another.
    shown = max((value for *_, of in tracks for value in of.finite().values[:-A_FEW]), default=0.0)
    for key, worker, counts in tracks:
        among = len(history.workers.get(key, ()))
        # A step has several exports, or one has those of several steps.
        of_steps = smoothed(counts)
        change = level(of_steps, shortest=A_FEW, among=among)
        if change is None or not _is_more_gc(change) or not _is_often(counts, change):
            of_steps, change = counts, soon(counts, among=among, shown=shown)
        if change is None or not _is_more_gc(change):
            continue
        share = change.after / _usual_s(of_steps, change.step)
        least = SMALL_PART if worker is None else _least_gc_share(history, worker, change)
        if share >= least:
            found.append((share, key, worker, change))
    if found:
        share, key, worker, change = max(found, key=lambda one: one[0])
        yield Cause(
            Kind.GC_PAUSES,
            f"the garbage collector stops {worker or key} for {in_seconds(change.after)} of each "
            f"step since step {change.step}, {share:.0%} of the time; {in_seconds(change.before)} "
            "before",
            role=key.partition("/")[0],
            worker=worker,
            since=change.step,
            evidence=[
                Evidence(
                    "time in the collector in a step", key, worker, change.before, change.after, "s"
                )
            ],
        )


def _is_more_gc(change: LevelChange) -> bool:
    return change.is_rise(ratio=_MORE_GC, order=_IN_ORDER_OF_GC, size=NOISE_OF_COUNTS)


def _is_often(counts: Track, change: LevelChange) -> bool:
    """Return whether several pauses, and not a single one, make three means of neighbours long.

    Collections of all objects are rare, and take long where others use the machine, too.
    """
    since = counts.finite().since(change.step)
    return sum(value >= HALF * change.after for value in since) >= A_FEW


def _least_gc_share(history: RunHistory, worker: str, change: LevelChange) -> float:
    """Return the part of a step that matters: less if the worker's work takes as much longer."""
    longer_s = [
        found[1] - found[0]
        for of in history.spans.values()
        if worker in of and (found := medians(of[worker], change.step, shortest=A_FEW)) is not None
    ]
    is_felt = max(longer_s, default=0.0) >= HALF * (change.after - change.before)
    return LEAST_PART if is_felt else SMALL_PART


def _usual_s(track: Track, since: int) -> float:
    """Return the usual time from one step's value to the next, since a step."""
    at_s = [at for step, at in zip(track.steps, track.times_s, strict=True) if step >= since]
    return max(LEAST_DIVISOR, median(gaps_s(at_s) or [1.0]))


def preemptions(history: RunHistory) -> Iterator[Cause]:
    """Find generators whose KV cache is too small: requests are evicted and recomputed."""
    evidence: list[tuple[float, int, Evidence]] = []
    for subject, ratio in ((Subject.PREEMPTIONS, A_FEW), (Subject.CACHE_MISSES, LONGER)):
        for key, worker, track in tracks_about(history, subject):
            shortest = A_FEW
            if subject is Subject.PREEMPTIONS:
                counts = with_gaps(history, summed_by_step(track))
                track, shortest = _far_above(counts) or (counts, SEVERAL)
            change = level(track, shortest=shortest, among=len(history.workers.get(key, ())))
            if change and change.is_rise(ratio=ratio) and change.after > LEAST_PART:
                what = "requests preempted or recomputed"
                if subject is Subject.CACHE_MISSES:
                    what = "share of prompt tokens that were not in the cache"
                one = Evidence(what, key, worker, change.before, change.after)
                weight = 1.0 if subject is Subject.PREEMPTIONS else _OF_MISSES
                evidence.append((weight * change.change.order, change.step, one))
    if not any(weight >= IN_ORDER for weight, *_ in evidence):
        return
    evidence.sort(key=lambda one: -one[0])
    strongest = evidence[0][2]
    workers = {one.worker for weight, _, one in evidence if weight >= IN_ORDER and one.worker}
    since = min(step for weight, step, _ in evidence if weight >= IN_ORDER)
    role = (strongest.key or "").partition("/")[0]
    yield Cause(
        Kind.KV_THRASH,
        f"the KV cache of {role} is too small since step {since}: {strongest.what}, "
        f"{strongest.before:.3g} before and {strongest.after:.3g} now",
        role=role,
        worker=next(iter(workers)) if len(workers) == 1 else None,
        since=since,
        evidence=[one for *_, one in evidence[:MOST_EVIDENCE]],
    )


def _far_above(counts: Track) -> tuple[Track, int] | None:
    """Return the counts, and how many of the last ones are far above all before, beyond chance.

    Steps whose count came with that of the next are left out: exports have their own pace.
    """
    values, most = counts.values, [0.0, *accumulate(counts.values, max)]
    told = [place for place, value in enumerate(values) if value > 0][::-1]
    least = inf
    for few, place in enumerate(told, 1):
        least = min(least, values[place])
        is_mostly_told = len(values) - place < 2 * few
        times = SEVERAL if few == 1 else A_FEW
        if place and is_mostly_told and least >= times * max(1.0, most[place]):
            kept = [*range(place), *told[few - 1 :: -1]]
            columns = (counts.steps, counts.times_s, values)
            return Track.of(*([of[at] for at in kept] for of in columns)), min(few, SEVERAL)
    return None


def throttling(history: RunHistory) -> Iterator[Cause]:
    """Find devices that are slowed down by heat, or by a power limit that was lowered."""
    for key, worker, track in _of_devices(history, Subject.POWER_LIMIT):
        change = level(track, shortest=A_FEW, among=len(history.workers.get(key, ())))
        if change and change.is_fall(ratio=NEARLY_ALL, order=IN_ORDER_OF_MANY):
            yield Cause(
                Kind.THROTTLED,
                f"the power limit of {worker or key} is {change.after:.4g} W since step "
                f"{change.step}, {change.before:.4g} before",
                role=worker.rpartition("/")[0] if worker else None,
                worker=worker,
                since=change.step,
                evidence=[Evidence("power limit", key, worker, change.before, change.after, "W")],
            )
    for key, worker, track in _of_devices(history, Subject.THROTTLING):
        change = level(track, shortest=A_FEW, among=len(history.workers.get(key, ())))
        if change and change.is_rise(ratio=2.0) and change.after > SMALL_PART:
            yield Cause(
                Kind.THROTTLED,
                f"{worker or key} is throttled since step {change.step}",
                role=worker.rpartition("/")[0] if worker else None,
                worker=worker,
                since=change.step,
                evidence=[Evidence("throttled", key, worker, change.before, change.after)],
            )


def _of_devices(history: RunHistory, subject: Subject) -> Sequence[tuple[str, str | None, Track]]:
    """Return the series that workers report about devices. The rows repeat the same values."""
    found = [*tracks_about(history, subject)]
    return [one for one in found if one[1] is not None] or found


def _first_step(history: RunHistory, role: str, lost: Sequence[Loss]) -> int | None:
    """Return the step of the first failure, by its last sign of life: a loss is noticed later."""
    of_role = [one for one in history.failures if one.worker.rpartition("/")[0] == role]
    known = [one.step for one in of_role if one.step is not None]
    return min([*known, *(loss.step for loss in lost)], default=None)


def _restarts(history: RunHistory, noticed_s: float) -> Collection[Loss]:
    """Return the losses of nearly all workers at once that have SDKs that report no end.

    A job that was ended and goes on from a checkpoint looks like one that has crashed.
    """
    if len(history.lags) < _FEWEST_OF_JOB or any(
        one.error is not None or one.reports_ends for one in history.failures
    ):
        return ()
    together: list[list[Loss]] = []
    for loss in history.losses:
        if not together or loss.time_s - together[-1][0].time_s > noticed_s:
            together.append([])
        together[-1].append(loss)
    least = OFTEN * len(history.lags)
    return [loss for of in together if len({one.worker for one in of}) >= least for loss in of]


def _incidents(lost: Sequence[Loss], noticed_s: float) -> int:
    """Return how often workers failed, in order of time: those that fail together fail once."""
    together: list[Counter[str]] = []
    first_s = -inf
    for loss in lost:
        if loss.time_s - first_s > noticed_s:
            together.append(Counter())
            first_s = loss.time_s
        together[-1][loss.worker] += 1
    return sum(max(of.values()) for of in together)


def _grown(track: Track) -> float:
    values = track.finite().values
    return values[-1] - min(0.0, values[0]) if values else 0.0


def _first_rise(track: Track) -> int:
    return next((s for s, v in track.pairs() if v > 0), 0)
