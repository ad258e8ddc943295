"""Verdict on what was said of a run, and shares with their intervals."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from exams.second.run import Run
from exams.second.trouble import CANNOT_TELL, Expected
from otel_rl.diagnose.result import Cause, Diagnosis

_NEAR: Final = 3  # steps
_Z: Final = 1.96


@dataclass(frozen=True, slots=True)
class Look:
    """One diagnosis of a run that goes on."""

    at_s: float
    step: int
    said: Diagnosis


@dataclass(frozen=True, slots=True)
class Mark:
    """Judgement of one run. ``None`` where there is nothing to judge.

    Attributes:
        is_right: The first cause is right, and of a healthy run that nothing is said to be wrong.
        has_kind: Its kind is right, perhaps not its worker.
        has_worker, has_onset, has_second: They are right, if the kind is.
        is_silent: A sick run is called healthy.
        alarms: False causes, while it ran and at its end.
        told_s: From the first step with the trouble to a right first cause.
        told_steps: The same in usual steps.
        verdict: What was said at the end.
        is_ours: The program reports as otel_rl's worker does.
    """

    name: str
    is_healthy: bool
    is_right: bool
    has_kind: bool
    alarms: Sequence[str]
    verdict: str
    has_worker: bool | None = None
    has_onset: bool | None = None
    has_second: bool | None = None
    is_silent: bool = False
    told_s: float | None = None
    told_steps: float | None = None
    is_ours: bool = False


def judged(run: Run, looks: Sequence[Look], onset_s: float) -> Mark:
    """Judge the looks at a run, of which the last is at its end."""
    last = looks[-1].said
    if not run.expected:
        alarms = [f"step {one.step}: {c.words}" for one in looks for c in _false(run, one.said)]
        return Mark(run.scenario.name, is_healthy=True, is_right=not alarms, has_kind=not alarms,
                    alarms=alarms, verdict=str(last.verdict),
                    is_ours=run.program.telemetry.is_ours)  # fmt: skip
    hit = _first(run, last)
    told = [one.at_s - onset_s for one in looks if one.at_s >= onset_s and is_told(run, one)]
    early = [f"step {one.step}: {cause.words}" for one in looks
             if run.onset and one.step < run.onset - 1 for cause in one.said.causes]  # fmt: skip
    worker = _has_worker(hit, last)
    return Mark(
        name=run.scenario.name,
        is_healthy=False,
        is_right=hit is not None and worker is not False,
        has_kind=hit is not None,
        has_worker=worker,
        has_onset=_has_onset(hit, last, _NEAR * run.program.stride),
        has_second=_has_second(run, last) if len(run.expected) > 1 else None,
        is_silent=str(last.verdict) == "healthy",
        alarms=early,
        told_s=min(told, default=None),
        told_steps=min(told) / run.program.step_s if told else None,
        verdict=str(last.verdict),
        is_ours=run.program.telemetry.is_ours,
    )


def _false(run: Run, said: Diagnosis) -> list[Cause]:
    return [cause for cause in said.causes if cause.kind not in run.scenario.may_say]


def _matches(one: Expected, cause: Cause) -> bool:
    """Return whether a cause is a trouble: of its kind, and of no other role."""
    role = cause.role or (cause.worker or "").rpartition("/")[0]
    return str(cause.kind) in one.kinds and (not one.role or role in ("", one.role))


def _first(run: Run, said: Diagnosis) -> Expected | None:
    if not said.causes:
        if str(said.verdict).replace("_", " ") == CANNOT_TELL:
            return next((one for one in run.expected if CANNOT_TELL in one.kinds), None)
        return None
    return next((one for one in run.expected if _matches(one, said.causes[0])), None)


def is_told(run: Run, look: Look) -> bool:
    """Return whether the first cause of a look is right, and its worker."""
    hit = _first(run, look.said)
    return hit is not None and _has_worker(hit, look.said) is not False


def _has_worker(hit: Expected | None, said: Diagnosis) -> bool | None:
    if hit is None or hit.worker is None or not said.causes:
        return None
    return said.causes[0].worker == hit.worker


def _has_onset(hit: Expected | None, said: Diagnosis, near: int) -> bool | None:
    if hit is None or hit.step is None or not said.causes:
        return None
    since = said.causes[0].since
    return since is not None and abs(since - hit.step) <= near


def _has_second(run: Run, said: Diagnosis) -> bool:
    return all(any(_matches(one, cause) for cause in said.causes) for one in run.expected)


def share(good: int, of: int) -> str:
    """Return a share in words with its Wilson interval of 95 %."""
    if not of:
        return "0 of 0"
    p, z2 = good / of, _Z * _Z
    middle = (p + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z * math.sqrt(p * (1 - p) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    return f"{good} of {of}, {p:.0%} ({max(0.0, middle - half):.0%} to {middle + half:.0%})"


def summary(marks: Sequence[Mark]) -> str:
    """Return the rates, one a line."""
    sick = [mark for mark in marks if not mark.is_healthy]
    well = [mark for mark in marks if mark.is_healthy]
    told = sorted(mark.told_s for mark in sick if mark.told_s is not None)
    lines = [
        f"first cause and worker right: {_of(sick, lambda m: m.is_right)}",
        f"first cause's kind right: {_of(sick, lambda m: m.has_kind)}",
        f"its worker: {_of(sick, lambda m: m.has_worker)}",
        f"its first step, within {_NEAR}: {_of(sick, lambda m: m.has_onset)}",
        f"both of two: {_of(sick, lambda m: m.has_second)}",
        f"sick runs called healthy: {_of(sick, lambda m: m.is_silent)}",
        f"alarms before the trouble: {_of(sick, lambda m: bool(m.alarms))}",
        f"healthy runs with an alarm: {_of(well, lambda m: not m.is_right)}",
    ]
    for ours, of in ((True, "otel_rl's worker"), (False, "other SDKs")):
        ill = [mark for mark in sick if mark.is_ours is ours]
        fit = [mark for mark in well if mark.is_ours is ours]
        lines.append(f"programs of {of}: {_of(ill, lambda m: m.is_right)}")
        lines.append(f"  healthy with an alarm: {_of(fit, lambda m: not m.is_right)}")
    told_steps = sorted(mark.told_steps for mark in sick if mark.told_steps is not None)
    if told:
        half, most = told[len(told) // 2], told[int(0.9 * (len(told) - 1))]
        most_steps = told_steps[int(0.9 * (len(told_steps) - 1))]
        lines.append(
            f"told within: half {half:.0f} s, 90 % {most:.0f} s ({most_steps:.1f} steps), of "
            f"{len(told)} told"
        )
    return "\n".join(lines)


def _of(marks: Iterable[Mark], is_good: Callable[[Mark], bool | None]) -> str:
    judged_ones = [good for good in map(is_good, marks) if good is not None]
    return share(sum(judged_ones), len(judged_ones))
