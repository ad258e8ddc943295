"""Observations of a run by itself: where a step's time goes, and which shares are not normal.

Causes compare a run with its past, so a run that is slow from its first step has none. Observations
need no past. Each has a number, a reference that it is compared with, and a doubt. An observation
is beyond its reference if a step takes ``LONGER`` times as long as it would without it: a time that
counts as slow when it comes in the middle of a run counts as slow from the start. An observation
without such a reference is reported as a number.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from statistics import fmean, median
from typing import Any, Final

from otel_rl.diagnose.budget import (
    ANSWERS,
    Budget,
    answering,
    budget_of,
    mean_of_workers,
    seconds_of_role,
)
from otel_rl.diagnose.classify import (
    Subject,
    Work,
    is_collective,
    only_waits,
    rows_about,
    tracks_about,
    waits_for_samples,
    work_of,
)
from otel_rl.diagnose.detectors.outcomes import are_right
from otel_rl.diagnose.detectors.reward_hacking import unproven_rewards
from otel_rl.diagnose.detectors.slow_phases import in_seconds, slow_kind
from otel_rl.diagnose.history.pipeline import stages_of
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.result import SLOW, Cause, Kind, Observation, Observed
from otel_rl.diagnose.spans.span_forest import UNACCOUNTED
from otel_rl.diagnose.step_times import step_time
from otel_rl.diagnose.thresholds import (
    A_FEW,
    FEWEST_STEPS,
    GOOD_PART,
    HALF,
    LONGER,
    SIDE,
    SMALL_PART,
)

_PART: Final = 1 - 1 / LONGER  # of a step, without which it takes 1 / LONGER of its time
_MOST_STEPS: Final = 200  # that are read: shares need no more
_OLDEST: Final = 8.0  # versions
_CHECKPOINT: Final = re.compile(r"checkpoint|ckpt|(^|[_.])sav(e|ing)([_.]|$)")

# What each is compared with, and what speaks against it.
_REFERENCES: Final[Mapping[Observed, tuple[str, str]]] = {
    Observed.BOUND: (
        "none, since which work takes most depends on models and lengths",
        "shorter work elsewhere makes the step shorter only on the critical path",
    ),
    Observed.STARVED: (
        "0 where samples are made while the trainer trains: more producers end the wait",
        "a program that waits for fresh samples on purpose waits as long",
    ),
    Observed.SLOW_ANSWERS: (
        "the time of generation, behind which scoring is hidden if answers are scored as they come",
        "a score that needs the whole batch cannot begin earlier",
    ),
    Observed.SYNC: (
        "0: the transfer can go on beside generation of the next samples, one version behind",
        "the size of the weights and the bandwidth are not known here; their quotient is the floor",
    ),
    Observed.CHECKPOINT: (
        "0 of an asynchronous save; else Young's formula, with Llama 3's failures on 16,384 GPUs",
        "rare saves are few to judge by",
    ),
    Observed.DATA: (
        "0: the next batch can be read while this one is trained on",
        "prompts that depend on the last step's results cannot be read ahead",
    ),
    Observed.TAIL: (
        "the median worker of the same steps: the others stand idle for the rest",
        "workers with other work by design, as the ends of a pipeline, are no tail",
    ),
    Observed.QUEUED: (
        "no queue: with room for all requests at once each would begin at once",
        "an engine that is at the limit of its device becomes slower with more at once",
    ),
    Observed.FREE_SLOTS: (
        "none, since the end of each batch leaves slots free",
        "the limit of the engine may be higher than its device allows",
    ),
    Observed.TRUNCATED: (
        "half of the answers: from there on the median answer is cut, and has no end to be scored",
        "a limit may be chosen to teach short answers",
    ),
    Observed.NO_SIGNAL: (
        "half of the groups: from there on each gradient costs twice the samples",
        "early steps of hard tasks have few right answers",
    ),
    Observed.OLD_SAMPLES: (
        "8 versions, the upper end of the usual 2 to 8 of AReaL (`max_head_offpolicyness`)",
        "how much age hurts depends on the objective and the learning rate",
    ),
    Observed.UNPROVEN_REWARD: (
        "none without a held-out score (`eval/...`) or a true one (`reward/true`)",
        "of two runs with the same curves one may have earned its reward",
    ),
    Observed.MFU: (
        "0.38 to 0.43, which Llama 3 reports for pretraining on 8,192 to 16,384 H100",
        "sequences of unequal lengths, and time in which devices only wait, lower it in any RL run",
    ),
}


def observations(history: RunHistory, causes: Sequence[Cause] = ()) -> Sequence[Observation]:
    """Return the observations of a run by itself, those beyond their reference first.

    Within each part, the observation that explains most seconds of a step comes first.

    Args:
        causes: Causes of the run: what they explain is not reported again, and steps since the
            first of them do not show what is usual.
    """
    begun = min((one.since for one in causes if one.since is not None), default=history.last + 1)
    last = min(begun, history.last) - 1
    known = [step for step in sorted(history.known_steps) if step <= last][-_MOST_STEPS:]
    steps = known[min(SIDE, len(known) // 4) :]  # the first are slow
    if len(steps) < FEWEST_STEPS:
        return []
    told = {(one.kind, worker) for one in causes for worker in (one.worker, None)}
    whole = [*_seen(history, steps), *_unproven(history)]
    # Early steps, events and what is over are no state of a run: each part has to show it.
    beyond = {one.place for one in whole if one.is_beyond}
    ends = [len(steps) * part // A_FEW for part in range(A_FEW + 1)]
    for begin, end in pairwise(ends):
        if beyond:
            beyond &= {one.place for one in _seen(history, steps[begin:end]) if one.is_beyond}
    found = [
        replace(one, is_beyond=one.is_beyond and one.place in beyond)
        for one in whole
        if not any((kind, one.worker) in told for kind in _LIKE.get(one.kind, ()))
    ]
    return sorted(found, key=lambda one: (not one.is_beyond, -one.seconds, one.kind))


_LIKE: Final[Mapping[Observed, Sequence[Kind]]] = {
    Observed.STARVED: (Kind.STARVATION,),
    Observed.SYNC: (Kind.SLOW_SYNC,),
    Observed.DATA: (Kind.SLOW_DATA,),
    Observed.TAIL: (*SLOW, Kind.UNEVEN_WORK, Kind.STAGE_IMBALANCE),
    Observed.NO_SIGNAL: (Kind.DEAD_GROUPS,),
    Observed.OLD_SAMPLES: (Kind.STALENESS_GROWTH, Kind.STALE_POLICY),
}
"""Causes that tell the same."""


def _seen(history: RunHistory, steps: Sequence[int]) -> Iterator[Observation]:
    budget = budget_of(history, steps)
    if budget is not None:
        yield from _bound(budget)
        yield from _starved(history, budget, steps)
        yield from _answers(budget)
        yield from _overheads(budget)
        yield from _tails(history, budget)
    yield from _requests(history, budget, steps)
    yield from _samples(history, budget, steps)


def _unproven(history: RunHistory) -> Iterator[Observation]:
    for reward, seen in unproven_rewards(history):
        yield _made(
            Observed.UNPROVEN_REWARD,
            "cannot tell whether the reward is earned; log a held-out score, or what the reward "
            f"stands for. Seen: {seen}",
            PhaseKey(reward.partition("/")[0], ""),
            0.0,
        )


def _made(
    kind: Observed,
    words: str,
    place: PhaseKey,
    amount: float,
    *,
    is_beyond: bool = False,
    seconds: float = 0.0,
    step_s: float = 0.0,
    worker: str | None = None,
) -> Observation:
    reference, doubt = _REFERENCES[kind]
    return Observation(
        kind,
        words,
        reference,
        doubt,
        is_beyond=is_beyond,
        role=place.role,
        worker=worker,
        phase=place.phase or None,
        amount=amount,
        seconds=seconds,
        step_s=step_s,
        against=slow_kind(place) if kind in _BY_PLACE else kind,
    )


_BY_PLACE: Final = frozenset({Observed.BOUND, Observed.SLOW_ANSWERS})
"""Kinds against which there is to try what helps where the place of the work is slow."""


def _of(seconds: float, step_s: float) -> str:
    return f"{in_seconds(seconds)} of a step of {in_seconds(step_s)} ({seconds / step_s:.0%})"


def _time(
    kind: Observed, words: str, place: PhaseKey, seconds: float, budget: Budget, **more: Any
) -> Observation:
    """Return an observation of time; the rule says if it is beyond its reference, unless given."""
    return _made(
        kind,
        f"{words}; without it a step takes {in_seconds(budget.step_s - seconds)}",
        place,
        seconds / budget.step_s,
        seconds=seconds,
        step_s=budget.step_s,
        **{"is_beyond": seconds >= _PART * budget.step_s, **more},
    )


def _bound(budget: Budget) -> Iterator[Observation]:
    place = budget.largest()
    seconds = 0.0 if place is None else budget.parts[place].usual_s
    if place is None or place.phase == UNACCOUNTED or seconds < _PART * budget.step_s:
        return  # nothing that is known has most of it
    half_s = budget.step_s - seconds / 2
    yield _made(
        Observed.BOUND,
        f"the step is bound by {place.phase} of {place.role}: {_of(seconds, budget.step_s)} by "
        f"{budget.how}; were it twice as fast, a step would take {in_seconds(half_s)}",
        place,
        seconds / budget.step_s,
        seconds=seconds,
        step_s=budget.step_s,
    )


def _starved(history: RunHistory, budget: Budget, steps: Sequence[int]) -> Iterator[Observation]:
    """Yield that trainers wait for samples, and whether these are made meanwhile."""
    asked = set(steps)
    step_s = median([s for at, s in step_time(history).finite().pairs() if at in asked] or [0.0])
    waits: dict[str, float] = defaultdict(float)
    for place in history.spans:
        is_wait = waits_for_samples(place) and only_waits(history, place)
        if is_wait and (work_of(place) is not Work.DATA or place in history.waits):
            waits[place.role] += mean_of_workers(history, place, asked)
    if not waits and not budget.is_whole:  # of times alone: what no part accounts for
        waits[budget.own] = step_s - sum(seconds_of_role(history, budget.own, asked).values())
    role = max(waits, key=lambda one: waits[one], default="")
    items_s = _of_an_item(history, role, asked)
    if not items_s or not 0 < SMALL_PART * step_s <= waits[role] <= step_s:
        return
    share, busy = waits[role] / step_s, min(1.0, sum(items_s.values()) / step_s)
    # Where roles take turns, the makers are busy for as long as the trainer waits.
    is_beside = busy - share >= GOOD_PART * min(busy, 1 - share)
    place = max(items_s, key=lambda one: items_s[one])
    place = answering(history, place, asked) or place
    how = "are made meanwhile" if is_beside else "are made in turn"
    words = (
        f"{role} waits for samples for {_of(waits[role], step_s)}; they {how}, and most of the "
        f"time of a sample is {place.phase} of {place.role}"
    )
    yield _made(
        Observed.STARVED,
        f"{words}; without it a step takes {in_seconds(step_s - waits[role])}" * is_beside or words,
        place,
        share,
        seconds=waits[role] * is_beside,
        step_s=step_s,
        is_beyond=is_beside and share >= _PART,
    )


def _of_an_item(history: RunHistory, trainer: str, asked: set[int]) -> Mapping[PhaseKey, float]:
    """Return by place the seconds of a step in which a maker of samples works on one."""
    others = {place.role for place in history.spans} - {trainer}
    works = {role: seconds_of_role(history, role, asked) for role in sorted(others)}
    makers = [role for role, of in works.items() if any(work_of(p) is Work.GENERATION for p in of)]
    if not makers:
        return {}
    maker = max(makers, key=lambda role: sum(works[role].values()))
    found = dict(works[maker])
    if any(work_of(place) in ANSWERS for place in found):
        return found  # with its calls of others
    for role, of in works.items():
        ratio = min(1.0, _workers(history, role) / _workers(history, maker))
        found |= {p: s * ratio for p, s in of.items() if work_of(p) in ANSWERS}
    return found


def _workers(history: RunHistory, role: str) -> int:
    return len({w for place, of in history.spans.items() if place.role == role for w in of})


def _answers(budget: Budget) -> Iterator[Observation]:
    """Yield the time that scoring, or an environment, takes beside generation."""
    generated_s = budget.of(Work.GENERATION)
    for work in ANSWERS:
        place, answered_s = budget.largest(work), budget.of(work)
        if place is None or not generated_s or answered_s < SMALL_PART * budget.step_s:
            continue
        shown_s = answered_s - generated_s  # what is left if answers are scored as they come
        yield _time(
            Observed.SLOW_ANSWERS,
            f"{place.phase} of {place.role} takes {_of(answered_s, budget.step_s)}, "
            f"{answered_s / generated_s:.1f} times as long as generation",
            place,
            answered_s,
            budget,
            is_beyond=shown_s >= _PART * budget.step_s,
        )


def _overheads(budget: Budget) -> Iterator[Observation]:
    """Yield the time that weight transfers, saves, and reading of data take."""
    kinds: dict[Observed, list[PhaseKey]] = defaultdict(list)
    for place in budget.parts:
        if (kind := _OVERHEADS.get(work_of(place))) is not None:
            kinds[kind].append(place)
        elif _CHECKPOINT.search(place.phase):
            kinds[Observed.CHECKPOINT].append(place)
    for kind, places in kinds.items():
        place = max(places, key=lambda one: budget.parts[one].usual_s)
        seconds = sum(budget.parts[one].usual_s for one in places)
        if seconds < SMALL_PART * budget.step_s:
            continue
        times = [s for s in budget.parts[place].of_step.values() if s > 0]
        young = ""
        if kind is Observed.CHECKPOINT:
            share = min(1.0, (2 * fmean(times) / _BETWEEN_FAILURES_S) ** 0.5)
            young = f", where Young's formula gives {share:.1%} (one failure in 2.8 hours)"
        yield _time(
            kind,
            f"{place.phase} of {place.role} takes {_of(seconds, budget.step_s)}, "
            f"{in_seconds(fmean(times))} in each of {len(times)} steps{young}",
            place,
            seconds,
            budget,
            is_beyond=seconds >= _PART * budget.step_s and len(times) >= A_FEW,
        )


_OVERHEADS: Final = {Work.SYNC: Observed.SYNC, Work.DATA: Observed.DATA}
_BETWEEN_FAILURES_S: Final = 2.8 * 3600


def _tails(history: RunHistory, budget: Budget) -> Iterator[Observation]:
    """Yield that a step waits for the slowest worker while the others are done."""
    staged = {w for stages in stages_of(history).values() for of in stages.values() for w in of}
    for place, one in budget.parts.items():
        if one.tail_s < SMALL_PART * budget.step_s or is_collective(place):
            continue
        if not staged.isdisjoint(history.spans[place]):
            continue
        times = one.usual_s / max(one.usual_s - one.tail_s, 1e-9)
        who = f"{one.slowest} in most steps" if one.slowest else "now this one, now that"
        yield _time(
            Observed.TAIL,
            f"the slowest of {one.workers} workers ({who}) takes {times:.1f} times as long for "
            f"{place.phase} of {place.role} as the median of the others, who stand idle for "
            f"{_of(one.tail_s, budget.step_s)}",
            place,
            one.tail_s,
            budget,
            worker=one.slowest or None,
        )


def _requests(
    history: RunHistory, budget: Budget | None, steps: Sequence[int]
) -> Iterator[Observation]:
    """Yield that requests wait for slots, or that slots are free."""
    levels = (
        _level(history, subject, steps)
        for subject in (Subject.RUNNING, Subject.QUEUE_DEPTH, Subject.SLOTS)
    )
    (role, now), (_, waiting), (_, slots) = levels
    if now <= 0:
        return
    place = (None if budget is None else budget.largest(Work.GENERATION)) or PhaseKey(role, "")
    if waiting >= SMALL_PART * now:
        saved_s = 0.0 if budget is None else budget.of(Work.GENERATION) * waiting / (waiting + now)
        step_s = 0.0 if budget is None else budget.step_s
        yield _made(
            Observed.QUEUED,
            f"{waiting:.3g} requests wait while {now:.3g} run: {role} has too few slots, and a "
            f"request waits for {waiting / now:.1f} times the time that it then takes",
            place,
            waiting / now,
            seconds=saved_s,
            step_s=step_s,
            is_beyond=saved_s >= _PART * step_s > 0,
        )
    elif slots > now:
        yield _made(
            Observed.FREE_SLOTS,
            f"generation of {role} runs at {now:.3g} of {slots:.3g} slots",
            place,
            now / slots,
        )


def _level(history: RunHistory, subject: Subject, steps: Sequence[int]) -> tuple[str, float]:
    """Return the role and the usual value of its workers in these steps; 0 without any."""
    of: dict[str, list[float]] = defaultdict(list)
    for key, _, track in tracks_about(history, subject):
        of[key.partition("/")[0]] += track.between(steps[0], steps[-1]).finite().values
    found = [(role, median(values)) for role, values in of.items() if len(values) >= A_FEW]
    return max(found, key=lambda one: one[1], default=("", 0.0))


def _samples(
    history: RunHistory, budget: Budget | None, steps: Sequence[int]
) -> Iterator[Observation]:
    """Yield shares of samples that teach nothing, their age, and the use of the devices."""
    step_s = 0.0 if budget is None else budget.step_s
    made_s = 0.0 if budget is None else budget.of(Work.GENERATION, *ANSWERS)
    for kind, subject, most, words in _OF_SAMPLES:
        for key, track in rows_about(history, subject):
            values = track.between(steps[0], steps[-1]).values
            value = median(values) if len(values) >= FEWEST_STEPS // 2 else 0.0
            is_share = most <= HALF
            if value < SMALL_PART or (is_share and value > 1):
                continue
            if kind is Observed.NO_SIGNAL and are_right(history, key, history.first):
                continue
            seconds = value * made_s * is_share
            spent = f"; making these takes {_of(seconds, step_s)}" if seconds else ""
            yield _made(
                kind,
                f"{words.format(value)} ({key}){spent}",
                PhaseKey(key.partition("/")[0], ""),
                value,
                seconds=seconds,
                step_s=step_s,
                is_beyond=value > most,
            )
            break


_OF_SAMPLES: Final = (
    (Observed.TRUNCATED, Subject.TRUNCATED, HALF, "{:.0%} of answers are cut off"),
    (Observed.NO_SIGNAL, Subject.DEAD_GROUPS, HALF, "{:.0%} of groups have no signal"),
    (Observed.OLD_SAMPLES, Subject.STALENESS, _OLDEST, "samples are {:.2g} versions old"),
    (Observed.MFU, Subject.MFU, inf, "devices reach {:.2g} of their peak (MFU)"),
)
"""Kind, subject, from which amount on it is beyond its reference, and words."""
