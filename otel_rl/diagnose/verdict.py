"""From the facts of a run to ranked causes: each detector by itself, then what explains what."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from otel_rl.diagnose import flow, learning, messages, pace, processes, versions
from otel_rl.diagnose.causes import Cause, Evidence, Kind, Report, Verdict
from otel_rl.diagnose.critical_path import IDLE
from otel_rl.diagnose.facts import StepFacts
from otel_rl.diagnose.history import History, PhaseKey
from otel_rl.diagnose.levels import Level, level

__all__ = ["diagnose"]

_DETECTORS: Final[Sequence[Callable[[History], Iterable[Cause]]]] = (
    learning.not_a_number,
    learning.wrong_rewards,
    learning.degeneration,
    processes.crash_loops,
    processes.stalls,
    processes.clock_skew,
    processes.gc_pauses,
    processes.preemptions,
    processes.throttling,
    pace.slow_work,
    messages.slow_messages,
    versions.stale_policy,
    flow.evictions,
    versions.staleness,
    flow.starvation,
)

_SLOW: Final = frozenset(
    {
        Kind.SLOW_GENERATION,
        Kind.SLOW_REWARD,
        Kind.SLOW_TRAINING,
        Kind.SLOW_SYNC,
        Kind.SLOW_PHASE,
        Kind.STRAGGLER,
    }
)
_LEARNING: Final = frozenset({Kind.REWARD_DROP, Kind.ENTROPY_COLLAPSE, Kind.KL_GROWTH})
_BACKLOG: Final = frozenset({Kind.STALENESS_GROWTH, Kind.EVICTION, Kind.STALE_POLICY})

# What follows from what, if it began no later.
_EXPLAINS: Final[dict[Kind, frozenset[Kind]]] = {
    Kind.NAN: frozenset(Kind) - {Kind.NAN, Kind.CRASH_LOOP, Kind.CLOCK_SKEW},
    Kind.REWARD_BUG: _LEARNING,
    Kind.CRASH_LOOP: _SLOW | _BACKLOG | {Kind.STARVATION, Kind.KV_THRASH, Kind.NETWORK_DELAY},
    Kind.STALL: _SLOW | _BACKLOG | {Kind.STARVATION, Kind.NETWORK_DELAY},
    Kind.CLOCK_SKEW: _SLOW | _BACKLOG | {Kind.NETWORK_DELAY, Kind.STARVATION},
    Kind.GC_PAUSES: _SLOW | _BACKLOG | {Kind.STARVATION, Kind.NETWORK_DELAY},
    Kind.THROTTLED: _SLOW | _BACKLOG | {Kind.STARVATION},
    Kind.KV_THRASH: _SLOW | _BACKLOG | {Kind.STARVATION},
    Kind.SLOW_SYNC: _BACKLOG | {Kind.STARVATION} | _LEARNING,
    Kind.NETWORK_DELAY: _BACKLOG | _SLOW | {Kind.STARVATION},
    Kind.SLOW_GENERATION: _BACKLOG | {Kind.STARVATION, Kind.NETWORK_DELAY},
    Kind.SLOW_REWARD: _BACKLOG | {Kind.STARVATION, Kind.SLOW_GENERATION, Kind.NETWORK_DELAY},
    Kind.SLOW_TRAINING: _BACKLOG | {Kind.NETWORK_DELAY, Kind.STARVATION},
    Kind.STRAGGLER: _BACKLOG | {Kind.NETWORK_DELAY, Kind.STARVATION},
    Kind.SLOW_PHASE: _BACKLOG | {Kind.STARVATION},
    Kind.STALE_POLICY: frozenset({Kind.STALENESS_GROWTH, Kind.EVICTION}) | _LEARNING,
    Kind.EVICTION: frozenset({Kind.STALENESS_GROWTH}),
    Kind.ENTROPY_COLLAPSE: frozenset({Kind.REWARD_DROP}),
    Kind.KL_GROWTH: frozenset({Kind.REWARD_DROP}),
}

_SLACK: Final = 8  # steps by which the beginning of a change may be misjudged
_AS_MUCH: Final = (0.6, 1.6)  # times as many seconds longer, to be the same ones
_FEWEST_USUAL: Final = 3  # steps to compare with
_MIN_PART: Final = 0.2  # of a step, that something takes longer to explain it
_SHORTER: Final = (0.85, 0.7, 0.55, 0.4)  # parts of a run in which trouble may have been the end
_FEWEST_OF_PART: Final = 20  # steps
_FEW: Final = 8  # steps in which nothing can be said to have changed


def diagnose(
    history: History, steps: tuple[int, int] | None = None, *, passed: bool = False
) -> Report:
    """Say what is wrong with a run, or that nothing is.

    Args:
        history: All that is known of the run.
        steps: The first and the last one to explain, by what was different in the steps before
            them; None for what has changed in the whole run.
        passed: If nothing is wrong in the end of the whole run, say what had made steps longer for
            a while.
    """
    first, last = steps or (history.first, history.last)
    part = history if steps is None else history.between(history.first, last)
    if steps is not None and last - first < _FEW:
        causes = _ranked(part, _of_few(part, first, last))
    else:
        found = (cause for detect in _DETECTORS for cause in detect(part))
        if steps is not None:
            found = (one for one in found if one.since is None or one.since >= first - _SLACK)
        causes = _ranked(part, found)
    symptoms = list(_symptoms(part))
    if passed and steps is None and not causes:
        causes = _passed(history)
    verdict = Verdict.CAUSE if causes else Verdict.NO_CLEAR_CAUSE if symptoms else Verdict.HEALTHY
    return Report(first, last, verdict, causes, symptoms, _bound(part, first))


def _passed(history: History) -> list[Cause]:
    """What made steps longer for a while: what a shorter run would have ended with."""
    for share in _SHORTER:
        last = history.first + int(share * (history.last - history.first))
        part = history.between(history.first, last)
        longer = level(pace.step_time(part))
        if last - history.first < _FEWEST_OF_PART or longer is None or not _is_longer(longer):
            continue
        over = level(pace.step_time(history.between(longer.step, history.last)))
        if over is None or not over.is_fall(ratio=0.7):
            continue
        found = (cause for detect in _DETECTORS for cause in detect(part))
        causes = _ranked(part, (one for one in found if _is_near(one.since, longer.step)))
        if causes:
            return [
                replace(one, until=over.step, words=f"{one.words}; over since step {over.step}")
                for one in causes
            ]
    return []


def _is_near(since: int | None, step: int) -> bool:
    return since is not None and abs(since - step) <= _SLACK


def _is_longer(steps: Level) -> bool:
    return steps.is_rise(ratio=1.5, order=0.75)


def _ranked(history: History, causes: Iterable[Cause]) -> list[Cause]:
    in_order = sorted(causes, key=lambda cause: -cause.score)
    return [_with_worker(history, cause) for cause in _unexplained(in_order)]


def _with_worker(history: History, cause: Cause) -> Cause:
    """A role of one worker is that worker."""
    if cause.worker is not None or cause.role is None:
        return cause
    known = (history.lags, *history.workers.values(), *history.spans.values())
    workers = {name for of in known for name in of if name.startswith(f"{cause.role}/")}
    return replace(cause, worker=workers.pop()) if len(workers) == 1 else cause


def _unexplained(causes: Sequence[Cause]) -> Iterator[Cause]:
    """Without what follows from another one, and without a second word on the same."""
    seen: set[tuple[Kind, str | None, str | None]] = set()
    for cause in causes:
        subject = cause.kind, cause.role, cause.worker
        if subject in seen or any(_takes_the_place_of(other, cause) for other in causes):
            continue
        seen.add(subject)
        yield cause


def _takes_the_place_of(cause: Cause, effect: Cause) -> bool:
    if not _explains(cause, effect):
        return False
    return cause.score >= effect.score or not _explains(effect, cause)


def _explains(cause: Cause, effect: Cause) -> bool:
    if cause.kind in _SLOW and cause.since is None and effect.since is not None:
        return False  # what always was explains no change
    if _is_answer_to(cause, effect):
        return _is_before(cause, effect)
    if cause is effect or effect.kind not in _EXPLAINS.get(cause.kind, frozenset()):
        return False
    if cause.kind is Kind.NETWORK_DELAY and effect.kind in _SLOW:
        # Who waits for an answer within its work is slower by that. Who answers is not.
        return effect.role not in cause.answered_by and _is_before(cause, effect)
    if effect.kind is Kind.NETWORK_DELAY and cause.kind in _SLOW:
        return cause.role in effect.answered_by and _is_before(cause, effect)
    if cause.kind is Kind.GC_PAUSES and effect.kind in _SLOW and effect.role != cause.role:
        return False
    if cause.kind in {Kind.KV_THRASH, Kind.CRASH_LOOP} and effect.kind in _SLOW:
        return effect.role == cause.role and _is_before(cause, effect)
    return _is_before(cause, effect)


def _is_answer_to(answer: Cause, call: Cause) -> bool:
    """Whether work of one role takes as much longer as what it is a part of, of another role.

    Not if both are of weights, which are waited for, whoever pushes or pulls them.
    """
    kinds = {answer.kind, call.kind}
    if not kinds <= _SLOW or kinds == {Kind.SLOW_SYNC} or answer.role == call.role:
        return False
    (before_s, longer_s), (call_before_s, call_longer_s) = _slower_by(answer), _slower_by(call)
    is_as_much = _AS_MUCH[0] * call_longer_s <= longer_s <= _AS_MUCH[1] * call_longer_s
    return is_as_much and before_s < call_before_s


def _slower_by(cause: Cause) -> tuple[float, float]:
    """(seconds of one before, by how many it takes longer) of who became slower the most."""
    before, after = cause.evidence[0].before or 0.0, cause.evidence[0].after or 0.0
    return before, after - before


def _is_before(cause: Cause, effect: Cause) -> bool:
    return cause.since is None or effect.since is None or cause.since <= effect.since + _SLACK


def _symptoms(history: History) -> Iterator[str]:
    steps = level(pace.step_time(history))
    if steps is not None and _is_longer(steps):
        yield (
            f"a step takes {steps.ratio:.1f} times as long since step {steps.step}: "
            f"{steps.before:.3g} s before, {steps.after:.3g} s now"
        )


def _bound(history: History, first: int) -> tuple[str, str, float] | None:
    took: dict[PhaseKey, float] = defaultdict(float)
    for step in history.steps:
        if step.step >= first:
            for place, seconds in _by_place(step).items():
                took[place] += seconds
    if not took:
        return None
    (role, phase), most = max(took.items(), key=lambda one: one[1])
    return role, phase, most / (sum(took.values()) or 1)


def _of_few(history: History, first: int, last: int) -> Iterator[Cause]:
    """What took longer in these steps than it usually takes, on the path that decided them."""
    asked = [step for step in history.steps if first <= step.step <= last]
    usual = [step for step in history.steps if not first <= step.step <= last]
    if not asked or len(usual) < _FEWEST_USUAL:
        return
    whole = median(sum(_by_place(step).values()) for step in usual)
    for place in sorted({place for step in asked for place in _by_place(step)}):
        now = median(_by_place(step).get(place, 0.0) for step in asked)
        before = median(_by_place(step).get(place, 0.0) for step in usual)
        if now - before < _MIN_PART * whole or place.phase == IDLE:
            continue
        worker = _who_took_most(asked, place)
        yield Cause(
            pace.slow_kind(place),
            min(0.9, 0.4 + 0.5 * (now - before) / (whole or 1)),
            f"{place.phase} of {worker} decided {now:.3g} s of the step, usually {before:.3g} s",
            role=place.role,
            worker=worker,
            phase=place.phase,
            since=first,
            evidence=[
                Evidence(
                    f"{place.phase} on the critical path",
                    f"critical_path/{place}",
                    worker,
                    before,
                    now,
                    "s",
                    [step.trace_id for step in asked],
                )
            ],
        )


def _by_place(step: StepFacts) -> Mapping[PhaseKey, float]:
    """Seconds on the critical path."""
    took: dict[PhaseKey, float] = defaultdict(float)
    for role, phase, _, seconds in step.path:
        took[PhaseKey(role, phase)] += seconds
    return took


def _who_took_most(steps: Iterable[StepFacts], place: PhaseKey) -> str:
    workers: dict[str, float] = defaultdict(float)
    for step in steps:
        for role, phase, worker, seconds in step.path:
            if (role, phase) == place:
                workers[worker] += seconds
    return max(workers, key=lambda worker: workers[worker])
