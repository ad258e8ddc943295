"""Diagnosis engine: runs the detectors, drops consequences of other causes, ranks the rest."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from statistics import median
from typing import Final

from otel_rl.diagnose.costs import ranked_by_cost
from otel_rl.diagnose.coverage import coverage, doubts
from otel_rl.diagnose.detectors import (
    dataflow,
    hung_worker,
    learning,
    old_samples,
    outcomes,
    processes,
    rare_phases,
    recurring,
    slow_messages,
    slow_phases,
    stale_policy,
    stalls,
)
from otel_rl.diagnose.detectors.always_slower import always_slower
from otel_rl.diagnose.detectors.flaky_calls import flaky_calls
from otel_rl.diagnose.detectors.frozen_workers import frozen_workers
from otel_rl.diagnose.detectors.host_pressure import host_pressure
from otel_rl.diagnose.detectors.idle_workers import idle_workers
from otel_rl.diagnose.detectors.logprob_mismatch import logprob_mismatch
from otel_rl.diagnose.detectors.memory_growth import memory_growth
from otel_rl.diagnose.detectors.reward_hacking import reward_hacking
from otel_rl.diagnose.detectors.slow_links import slow_links
from otel_rl.diagnose.detectors.slow_tools import slow_tools
from otel_rl.diagnose.detectors.stage_imbalance import stage_imbalance
from otel_rl.diagnose.detectors.uneven_work import uneven_work
from otel_rl.diagnose.detectors.workload import Workload, changes, slower_by_fewer_workers
from otel_rl.diagnose.detectors.wrong_weights import wrong_weights
from otel_rl.diagnose.endings import in_order_of_time, stalls_before_the_end
from otel_rl.diagnose.explain import is_near, unexplained
from otel_rl.diagnose.history.delays import is_late
from otel_rl.diagnose.history.records import PARTIAL_PATH, StepFacts
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.observations import observations
from otel_rl.diagnose.off_the_path import Paths
from otel_rl.diagnose.result import MOST_NAMED, Cause, Diagnosis, Evidence, Kind, Verdict
from otel_rl.diagnose.spans.critical_path import IDLE
from otel_rl.diagnose.spans.span_forest import UNACCOUNTED
from otel_rl.diagnose.stats.levels import LevelChange, level, settled
from otel_rl.diagnose.step_times import step_time, told_step_time
from otel_rl.diagnose.thresholds import (
    A_FEW,
    FEWEST_STEPS,
    GOOD_PART,
    HALF,
    IN_ORDER_OF_MANY,
    IN_ORDER_OF_STEPS,
    LONGER,
    MANY,
    NEARLY_ALL,
    SLACK,
)
from otel_rl.diagnose.transients import lasting
from otel_rl.goodput import duration
from otel_rl.plurals import many

DETECTORS: Sequence[Callable[[RunHistory], Iterable[Cause]]] = (
    learning.not_a_number,
    learning.wrong_rewards,
    learning.degeneration,
    logprob_mismatch,
    reward_hacking,
    outcomes.poisoned_rewards,
    outcomes.dead_groups,
    processes.crashes,
    processes.crash_loops,
    stalls.stalls,
    hung_worker.hung_workers,
    hung_worker.held_up_workers,
    idle_workers,
    frozen_workers,
    processes.clock_skew,
    processes.gc_pauses,
    processes.preemptions,
    processes.throttling,
    host_pressure,
    memory_growth,
    slow_links,
    slow_phases.slow_work,
    always_slower,
    uneven_work,
    stage_imbalance,
    recurring.recurring,
    recurring.recurring_of_all,
    recurring.passing_slowdowns,
    rare_phases.rare_phases,
    slow_tools,
    flaky_calls,
    slow_messages.slow_messages,
    wrong_weights,
    stale_policy.stale_policy,
    dataflow.evictions,
    old_samples.staleness,
    dataflow.starvation,
)
"""All detectors, in the order in which their causes are listed before they are ranked."""

_SHORTER: Final = (0.85, 0.7, 0.55, 0.4)  # ends of the parts that are searched for past causes
_FAILURES: Final = 8  # that are listed


def diagnose(
    history: RunHistory,
    steps: tuple[int, int] | None = None,
    *,
    passed: bool = False,
    silent_s: float = 0.0,
    is_interrupted: bool = False,
) -> Diagnosis:
    """Diagnose a run.

    Args:
        steps: First and last step to explain, compared with the steps before them; None for changes
            in the whole run.
        passed: Whether to report what had made steps longer for a while, if the end of the run is
            healthy.
        silent_s: Seconds since the last record.
        is_interrupted: Whether the run's bridge is gone, and the run has no end.
    """
    first, last = steps or (history.first, history.last)
    part = history if steps is None else history.between(history.first, last)
    causes: Sequence[Cause]
    if steps is not None and last - first < FEWEST_STEPS:
        causes = _ranked(part, _of_few(part, first, last))
    else:
        found: Iterable[Cause] = _detected(part)
        if not passed:
            found = lasting(part, found, silent_s)
        if steps is not None:
            found = (one for one in found if one.since is None or one.since >= first - SLACK)
        told = [one for one in found if passed or one.until is None or one.kind is Kind.STALL]
        causes = [one for one in _by_time(part, told) if passed or one.until is None]
    symptoms = list(_symptoms(part))
    if passed and steps is None and not causes:
        causes = _passed(history)
    causes = [_placed(history, one) for one in causes]
    found_nothing = not causes and not symptoms
    why_not: Sequence[str] = ()
    if found_nothing:
        is_part = steps is not None
        why_not = list(
            doubts(part, silent_s=silent_s, is_part=is_part, is_interrupted=is_interrupted)
        )
    seen = coverage(part)
    observed = observations(part, causes) if steps is None else ()
    verdict = Verdict.CAUSE if causes else Verdict.NO_CLEAR_CAUSE
    if found_nothing:
        is_beyond = any(one.is_beyond for one in observed)
        normal = Verdict.BEYOND if is_beyond else Verdict.HEALTHY
        verdict = Verdict.CANNOT_TELL if why_not else normal
    return Diagnosis(
        first if steps is not None else min(history.known_steps, default=first),
        last,
        verdict,
        causes,
        symptoms,
        _bound(part, _since_change(part, causes, first)),
        _failures(part, causes),
        str(seen),
        why_not,
        [
            *changes(part),
            *learning.new_tasks(part),
            *outcomes.mastered_prompts(part),
            *_pauses(part),
        ],
        seen.unknown,
        sum(PARTIAL_PATH in step.values for step in part.steps),
        observed,
    )


def _detected(history: RunHistory) -> Iterator[Cause]:
    paths = Paths(history)
    found = (cause for detect in DETECTORS for cause in detect(history))
    return filter(paths.bear_out, found)


def _pauses(history: RunHistory) -> Iterator[str]:
    """Yield in words the times at which all workers stood still together, and went on."""
    begun = sorted((at_s, step) for step, at_s in history.begun_s.items())
    found = [
        (begin_s, end_s, begun[bisect_right(begun, (begin_s, history.last)) - 1][1])
        for begin_s, end_s in history.silences
        if begun and begun[0][0] <= begin_s < end_s <= begun[-1][0]
    ]
    if not found:
        return
    seconds, steps = [end - begin for begin, end, _ in found], [step for *_, step in found]
    times = duration(max(seconds))
    after = f"step {steps[0]}"
    if len(found) > 1:
        more = f" and {len(steps) - MOST_NAMED} more" if len(steps) > MOST_NAMED else ""
        shortest = duration(min(seconds))
        times = times if shortest == times else f"{shortest} to {times}"
        after = f"steps {', '.join(map(str, steps[:MOST_NAMED]))}{more}"
    why = "all stood still together, or their network did, or the bridge was down"
    if all(
        is_late(history, end_s, 2 * end_s - begin_s, HALF * (end_s - begin_s))
        for begin_s, end_s, _ in found
    ):
        why = "the network or the bridge was down; the reports came later"
    yield f"no worker was heard for {times} after {after}: {why}"


def _since_change(history: RunHistory, causes: Sequence[Cause], first: int) -> int:
    """Return the step since which steps are longer, else the first step of the first cause."""
    longer = level(settled(step_time(history)))
    if longer is not None and _is_longer(longer):
        return max(first, longer.step)
    since = causes[0].since if causes and causes[0].until is None else None
    return first if since is None else max(first, min(since, history.last))


def _failures(history: RunHistory, causes: Sequence[Cause]) -> Sequence[str]:
    """Return the last failures in words, without those in causes and silence after the end."""
    crashed = {(one.worker, one.since) for one in causes if one.kind is Kind.CRASH}
    ended = processes.ended_with_the_run(history)
    others = [
        one
        for one in history.failures
        if (one.worker, one.step) not in crashed and one.worker not in ended
    ]
    words = [str(one) for one in others[-_FAILURES:]]
    earlier = len(others) - len(words)
    return [f"{many(earlier, 'failure')} of workers before these", *words] if earlier else words


def _passed(history: RunHistory) -> list[Cause]:
    """Return past causes of longer steps, by diagnosing the beginning of the run."""
    for share in _SHORTER:
        last = history.first + int(share * (history.last - history.first))
        longer = level(step_time(history.steps_between(history.first, last)))
        if last - history.first < MANY or longer is None or not _is_longer(longer):
            continue
        over = level(step_time(history.steps_between(longer.step, history.last)))
        if over is None or not over.is_fall(ratio=0.7):
            continue
        part = history.between(history.first, last)
        causes = _ranked(part, (one for one in _detected(part) if is_near(one.since, longer.step)))
        if causes:
            return [
                replace(one, until=over.step, words=f"{one.words}; over since step {over.step}")
                for one in causes
            ]
    return []


def _is_longer(steps: LevelChange) -> bool:
    return steps.is_rise(ratio=LONGER, order=IN_ORDER_OF_STEPS)


def _ranked(history: RunHistory, causes: Iterable[Cause]) -> list[Cause]:
    in_order = list(_innermost(history, sorted(causes, key=lambda cause: -cause.score)))
    named: dict[tuple[Kind, str | None, str | None], Cause] = {}
    for cause in unexplained(in_order):
        whole = _with_worker(history, cause)
        named.setdefault((whole.kind, whole.role, whole.worker), whole)
    return [*ranked_by_cost(history, [*named.values()])]


def _innermost(history: RunHistory, causes: Sequence[Cause]) -> Iterator[Cause]:
    """Yield the causes, without logged times that contain another one's time or equal it.

    Programs log times of parts, of parts of these, and some of them twice; spans are exclusive.
    """
    for place, cause in enumerate(causes):
        if not any(
            _is_around(history, cause, other)
            and (at < place or not _is_around(history, other, cause))
            for at, other in enumerate(causes)
            if at != place
        ):
            yield cause


def _is_around(history: RunHistory, whole: Cause, part: Cause) -> bool:
    """Return whether one logged time contains another: at least as long, and grown as much."""
    if whole.phase == part.phase or (whole.role, whole.worker) != (part.role, part.worker):
        return False
    for one in (whole, part):
        place = PhaseKey(one.role or "", one.phase or "")
        if place not in history.unspanned or not one.evidence or one.evidence[0].unit != "s":
            return False
    if whole.since is None or part.since is None or abs(whole.since - part.since) > A_FEW:
        return False
    (before_s, more_s), (of_part_s, part_more_s) = map(_slowdown_of, (whole, part))
    is_as_much = IN_ORDER_OF_MANY * max(more_s, part_more_s) <= min(more_s, part_more_s)
    return is_as_much and before_s >= NEARLY_ALL * of_part_s


def _slowdown_of(cause: Cause) -> tuple[float, float]:
    before, after = cause.evidence[0].before or 0.0, cause.evidence[0].after or 0.0
    return before, after - before


def _by_time(history: RunHistory, causes: Sequence[Cause]) -> Sequence[Cause]:
    """Rank the causes. If the run was killed, what was wrong before its end comes first."""
    before = stalls_before_the_end(history)
    if not before:
        return in_order_of_time(history, _ranked(history, causes))
    ends = [one for one in causes if one.kind is Kind.CRASH]
    others = [one for one in causes if one.kind not in {Kind.CRASH, Kind.STALL}]
    return [*_ranked(history, [*before, *others]), *ends]


def _with_worker(history: RunHistory, cause: Cause) -> Cause:
    if cause.worker is not None or cause.role is None:
        return cause
    known = (history.lags, *history.workers.values(), *history.spans.values())
    workers = {name for of in known for name in of if name.startswith(f"{cause.role}/")}
    return replace(cause, worker=workers.pop()) if len(workers) == 1 else cause


def _placed(history: RunHistory, cause: Cause) -> Cause:
    """Set the host and process of a cause's worker, if they are known."""
    place = history.places.get(cause.worker or "")
    if place is None:
        return cause
    return replace(cause, host=place[0] or cause.host, pid=place[1])


