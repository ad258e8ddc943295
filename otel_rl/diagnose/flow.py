"""What is wrong between processes: samples do not come, get lost or are old, weights not taken."""

from collections.abc import Iterator
from statistics import median

from otel_rl.diagnose.causes import Cause, Evidence, Kind
from otel_rl.diagnose.history import History, PhaseKey, Track
from otel_rl.diagnose.levels import Level, level
from otel_rl.diagnose.pace import step_time, traces_of
from otel_rl.diagnose.vocabulary import Subject, tracks_about

__all__ = ["evictions", "stale_policy", "staleness", "starvation", "waits"]

_MIN_SHARE = 0.15


def waits(history: History) -> Iterator[tuple[PhaseKey, str, Level, float]]:
    """(phase, worker, level, seconds more of each step) of waits that became longer."""
    for place in sorted(history.waits):
        for worker, track in history.spans[place].items():
            found = level(track)
            if found is not None and found.is_rise(ratio=1.7, order=0.6, size=1.5):
                yield place, worker, found, found.after - found.before


def starvation(history: History) -> Iterator[Cause]:
    """Trainers wait for samples longer than they did."""
    steps = step_time(history)
    if not steps.values:
        return
    usual = median(steps.finite().values)
    found = [
        (more, place, worker, change)
        for place, worker, change, more in waits(history)
        if _is_wait_for_samples(place) and more >= _MIN_SHARE * usual
    ]
    if not found:
        return
    more, place, _, change = max(found, key=lambda one: one[0])
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
    for subject, what in ((Subject.IDLE_TIME, "idle time"), (Subject.QUEUE_DEPTH, "queue")):
        for key, of, track in tracks_about(history, subject):
            if key.startswith(f"{place.role}/"):
                continue
            moved = level(track)
            if moved is None or abs(moved.change.order) < 0.7:
                continue
            if (moved.after > moved.before) == (subject is Subject.IDLE_TIME):
                evidence.append(Evidence(what, key, of, moved.before, moved.after))
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


def evictions(history: History) -> Iterator[Cause]:
    """Samples leave the buffer unused, more than they did."""
    found: list[tuple[float, str, str | None, Level]] = []
    for key, worker, track in tracks_about(history, Subject.EVICTIONS):
        if key.endswith(("/rate", "/max", "/min")):
            continue
        change = level(track)
        if change is not None and change.is_rise(ratio=2.5, order=0.6, size=1.5):
            found.append((change.after, key, worker, change))
    if not found:
        return
    after, key, worker, change = max(found, key=lambda one: (one[0], one[1]))
    yield Cause(
        Kind.EVICTION,
        0.72,
        f"samples are thrown away unused since step {change.step}: {key} rose from "
        f"{change.before:.3g} to {after:.3g} per export",
        role=key.partition("/")[0],
        since=change.step,
        evidence=[
            Evidence("samples evicted or dropped per export", k, w, c.before, c.after)
            for _, k, w, c in sorted(found, reverse=True, key=lambda one: one[0])[:4]
        ],
    )


def stale_policy(history: History) -> Iterator[Cause]:
    """Generators that fall behind the trainer's weights, though pulling them is no slower."""
    versions: dict[str, dict[str, Track]] = {}
    for key, worker, track in tracks_about(history, Subject.POLICY_VERSION):
        if worker is not None:
            versions.setdefault(key.partition("/")[0], {})[worker] = track
    if len(versions) < 2:
        return
    leader = max(versions, key=lambda role: max(max(t.values) for t in versions[role].values()))
    newest = max(versions[leader].values(), key=lambda track: len(track.values))
    for role, of in versions.items():
        if role == leader:
            continue
        behind: list[tuple[str, Level]] = []
        for worker, track in of.items():
            change = level(_gap(newest, track))
            if (
                change is not None
                and change.after - change.before >= 2
                and change.change.order > 0.7
            ):
                behind.append((worker, change))
        if not behind:
            continue
        worst = max(behind, key=lambda one: one[1].after)
        one = worst[0] if len(behind) == 1 and len(of) > 1 else None
        yield Cause(
            Kind.STALE_POLICY,
            0.75 + 0.02 * min(5.0, worst[1].after - worst[1].before),
            f"{one or role} works with old weights since step {worst[1].step}: "
            f"{worst[1].after:.2g} versions behind {leader}, {worst[1].before:.2g} before",
            role=role,
            worker=one,
            since=worst[1].step,
            evidence=[
                Evidence("versions behind", f"{role}/policy/version", worker, c.before, c.after)
                for worker, c in behind[:4]
            ],
        )


def staleness(history: History) -> Iterator[Cause]:
    """Samples that are used later than before, in policy versions."""
    for key, worker, track in tracks_about(history, Subject.STALENESS):
        change = level(track)
        if change is None or not change.is_rise(ratio=1.8, order=0.7, size=1.5):
            continue
        if change.after - change.before < 1.5:
            continue
        yield Cause(
            Kind.STALENESS_GROWTH,
            0.4,
            f"samples are {change.after:.2g} versions old since step {change.step}, "
            f"{change.before:.2g} before",
            role=key.partition("/")[0],
            since=change.step,
            evidence=[Evidence("age in versions", key, worker, change.before, change.after)],
        )
        return


def _gap(newest: Track, own: Track) -> Track:
    """How many versions a worker is behind, at the times at which it said which it has."""
    gap = Track()
    place = 0
    known = None
    for step, time_s, value in zip(own.steps, own.times_s, own.values, strict=True):
        while place < len(newest.times_s) and newest.times_s[place] <= time_s:
            known = newest.values[place]
            place += 1
        if known is not None:
            gap.add(step, time_s, max(0.0, known - value))
    return gap


def _is_wait_for_samples(place: PhaseKey) -> bool:
    words = ("collector", "replay", "batch", "sample", "data", "rollout", "queue", "fetch")
    learner = not any(word in place.role for word in ("generator", "reward", "env", "rollout"))
    return learner and any(word in place.phase for word in words)


def slow_messages(history: History) -> Iterator[Cause]:
    """Messages between processes that take longer, while neither end works slower."""
    for place, worker, change, more in waits(history):
        if not _is_wait_for_samples(place) and more > 0.05:
            yield Cause(
                Kind.NETWORK_DELAY,
                0.45,
                f"{place} of {worker} waits {more * 1e3:.3g} ms longer since step {change.step}",
                role=place.role,
                phase=place.phase,
                since=change.step,
            )
