"""``python -m exams.first``: the diagnosis examined with runs drawn from a seed.

    python -m exams.first [--seed N] [--cases 300] [--jobs 2] [--only N ...] [--docs]
                         [--out build/diagnose-exam.json]

Real: OTLP bytes, their validation and decoding, rows, history, diagnosis. Simulated: the program,
all clocks, and the way from a worker to the bridge.
"""

import argparse
import multiprocessing
import secrets
import subprocess
import time
from functools import partial
from pathlib import Path

from exams.first.case import examined
from exams.first.chart import chart
from exams.first.judge import Mark
from exams.first.report import as_text, by_fault, figures, table, write_docs

DOCS = Path("docs/diagnose.md")
CHART = Path("docs/images/diagnose-exam.svg")


def _commit() -> str:
    """Return the commit of the rules, with a mark if they differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    is_changed = bool(git("status", "--porcelain", "--", "otel_rl", "exams/first"))
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + "-changed" * is_changed


def _note(mark: Mark, n: int, of: int, seconds: float) -> None:
    is_right = mark.right_first and mark.right_worker is not False and not mark.is_false_alarm
    print(
        f"{n:>3}/{of} {seconds:5.0f} s  {'right' if is_right else 'WRONG'}  {mark.number:>3} "
        f"{mark.name} ({mark.about['topology']}, {mark.about['style']}, {mark.about['workers']} "
        f"workers): {mark.said[:140]}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m exams.first", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seed", type=int, help="draws everything; without it a new one")
    parser.add_argument("--cases", type=int, default=300, metavar="N")
    parser.add_argument("--jobs", type=int, default=2, metavar="N")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="these cases")
    parser.add_argument("--docs", action="store_true", help=f"replace table and chart of {DOCS}")
    parser.add_argument("--out", type=Path, default=Path("build/diagnose-exam.json"))
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    numbers = options.only or range(options.cases)
    commit = _commit()
    print(f"SEED={seed}, rules of {commit}", flush=True)
    begun_s, marks = time.monotonic(), list[Mark]()
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for mark in pool.imap_unordered(partial(examined, seed=seed), numbers):
            marks.append(mark)
            _note(mark, len(marks), len(numbers), time.monotonic() - begun_s)
    marks.sort(key=lambda mark: mark.number)
    found = figures(marks, seed=seed, commit=commit)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(as_text(found), encoding="utf-8")
    text = table(found)
    faults = by_fault(marks)
    for name, right, n in faults:
        print(f"{right:>4} of {n:>3} {name}")
    print(f"\n{text}\n\n{time.monotonic() - begun_s:.0f} s, {options.out}")
    if options.docs:
        write_docs(DOCS, text)
        CHART.write_text(chart(faults, seed=seed, commit=commit), encoding="utf-8")


if __name__ == "__main__":
    main()
