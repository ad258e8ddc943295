"""``python -m exams.second``: examines the diagnosis with simulated RL systems.

    python -m exams.second [--seed N] [--rounds 1] [--only WORDS] [--verbose] [--out FILE]

Each round plays each scenario once, with a program drawn from the seed. ``--only`` takes scenarios
whose name contains one of the comma-separated words; ``--verbose`` prints all that is said.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from exams.second.examine import examined
from exams.second.judge import Look, Mark, summary
from exams.second.run import Run, draw
from exams.second.scenario import Scenario
from exams.second.scenarios import SCENARIOS


def main(arguments: Sequence[str] | None = None) -> None:
    """Examine, and print the rates."""
    options = _options(arguments)
    marks = []
    for seed in range(options.seed, options.seed + options.rounds):
        scenarios = list(_chosen(options.only))
        random.Random(seed).shuffle(scenarios)
        for scenario in scenarios:
            began_s = time.process_time()
            run = draw(scenario, seed)
            mark, looks, _ = examined(run)
            marks.append(mark)
            print(_line(mark, seed, time.process_time() - began_s), flush=True)
            if options.verbose or not mark.is_right or mark.alarms:
                print("\n".join(_details(run, mark, looks)), flush=True)
    print(summary(marks))
    if options.out:
        Path(options.out).write_text(json.dumps([asdict(mark) for mark in marks], indent=1))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m exams.second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--out", default="")
    return parser.parse_args(arguments)


def _chosen(only: str) -> Iterator[Scenario]:
    words = [word for word in only.split(",") if word]
    for scenario in SCENARIOS:
        if not words or any(word in scenario.name for word in words):
            yield scenario


def _line(mark: Mark, seed: int, took_s: float) -> str:
    said = "right" if mark.is_right else "kind only" if mark.has_kind else "WRONG"
    more = "".join(
        f" {name}={value}"
        for name, value in (
            ("worker", mark.has_worker),
            ("onset", mark.has_onset),
            ("second", mark.has_second),
            ("told_s", None if mark.told_s is None else round(mark.told_s)),
        )
        if value is not None
    )
    return f"{said:9} {mark.name} seed {seed}: {mark.verdict}{more} [{took_s:.0f} s]"


def _details(run: Run, mark: Mark, looks: Sequence[Look]) -> Iterator[str]:
    program, how = run.program, run.program.telemetry
    yield (
        f"    program: {dict(program.sizes)}, {program.steps} steps of {program.step_s:.1f} s, "
        f"noise {program.noise:.0%}, tail {program.tail:.1%}, saves {program.saves}, "
        f"evaluates {program.evaluates}, pushes {program.pushes}, growth {program.growth}"
    )
    yield f"    telemetry: {how}"
    for one in run.troubles:
        yield f"    truth: {one}"
    for expected in run.expected:
        yield f"    right: {sorted(expected.kinds)} {expected.worker} since {expected.step}"
    last = looks[-1].said
    yield f"    said at the end, {last.verdict}: {last.seen}"
    for cause in last.causes:
        yield f"      cause: {cause.kind} ({cause.score:.2f}): {cause.words}"
    for what, words in (
        ("symptom", last.symptoms),
        ("doubt", last.doubts),
        ("change", last.changes),
        ("failure", last.failures),
        ("alarm", mark.alarms),
    ):
        for one_line in words:
            yield f"      {what}: {one_line}"


if __name__ == "__main__":
    main()
