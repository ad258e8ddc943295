"""Scores anybody's answers against the labels."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from exams.first.judge import Look, Mark, Named, judged
from exams.first.shares import wilson
from exams.first.truth import Fault, Truth
from otel_rl.diagnose.result import Verdict

_Line = Mapping[str, Any]

_ROWS: Final = {
    "first cause right": "right_first",
    "its worker": "right_worker",
    "its first step, within three": "right_onset",
    "both of two faults": "right_second",
    "healthy runs with an alarm": "is_false_alarm",
}


def scored(labels: Sequence[_Line], answers: Iterable[_Line]) -> Mapping[str, tuple[int, int]]:
    """Return of each row of the table how many, and of how many.

    Args:
        labels: Lines of ``labels.jsonl``.
        answers: A line for each case: ``case``, and ``causes``, the first one first, each with
            ``kind`` and, if they are known, ``role``, ``worker`` and ``step``. A case without a
            line, or without causes, is called healthy.

    Raises:
        ValueError: An answer is of no case of the labels, or two are of one.
    """
    of_case: dict[str, _Line] = {}
    known = {label["case"] for label in labels}
    for one in answers:
        if one["case"] not in known or one["case"] in of_case:
            raise ValueError(f"case {one['case']}: no such case, or answered twice")
        of_case[one["case"]] = one
    marks = [_mark(label, of_case.get(label["case"], {})) for label in labels]
    faulty = [mark for mark in marks if not mark.truth.is_healthy]
    found = {}
    for row, name in _ROWS.items():
        of = [mark for mark in marks if mark.truth.is_healthy] if "healthy" in row else faulty
        results = [result for mark in of if (result := getattr(mark, name)) is not None]
        found[row] = sum(results), len(results)
    return found


def _mark(label: _Line, answer: _Line) -> Mark:
    faults = [
        Fault(one["name"], frozenset(one["kinds"]), one["step"], one["role"], one["worker"])
        for one in label["faults"]
    ]
    causes = [_named(one) for one in answer.get("causes", ())]
    verdict = Verdict.CAUSE if causes else Verdict.HEALTHY
    truth = Truth(tuple(faults), tuple(label["changes"]))
    return judged(int(label["case"]), truth, [Look(0.0, verdict, causes, is_last=True)])


def _named(one: _Line) -> Named:
    worker = one.get("worker")
    role = one.get("role") or (worker.rpartition("/")[0] if worker else None)
    return Named(one["kind"], role, worker, one.get("step"))


def baselines(labels: Sequence[_Line]) -> Mapping[str, Sequence[_Line]]:
    """Return the answers of two who look at nothing: a useful one is better than both."""
    kinds = Counter(kind for label in labels for one in label["faults"] for kind in one["kinds"])
    ((most, _),) = kinds.most_common(1) or (("stall", 0),)
    every = [{"case": label["case"], "causes": [{"kind": most}]} for label in labels]
    return {f"flag every run ({most})": every, "flag none": []}


def table(found: Mapping[str, Mapping[str, tuple[int, int]]]) -> str:
    """Return a table in Markdown, with 95 % intervals."""
    lines = [f"| | {' | '.join(found)} |", "| --- |" + " --- |" * len(found)]
    for row in _ROWS:
        cells = []
        for of_answers in found.values():
            right, n = of_answers[row]
            low, high = wilson(right, n)
            share = f"{right / n:.0%} ({low:.0%} to {high:.0%})" if n else "none"
            cells.append(f"{right} of {n}: {share}")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)
