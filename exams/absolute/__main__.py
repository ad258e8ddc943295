"""``python -m exams.absolute``: runs that are slow, or learn from little, from their first step on.

    python -m exams.absolute [--seed N] [--slow 60] [--healthy 180] [--jobs 2] [--only N ...]

Programs, requests and intake are those of ``exams.first``. A slow run counts as named if the first
cause, else the first observation, has a right kind and the right place at the end of the run. A
healthy run has an alarm if any look at it has a cause, or an observation beyond its reference.
"""

import argparse
import json
import multiprocessing
import secrets
import time
from collections import Counter
from functools import partial
from pathlib import Path

from exams.absolute.case import Mark, examined


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m exams.absolute", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seed", type=int, help="draws everything; without it a new one")
    parser.add_argument("--slow", type=int, default=60, metavar="N")
    parser.add_argument("--healthy", type=int, default=180, metavar="N")
    parser.add_argument("--jobs", type=int, default=2, metavar="N")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="healthy ones are < 0")
    parser.add_argument("--out", type=Path, default=Path("build/absolute-exam.json"))
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    numbers = options.only or [*range(options.slow), *range(-options.healthy, 0)]
    print(f"SEED={seed}", flush=True)
    begun_s, marks = time.monotonic(), list[Mark]()
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for mark in pool.imap_unordered(partial(examined, seed=seed), numbers):
            marks.append(mark)
            print(f"{len(marks):>3} {time.monotonic() - begun_s:4.0f} s {mark}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([mark._asdict() for mark in marks], indent=1))
    _summarise(marks)


def _summarise(marks: list[Mark]) -> None:
    slow = [mark for mark in marks if mark.number >= 0]
    healthy = [mark for mark in marks if mark.number < 0]
    of, right = Counter(mark.name for mark in slow), Counter(m.name for m in slow if m.is_right)
    for name in sorted(of):
        print(f"{right[name]:>4} of {of[name]:>3} {name}")
    print(f"named with the right place: {sum(right.values())} of {len(slow)}")
    beyond = sum(mark.is_right and mark.is_beyond for mark in slow)
    print(f"of these by a cause, or beyond a reference: {beyond}; by a number alone the others")
    steps = sorted(mark.first_step for mark in slow if mark.is_right)
    if steps:
        print(f"first named by a look at step {steps[len(steps) // 2]} (median)")
    alarms = [mark for mark in healthy if not mark.is_right]
    print(f"healthy runs with an alarm: {len(alarms)} of {len(healthy)}")
    print(f"of these by an observation: {sum(mark.is_beyond for mark in alarms)}")


if __name__ == "__main__":
    main()
