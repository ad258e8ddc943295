"""Figures of an exam, and the table of the docs."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from exams.first.judge import Mark
from exams.first.shares import wilson

_HANG_S = 15.0  # goal
_SHORT_S = 10.0  # steps: proof takes some of them, and of longer ones is not there within 30 s

_BEGIN, _END = "<!-- exam: written by make diagnose-exam -->", "<!-- end of exam -->"


def figures(marks: Sequence[Mark], *, seed: int, commit: str) -> dict[str, object]:
    """Return all figures, and each case."""
    faulty = [mark for mark in marks if not mark.truth.is_healthy]
    healthy = [mark for mark in marks if mark.truth.is_healthy]
    first = [mark.right_first for mark in faulty]
    told = sorted(mark.told_s for mark in faulty if mark.told_s is not None)
    return {
        "cases": len(marks),
        "faulty": len(faulty),
        **_share("right_first", first),
        **_share("right_worker", _known(mark.right_worker for mark in faulty)),
        **_share("right_onset", _known(mark.right_onset for mark in faulty)),
        **_share("right_second", _known(mark.right_second for mark in faulty)),
        "healthy": len(healthy),
        **_share("false_alarms", [mark.is_false_alarm for mark in healthy]),
        "early_alarms": sum(mark.is_false_alarm for mark in faulty),
        "told_in_run": len(told),
        "p50_s": _percentile(told, 0.5),
        "p90_s": _percentile(told, 0.9),
        "p50_steps": _percentile(_in_steps(faulty), 0.5),
        "p90_steps": _percentile(_in_steps(faulty), 0.9),
        **_of_short_steps(faulty),
        **_hangs(faulty),
        "seed": seed,
        "commit": commit,
        "each": [_as_json(mark) for mark in marks],
    }


def _of_short_steps(faulty: Sequence[Mark]) -> dict[str, object]:
    """Return the times to a verdict of runs with short steps."""
    short = [mark for mark in faulty if float(str(mark.about.get("step_s", "inf"))) < _SHORT_S]
    told = sorted(mark.told_s for mark in short if mark.told_s is not None)
    return {
        "short": len(short),
        "told_short": len(told),
        "p50_short_s": _percentile(told, 0.5),
        "p90_short_s": _percentile(told, 0.9),
    }


def _hangs(faulty: Sequence[Mark]) -> dict[str, object]:
    """Return how many hangs were told in time: from their symptom, and from when they are seen."""
    hangs = [mark for mark in faulty if mark.truth.faults[0].visible_s is not None]
    told = [mark for mark in hangs if mark.told_s is not None]
    return {
        "hangs": len(hangs),
        "hangs_in_time": sum((mark.told_s or 0.0) <= _HANG_S for mark in told),
        "hangs_seen_in_time": sum((mark.told_visible_s or 0.0) <= _HANG_S for mark in told),
    }


def table(found: dict[str, object]) -> str:
    """Return the table of the docs."""
    lines = [
        (
            f"`make diagnose-exam SEED={found['seed']} CASES={found['cases']}`, rules of commit "
            f"`{found['commit']}`, {found['cases']} cases (95 % intervals):"
        ),
        "",
        "| | of | share |",
        "| --- | --- | --- |",
        *(
            f"| {words} | {_of(found, name)} | {_interval(found, name)} |"
            for words, name in (
                ("first cause right", "right_first"),
                ("its worker", "right_worker"),
                ("its first step, within three", "right_onset"),
                ("both of two faults", "right_second"),
                ("healthy runs with an alarm", "false_alarms"),
            )
        ),
        (
            f"| named during the run | {found['told_in_run']} of {found['faulty']} | "
            f"half within {_seconds(found['p50_s'])}, 90 % within {_seconds(found['p90_s'])} "
            f"({found['p50_steps']} and {found['p90_steps']} steps) |"
        ),
        (
            f"| the same, steps under {_SHORT_S:.0f} s | {found['told_short']} of "
            f"{found['short']} | half within {_seconds(found['p50_short_s'])}, 90 % within "
            f"{_seconds(found['p90_short_s'])} |"
        ),
        (
            f"| hangs named within 15 s | {found['hangs_in_time']} of {found['hangs']} | "
            f"{found['hangs_seen_in_time']} within 15 s of the moment when the work "
            "had taken twice its longest time |"
        ),
        "",
        "![Share of each fault that is named right and first](images/diagnose-exam.svg)",
    ]
    return "\n".join(lines)


def write_docs(path: Path, text: str) -> None:
    """Replace the table as a whole.

    Raises:
        ValueError: The page has no place for it.
    """
    page = path.read_text(encoding="utf-8")
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{path} has no {_BEGIN} ... {_END}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def by_fault(marks: Sequence[Mark]) -> list[tuple[str, int, int]]:
    """Return (name, named right and first, cases) of each fault that was alone in its case."""
    found = []
    for name in sorted({fault.name for mark in marks for fault in mark.truth.faults}):
        cases = [mark for mark in marks if [one.name for one in mark.truth.faults] == [name]]
        if cases:
            found.append((name, sum(mark.right_first for mark in cases), len(cases)))
    return found


def _in_steps(faulty: Sequence[Mark]) -> Sequence[float]:
    """Return the times to a verdict in usual steps of each run: what proof takes, not machinery."""
    return sorted(
        mark.told_s / float(str(mark.about["step_s"]))
        for mark in faulty
        if mark.told_s is not None and mark.about.get("step_s")
    )


def _known(some: Iterable[bool | None]) -> list[bool]:
    return [one for one in some if one is not None]


def _share(name: str, some: Sequence[bool]) -> dict[str, object]:
    low, high = wilson(sum(some), len(some))
    return {
        name: sum(some),
        f"{name}_of": len(some),
        f"{name}_interval": [round(low, 4), round(high, 4)],
    }


def _of(found: dict[str, object], name: str) -> str:
    return f"{found[name]} of {found[f'{name}_of']}"


def _interval(found: dict[str, object], name: str) -> str:
    right, n, interval = found[name], found[f"{name}_of"], found[f"{name}_interval"]
    assert isinstance(right, int)
    assert isinstance(n, int)
    assert isinstance(interval, list)
    share = right / n if n else 0.0
    return f"{share:.0%} ({interval[0]:.0%} to {interval[1]:.0%})"


def _seconds(value: object) -> str:
    return f"{value:.0f} s" if isinstance(value, float) else "-"


def _percentile(values: Sequence[float], share: float) -> float | None:
    if not values:
        return None
    return round(values[min(len(values) - 1, math.ceil(share * len(values)) - 1)], 1)


def _as_json(mark: Mark) -> dict[str, object]:
    return {
        "number": mark.number,
        "name": mark.name,
        "truth": [
            f"{sorted(fault.kinds)} {fault.worker or fault.role} since {fault.step} "
            f"{fault.in_words}"
            for fault in mark.truth.faults
        ]
        or [*mark.truth.changes],
        "said": mark.said,
        "right_first": mark.right_first,
        "right_worker": mark.right_worker,
        "right_onset": mark.right_onset,
        "right_second": mark.right_second,
        "false_alarm": mark.is_false_alarm,
        "told_s": None if mark.told_s is None else round(mark.told_s, 1),
        **mark.about,
    }


def as_text(found: dict[str, object]) -> str:
    """Return the figures as JSON."""
    return json.dumps(found, indent=1, allow_nan=False)
