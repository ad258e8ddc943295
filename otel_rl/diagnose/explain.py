"""Explaining away: removes causes that follow from another cause, by mechanism."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from otel_rl.diagnose.history.timings import is_whole_step
from otel_rl.diagnose.result import SLOW, Cause, Kind
from otel_rl.diagnose.thresholds import AS_MUCH, FELT, OFTEN, SLACK, UNLIKE

_LEARNING: Final = frozenset(
    {Kind.REWARD_DROP, Kind.ENTROPY_COLLAPSE, Kind.KL_GROWTH, Kind.REWARD_HACKING}
)
_BEHIND: Final = frozenset({Kind.LOGPROB_MISMATCH})  # samples of other weights
_BACKLOG: Final = frozenset({Kind.STALENESS_GROWTH, Kind.EVICTION, Kind.STALE_POLICY})

# Work that others call, and that calls none of theirs.
_ANSWERS: Final = frozenset({Kind.SLOW_REWARD, Kind.SLOW_TOOL, Kind.SLOW_DATA})

# A process at fault does not slow the own work of another role.
_OF_PROCESS: Final = frozenset({Kind.CLOCK_SKEW, Kind.GC_PAUSES, Kind.THROTTLED})

# They may slow any work, but at the same time: a policy of NaN writes long nonsense at once.
_AT_ONCE: Final = frozenset({Kind.NAN, Kind.HOST_PRESSURE, Kind.SLOW_LINK})

# Consequences of each kind, if they began no earlier.
_EXPLAINS: Final[dict[Kind, frozenset[Kind]]] = {
    # A policy of NaN writes long nonsense: work on its samples takes longer, in the whole role.
    Kind.NAN: _LEARNING
    | _BACKLOG
    | {
        Kind.DEAD_GROUPS,
        Kind.REWARD_BUG,
        Kind.SLOW_GENERATION,
        Kind.SLOW_REWARD,
        Kind.SLOW_TRAINING,
        Kind.STARVATION,
        Kind.KV_THRASH,
        Kind.LOGPROB_MISMATCH,
    },
    Kind.LOGPROB_MISMATCH: _LEARNING,
    Kind.REWARD_BUG: _LEARNING | {Kind.DEAD_GROUPS},
    Kind.POISONED_REWARDS: _LEARNING | {Kind.REWARD_BUG, Kind.DEAD_GROUPS},
    Kind.DEAD_GROUPS: _LEARNING,
    Kind.CRASH: SLOW | _BACKLOG | {Kind.STARVATION, Kind.STALL, Kind.NETWORK_DELAY},
    Kind.CRASH_LOOP: SLOW | _BACKLOG | {Kind.STARVATION, Kind.KV_THRASH, Kind.NETWORK_DELAY},
    Kind.STALL: SLOW | _BACKLOG | {Kind.STARVATION, Kind.NETWORK_DELAY},
    Kind.CLOCK_SKEW: SLOW | _BACKLOG | {Kind.NETWORK_DELAY, Kind.STARVATION},
    Kind.GC_PAUSES: SLOW | _BACKLOG | {Kind.STARVATION, Kind.NETWORK_DELAY},
    Kind.THROTTLED: SLOW | _BACKLOG | {Kind.STARVATION},
    Kind.HOST_PRESSURE: SLOW | _BACKLOG | {Kind.STARVATION, Kind.NETWORK_DELAY},
    Kind.MEMORY_GROWTH: frozenset({Kind.HOST_PRESSURE}),
    Kind.SLOW_LINK: SLOW | _BACKLOG | {Kind.STARVATION},
    Kind.KV_THRASH: SLOW | _BACKLOG | {Kind.STARVATION},
    Kind.SLOW_SYNC: _BACKLOG | {Kind.STARVATION} | _LEARNING | _BEHIND,
    Kind.NETWORK_DELAY: _BACKLOG | SLOW | {Kind.STARVATION},
    Kind.SLOW_GENERATION: _BACKLOG | {Kind.STARVATION, Kind.NETWORK_DELAY},
    Kind.SLOW_REWARD: _BACKLOG | {Kind.STARVATION, Kind.SLOW_GENERATION, Kind.NETWORK_DELAY},
    Kind.SLOW_TRAINING: _BACKLOG | {Kind.NETWORK_DELAY, Kind.STARVATION},
    Kind.UNEVEN_WORK: _BACKLOG | SLOW | {Kind.STARVATION},
    Kind.STRAGGLER: _BACKLOG | {Kind.NETWORK_DELAY, Kind.STARVATION},
    Kind.SLOW_PHASE: _BACKLOG | {Kind.STARVATION},
    Kind.SLOW_TOOL: _BACKLOG | {Kind.STARVATION},
    Kind.SLOW_DATA: _BACKLOG | {Kind.STARVATION},
    Kind.WRONG_WEIGHTS: _LEARNING | _BEHIND | {Kind.STALE_POLICY, Kind.STALENESS_GROWTH},
    Kind.STALE_POLICY: frozenset({Kind.STALENESS_GROWTH, Kind.EVICTION}) | _LEARNING | _BEHIND,
    Kind.STALENESS_GROWTH: _BEHIND,
    Kind.EVICTION: frozenset({Kind.STALENESS_GROWTH, Kind.STARVATION}),
    Kind.REWARD_HACKING: frozenset({Kind.ENTROPY_COLLAPSE, Kind.KL_GROWTH, Kind.REWARD_DROP}),
    Kind.ENTROPY_COLLAPSE: frozenset({Kind.REWARD_DROP, Kind.DEAD_GROUPS}),
    Kind.KL_GROWTH: frozenset({Kind.REWARD_DROP}),
}

_Subject = tuple[Kind, str | None, str | None]

_OF_TRANSFER: Final = 0.4  # the same of two sides of a transfer
_AS_LONG: Final = 0.9  # the same of two durations


def is_near(since: int | None, step: int) -> bool:
    """Return whether a first step equals ``step``, within the tolerance."""
    return since is not None and abs(since - step) <= SLACK


def unexplained(causes: Sequence[Cause]) -> Iterator[Cause]:
    """Yield the causes that do not follow from another one, without duplicates."""
    seen: set[_Subject] = set()
    begun = _first_steps(causes)
    for place, cause in enumerate(causes):
        subject = cause.kind, cause.role, cause.worker
        if subject in seen or any(_takes_the_place_of(other, cause) for other in causes):
            continue
        if any(
            _is_same_transfer(other, cause)
            for at, other in enumerate(causes)
            if at != place and (other.worker is None, at) < (cause.worker is None, place)
        ):
            continue
        seen.add(subject)
        since = begun.get(subject)
        yield cause if since is None else replace(cause, since=since)


def _first_steps(causes: Sequence[Cause]) -> Mapping[_Subject, int]:
    """Return the first step of each lasting fault of a worker, over all causes that name it."""
    first: dict[_Subject, int] = {}
    for one in causes:
        if one.worker is not None and one.since is not None and one.until is None:
            subject = one.kind, one.role, one.worker
            first[subject] = min(one.since, first.get(subject, one.since))
    return first


def _is_same_transfer(cause: Cause, other: Cause) -> bool:
    """Return whether both causes are sides of one weight transfer, by amount or by ratio.

    A side that has other parts of the transfer, or fewer bytes of it, takes less time: the sender
    waits for a way there and back, and often for a further way, of which the receiver sees one.
    """
    if cause.kind is not Kind.SLOW_SYNC or other.kind is not Kind.SLOW_SYNC:
        return False
    if cause.role == other.role or cause.since is None or not is_near(other.since, cause.since):
        return False
    (before_s, longer_s), (other_before_s, other_s) = _slower_by(cause), _slower_by(other)
    is_as_much = _OF_TRANSFER * max(longer_s, other_s) <= min(longer_s, other_s)
    times, other_times = longer_s * other_before_s, other_s * before_s
    return is_as_much or OFTEN * times <= other_times <= times / OFTEN


def _takes_the_place_of(cause: Cause, effect: Cause) -> bool:
    if not _explains(cause, effect):
        return False
    return cause.score >= effect.score or not _explains(effect, cause)


def _explains(cause: Cause, effect: Cause) -> bool:
    if _is_of_another_time(cause, effect):
        return False
    if any(is_so(cause, effect) for is_so in (_is_answer_to, _is_waited_for, _is_awaited_by_peers)):
        return True
    if cause is effect or effect.kind not in _EXPLAINS.get(cause.kind, frozenset()):
        return False
    if cause.kind is Kind.NETWORK_DELAY and effect.kind in SLOW:
        # Work that waits for an answer is slower because of it. The answering role's work is not.
        return effect.role not in cause.answered_by and _is_before(cause, effect)
    if effect.kind is Kind.NETWORK_DELAY and cause.kind in SLOW:
        return cause.role in effect.answered_by and _is_before(cause, effect)
    if cause.kind in _OF_PROCESS and effect.kind in SLOW and effect.role != cause.role:
        return False
    if cause.kind is Kind.UNEVEN_WORK and effect.kind in SLOW:
        return effect.worker == cause.worker and _is_by_its_work(cause, effect)
    if (cause.kind, effect.kind) == (Kind.SLOW_REWARD, Kind.SLOW_GENERATION):
        return cause.since is None or _are_near(cause.since, effect.since)
    if cause.kind is Kind.NAN and effect.worker is not None:
        return False  # the same policy is everywhere
    if cause.kind in _AT_ONCE and effect.kind in SLOW:
        return _are_near(cause.since or 0, effect.since)
    if cause.kind in {Kind.KV_THRASH, Kind.CRASH_LOOP} and effect.kind in SLOW:
        return effect.role == cause.role and _is_before(cause, effect)
    return _is_before(cause, effect)


def _is_of_another_time(cause: Cause, effect: Cause) -> bool:
    """Return whether a cause was over when a lasting effect had just begun, or was always there.

    A constant state explains no change.
    """
    if effect.since is None:
        return False
    if cause.until is not None and effect.until is None:
        return cause.until <= effect.since + SLACK
    return cause.kind in SLOW and cause.since is None


def _is_by_its_work(cause: Cause, effect: Cause) -> bool:
    """Return whether a worker takes longer by no more than its larger share of the work."""
    work, time = cause.evidence[0], effect.evidence[0]
    more = (work.after or 0.0) / (work.before or 1.0)
    return (time.after or 0.0) <= UNLIKE * more * (time.before or 0.0)


def _is_answer_to(answer: Cause, call: Cause) -> bool:
    """Return whether work of one role slows as much as another role's part that calls it.

    Both must slow at the same time, and for all callers: one slow caller has a reason of its own,
    unless only one worker answers. Two weight phases do not count: both wait for the transfer,
    whichever side starts it.
    """
    kinds = {answer.kind, call.kind}
    if not kinds <= SLOW or kinds == {Kind.SLOW_SYNC} or answer.role == call.role:
        return False
    if call.worker is not None and answer.worker is None:
        return False
    if (answer.since, call.since) != (None, None) and not _are_near(answer.since, call.since):
        return False
    (before_s, longer_s), (call_before_s, call_longer_s) = _slower_by(answer), _slower_by(call)
    if answer.phase == call.phase:
        return before_s < call_before_s  # a call is as long as all that it asks for
    is_as_much = AS_MUCH[0] * call_longer_s <= longer_s <= AS_MUCH[1] * call_longer_s
    if call.kind is Kind.SLOW_PHASE and longer_s < call_longer_s:
        # It may call several times, one after the other, and do nothing else.
        times, call_times = _ratio(answer), _ratio(call)
        is_as_much |= OFTEN * times <= call_times <= FELT * times
    is_same = _AS_LONG * max(before_s, call_before_s) <= min(before_s, call_before_s)
    if is_same and (answer.kind in _ANSWERS) != (call.kind in _ANSWERS):
        return is_as_much and answer.kind in _ANSWERS  # a part that does nothing but call
    return is_as_much and before_s < call_before_s


def _is_waited_for(cause: Cause, rest: Cause) -> bool:
    """Return whether a step's time beside its parts grows by slower work that it waits for.

    Programs do not name all of their waits. A controller's step only has the parts of others.
    """
    if not (cause.kind in SLOW and rest.kind in SLOW and _are_near(cause.since, rest.since)):
        return False
    if not is_whole_step(rest.phase or "") or is_whole_step(cause.phase or ""):
        return False
    if cause.role != rest.role:
        return True
    (_, longer_s), (_, rest_s) = _slower_by(cause), _slower_by(rest)
    return cause.worker is not None and rest.worker is None and rest_s <= AS_MUCH[1] * longer_s


def _is_awaited_by_peers(cause: Cause, effect: Cause) -> bool:
    """Return whether work of a straggler's peers takes longer because they wait in it.

    Collectives that overlap with a backward pass are in no span of their own. The straggler comes
    last, and waits for no worker: its own part is no slower.
    """
    if cause.kind is not Kind.STRAGGLER or effect.kind is not Kind.SLOW_TRAINING:
        return False
    if cause.role != effect.role or effect.worker is not None or cause.phase == effect.phase:
        return False
    victims = {one.worker for one in effect.evidence if one.worker is not None}
    if not victims or cause.worker in victims or not _are_near(cause.since, effect.since):
        return False
    (_, longer_s), (_, waits_s) = _slower_by(cause), _slower_by(effect)
    return AS_MUCH[0] * waits_s <= longer_s <= AS_MUCH[1] * waits_s


def _are_near(since: int | None, other: int | None) -> bool:
    return other is not None and is_near(since, other)


def _slower_by(cause: Cause) -> tuple[float, float]:
    """Return (seconds before, added seconds) of the largest slowdown."""
    before, after = cause.evidence[0].before or 0.0, cause.evidence[0].after or 0.0
    return before, after - before


def _ratio(cause: Cause) -> float:
    before, more = _slower_by(cause)
    return 1.0 + more / before if before > 0 else 0.0


def _is_before(cause: Cause, effect: Cause) -> bool:
    return cause.since is None or effect.since is None or cause.since <= effect.since + SLACK
