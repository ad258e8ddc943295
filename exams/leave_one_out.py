"""``python -m exams.leave_one_out``: what each detector of the diagnosis is worth.

    python -m exams.leave_one_out [--seed N] [--first 300] [--second 1] [--jobs 2] [--out FILE]

Plays the cases of both exams once. At each look the diagnosis is also made without each of the
detectors that found something there, so the table shows the cases that only this detector names,
and the alarms that it alone raises.
"""

import argparse
import json
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from exams.first.case import draw as draw_first
from exams.first.case import examine as examine_first
from exams.first.judge import Look as FirstLook
from exams.first.judge import judged as judged_first
from exams.second.examine import examined as examine_second
from exams.second.judge import Look as SecondLook
from exams.second.judge import judged as judged_second
from exams.second.run import draw as draw_second
from exams.second.scenarios import SCENARIOS
from otel_rl.diagnose import engine
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause, Diagnosis

Detector = Callable[[RunHistory], Iterable[Cause]]

ALL: Final[Sequence[Detector]] = engine.DETECTORS


class Changed(NamedTuple):
    """One case, with and without a detector.

    Attributes:
        detector: The one that is left out.
        case: The case, in words.
        what: How the result differs: ``lost``, ``gained`` or an ``alarm`` that goes or comes.
    """

    detector: str
    case: str
    what: str


@dataclass(frozen=True, slots=True)
class _Said:
    """What is said at one look, with all detectors and without each that found something."""

    whole: Diagnosis
    without: Mapping[str, Diagnosis]

    def by(self, left_out: str) -> Diagnosis:
        return self.without.get(left_out, self.whole)


class _Diagnoses:
    """Makes the diagnosis of each look, and those without one detector."""

    def __init__(self) -> None:
        self.said: list[_Said] = []

    def __call__(self, history: RunHistory, /, *, passed: bool, silent_s: float) -> Diagnosis:
        found: dict[tuple[int, str], list[Cause]] = {}
        parts: list[RunHistory] = []  # alive, so that none has the identity of another

        def remembered(detector: Detector) -> Detector:
            def detect(part: RunHistory) -> list[Cause]:
                key = id(part), name_of(detector)
                if key not in found:
                    parts.append(part)
                    found[key] = list(detector(part))
                return found[key]

            return detect

        kept = {name_of(one): remembered(one) for one in ALL}
        with _detectors(list(kept.values())):
            whole = engine.diagnose(history, passed=passed, silent_s=silent_s)
        active = {name for (_, name), causes in found.items() if causes}
        without = {}
        for left_out in sorted(active):
            with _detectors([one for name, one in kept.items() if name != left_out]):
                without[left_out] = engine.diagnose(history, passed=passed, silent_s=silent_s)
        self.said.append(_Said(whole, without))
        return whole


def name_of(detector: Detector) -> str:
    """Return the name of a detector."""
    return getattr(detector, "__name__", str(detector))


@contextmanager
def _detectors(chosen: Sequence[Detector]) -> Iterator[None]:
    engine.DETECTORS, before = chosen, engine.DETECTORS
    try:
        yield
    finally:
        engine.DETECTORS = before


def _of_first(number: int, seed: int) -> list[Changed]:
    case, diagnoses = draw_first(seed, number), _Diagnoses()
    looks: list[FirstLook] = []
    mark = examine_first(case, diagnoses, looks.append)
    whole = mark.right_first and mark.right_worker is not False and mark.right_second is not False
    found: list[Changed] = []
    for left_out in sorted({name for said in diagnoses.said for name in said.without}):
        theirs = [
            FirstLook.of(look.at_s, said.by(left_out), is_last=look.is_last)
            for look, said in zip(looks, diagnoses.said, strict=True)
        ]
        other = judged_first(number, mark.truth, theirs)
        is_right = (
            other.right_first
            and other.right_worker is not False
            and other.right_second is not False
        )
        words = f"first {seed}/{number} {mark.name}"
        found += _differences(
            left_out,
            words,
            (whole, mark.is_false_alarm, mark.told_s),
            (is_right, other.is_false_alarm, other.told_s),
        )
    return found


def _of_second(name: str, seed: int) -> list[Changed]:
    scenario = next(one for one in SCENARIOS if one.name == name)
    run, diagnoses = draw_second(scenario, seed), _Diagnoses()
    mark, looks, onset_s = examine_second(run, diagnoses)
    found: list[Changed] = []
    for left_out in sorted({of for said in diagnoses.said for of in said.without}):
        theirs = [
            SecondLook(look.at_s, look.step, said.by(left_out))
            for look, said in zip(looks, diagnoses.said, strict=True)
        ]
        other = judged_second(run, theirs, onset_s)
        found += _differences(
            left_out,
            f"second {seed} {name}",
            (mark.is_right and mark.has_second is not False, bool(mark.alarms), mark.told_s),
            (other.is_right and other.has_second is not False, bool(other.alarms), other.told_s),
        )
    return found


def _differences(
    left_out: str,
    case: str,
    whole: tuple[bool, bool, float | None],
    other: tuple[bool, bool, float | None],
) -> Iterator[Changed]:
    (right, alarm, told_s), (other_right, other_alarm, other_told_s) = whole, other
    if right != other_right:
        yield Changed(left_out, case, "lost" if right else "gained")
    if alarm != other_alarm:
        yield Changed(left_out, case, "alarm goes" if alarm else "alarm comes")
    if right and other_right and told_s is not None and told_s != other_told_s:
        yield Changed(left_out, case, "later")


def _played(task: tuple[str, int | str, int]) -> list[Changed]:
    exam, of, seed = task
    return _of_first(int(of), seed) if exam == "first" else _of_second(str(of), seed)


def main() -> None:
    """Play both exams, and print a line for each detector."""
    parser = argparse.ArgumentParser(prog="python -m exams.leave_one_out")
    parser.add_argument("--seed", type=int, default=1, help="draws the cases of both exams")
    parser.add_argument("--first", type=int, default=300, metavar="N", help="cases of the first")
    parser.add_argument("--second", type=int, default=1, metavar="N", help="rounds of the second")
    parser.add_argument("--jobs", type=int, default=2, metavar="N")
    parser.add_argument("--out", type=Path, default=Path("build/leave-one-out.json"))
    options = parser.parse_args()
    tasks: list[tuple[str, int | str, int]] = [
        ("first", number, options.seed) for number in range(options.first)
    ]
    for seed in range(options.seed, options.seed + options.second):
        tasks += [("second", scenario.name, seed) for scenario in SCENARIOS]
    changed: list[Changed] = []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for n, found in enumerate(pool.imap_unordered(partial(_played), tasks), 1):
            changed += found
            print(f"{n}/{len(tasks)} {'; '.join(map(str, found))}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([one._asdict() for one in changed], indent=1))
    by: dict[str, dict[str, int]] = {name_of(one): defaultdict(int) for one in ALL}
    for one in changed:
        by[one.detector][one.what] += 1
    columns = ("lost", "gained", "alarm goes", "alarm comes", "later")
    print("| without | " + " | ".join(columns) + " |")
    print("| --- |" + " --- |" * len(columns))
    for name, counts in sorted(by.items(), key=lambda one: one[1]["lost"]):
        print(f"| {name} | " + " | ".join(str(counts[what]) for what in columns) + " |")


if __name__ == "__main__":
    main()