def _symptoms(history: RunHistory) -> Iterator[str]:
    track = settled(told_step_time(history))
    steps, eased = level(track), level(Workload(history).eased_steps(track))
    if steps is not None and _is_longer(steps) and eased is not None and _is_longer(eased):
        if eased.ratio < LONGER * slower_by_fewer_workers(history, steps.step):
            return  # the work of those who left on purpose is done by the others
        if slow_phases.grown_together(history):
            return  # which is told as a doubt
        yield (
            f"a step takes {steps.ratio:.1f} times as long since step {steps.step}: "
            f"{steps.before:.3g} s before, {steps.after:.3g} s now"
        )


def _bound(history: RunHistory, first: int) -> tuple[str, str, float] | None:
    took: dict[PhaseKey, float] = defaultdict(float)
    for step in history.steps:
        if step.step >= first:
            for place, seconds in _by_place(step).items():
                took[place] += seconds
    if not took:
        return None
    for place in [place for place in took if place.phase == UNACCOUNTED]:
        measured = _measured(history, place.role, first)
        if whole := sum(measured.values()):
            of_unknown = took.pop(place)
            for of, seconds in measured.items():
                took[of] += of_unknown * seconds / whole
    (role, phase), most = max(took.items(), key=lambda one: one[1])
    return role, phase, most / (sum(took.values()) or 1)


