"""Detector of unequal pipeline stages: one takes longer in all steps, the others wait for it.

Each stage computes once for each microbatch, so the longest stage decides how many a step can do. A
slow worker does not make a long stage: other workers of its stage are as fast as those of other
stages.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import Work, only_waits, work_of
from otel_rl.diagnose.history.pipeline import Stages, stages_of
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause, Evidence, Kind
from otel_rl.diagnose.step_times import traces_of, usual_step_s
from otel_rl.diagnose.thresholds import FEWEST_BEFORE, LEAST_LONGER, LEAST_PART, OFTEN

_BEGINNING: Final = 4  # part of the steps: a stage that becomes slow later is a slowdown

_Times = Mapping[int, Mapping[int, float]]


class _Phase(NamedTuple):
    """A phase that all stages have.

    Attributes:
        times: Seconds in a step by stage and step, taken from the stage's faster workers.
    """

    name: str
    roles: Mapping[int, str]
    times: _Times


def stage_imbalance(history: RunHistory) -> Iterator[Cause]:
    """Find the stage of each pipeline that takes longer than the others from the first step on."""
    step_s = usual_step_s(history)
    for name, stages in stages_of(history).items():
        phases = list(_phases(history, stages))
        whole = _whole(phases)
        steps = sorted(set.intersection(*(set(of) for of in whole.values()))) if whole else []
        if len(steps) < FEWEST_BEFORE:
            continue
        usual = {stage: median(of[step] for step in steps) for stage, of in whole.items()}
        longest = max(usual, key=lambda stage: usual[stage])
        balanced_s = fmean(usual.values())
        is_long = [_is_longest(whole, longest, step) for step in steps]
        if not _is_lasting(is_long) or usual[longest] - balanced_s < LEAST_PART * step_s:
            continue
        yield _cause(history, name, stages, longest, usual, _in_order(phases, longest))


def _phases(history: RunHistory, stages: Stages) -> Iterator[_Phase]:
    """Yield the training phases of all stages. Some contain what passes between stages."""
    of_stage = {worker: stage for stage, workers in stages.items() for worker in workers}
    found: dict[str, dict[int, str]] = defaultdict(dict)
    times: dict[str, dict[int, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for place, tracks in history.spans.items():
        if work_of(place) is not Work.TRAINING or only_waits(history, place):
            continue
        for worker in tracks.keys() & of_stage.keys():
            stage = of_stage[worker]
            found[place.phase][stage] = place.role
            for step, seconds in history.seconds_of(place, worker).items():
                times[place.phase][stage][step].append(seconds)
    for name, roles in found.items():
        if len(roles) == len(stages):
            yield _Phase(
                name,
                roles,
                {
                    stage: {step: _of_faster(each) for step, each in of.items()}
                    for stage, of in times[name].items()
                },
            )


def _of_faster(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // _BEGINNING]


def _whole(phases: Sequence[_Phase]) -> dict[int, dict[int, float]]:
    whole: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for phase in phases:
        for stage, of in phase.times.items():
            for step, seconds in of.items():
                whole[stage][step] += seconds
    return whole


def _is_longest(whole: _Times, longest: int, step: int) -> bool:
    others = [of[step] for stage, of in whole.items() if stage != longest]
    return whole[longest][step] >= LEAST_LONGER * median(others) and whole[longest][step] >= max(
        others
    )


def _is_lasting(is_long: Sequence[bool]) -> bool:
    begun = is_long[: max(FEWEST_BEFORE // 2, len(is_long) // _BEGINNING)]
    return all(sum(part) >= OFTEN * len(part) for part in (begun, is_long))


def _in_order(phases: Sequence[_Phase], stage: int) -> Sequence[tuple[_Phase, float, float]]:
    """Return phases with the seconds of a stage and of a mean one, the most unequal first."""
    found = []
    for phase in phases:
        usual = {number: median(of.values()) for number, of in phase.times.items()}
        found.append((phase, usual[stage], fmean(usual.values())))
    return sorted(found, key=lambda one: one[2] - one[1])


def _cause(
    history: RunHistory,
    name: str,
    stages: Stages,
    longest: int,
    usual: Mapping[int, float],
    phases: Sequence[tuple[_Phase, float, float]],
) -> Cause:
    others_s = median(seconds for stage, seconds in usual.items() if stage != longest)
    first = phases[0][0]
    ratio = usual[longest] / others_s
    workers = sorted(stages[longest])
    return Cause(
        Kind.STAGE_IMBALANCE,
        f"stage {longest} of the {len(stages)} stages of {name} takes {ratio:.1f} times as long "
        f"as the others, in all steps: {usual[longest]:.3g} s of work in a step, and they "
        f"{others_s:.3g} s",
        role=first.roles[longest],
        worker=workers[0] if len(workers) == 1 else None,
        phase=first.name,
        evidence=[
            Evidence(
                f"time of {phase.name} in a step, of a mean stage and of stage {longest}",
                key=f"phase/{phase.roles[longest]}/{phase.name}",
                worker=workers[0] if len(workers) == 1 else None,
                before=balanced_s,
                after=own_s,
                unit="s",
                traces=traces_of(history, history.first) if phase is first else (),
            )
            for phase, own_s, balanced_s in phases
            if own_s > balanced_s
        ],
    )