def _measured(history: RunHistory, role: str, first: int) -> Mapping[PhaseKey, float]:
    """Return the seconds since a step of a role's phases that were measured without spans."""
    tracks = {
        phase: history.rows.get(f"phase/{phase}")
        for phase in history.unspanned
        if phase.role == role
    }
    return {
        phase: sum(
            seconds for step, seconds in track.pairs() if step >= first and isfinite(seconds)
        )
        for phase, track in tracks.items()
        if track is not None
    }


def _of_few(history: RunHistory, first: int, last: int) -> Iterator[Cause]:
    """Find phases that took longer than usual in these steps, on their critical path."""
    asked = [step for step in history.steps if first <= step.step <= last]
    usual = [step for step in history.steps if not first <= step.step <= last]
    if not asked or len(usual) < A_FEW:
        return
    whole = median(sum(_by_place(step).values()) for step in usual)
    for place in sorted({place for step in asked for place in _by_place(step)}):
        now = median(_by_place(step).get(place, 0.0) for step in asked)
        before = median(_by_place(step).get(place, 0.0) for step in usual)
        if now - before < GOOD_PART * whole or place.phase == IDLE:
            continue
        worker = _who_took_most(asked, place)
        yield Cause(
            slow_phases.slow_kind(place),
            f"{place.phase} of {worker} decided {now:.3g} s of the step, usually {before:.3g} s",
            role=place.role,
            worker=worker,
            phase=place.phase,
            since=first,
            strength=(now - before) / (whole or 1),
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
    """Return seconds on the critical path, by role and phase."""
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
