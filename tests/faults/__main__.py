"""``python -m tests.faults``: many scenarios, with figures at the end.

FAULT_RUNS    how many (default 200)
FAULT_FIRST   the first seed (default 1)
FAULT_SEED    this one alone, with its timeline
FAULT_JOBS    how many at a time (default: one more than cores)
FAULT_WITHOUT a safety layer to take out, such as trusted_cursor, see ``tests/layers``

FAULT_KILLS   how many of a bridge, its writers and real servers of MLflow and Trackio (default 200)

Unless it is one alone, a bridge lives through a full disk for each tracker that writes files, and
through the deaths of real servers.

Ctrl-C or SIGTERM begins no further scenario and leaves no process of those that run.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import FrameType

from tests.faults.crew import Crew
from tests.faults.full_disk import TRACKERS, run_story
from tests.faults.outcome import Outcome
from tests.faults.real_servers import run_real_servers
from tests.faults.scarce import SCARCE
from tests.faults.scenario import STOP_TIMEOUT_S

_REPORT = Path("build/faults.json")
_WITHOUT_STOP_TIMEOUT_S = 10.0  # some never come to an end


def main() -> int:
    """Run them. Returns 1 if anything was lost, doubled or otherwise wrong."""
    alone = os.environ.get("FAULT_SEED")
    first = int(alone or os.environ.get("FAULT_FIRST") or 1)
    runs = 1 if alone else int(os.environ.get("FAULT_RUNS") or 200)
    jobs = min(runs, int(os.environ.get("FAULT_JOBS") or (os.cpu_count() or 1) + 1))
    without = os.environ.get("FAULT_WITHOUT", "")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    begin = time.monotonic()
    outcomes: list[Outcome] = []
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as scratch,
        Crew(Path(scratch), jobs) as crew,
        _one_by_one() as others,
    ):
        timeout_s = _WITHOUT_STOP_TIMEOUT_S if without else STOP_TIMEOUT_S
        stories = (
            []
            if alone or without
            else [
                others.submit(run_story, tracker, kind, Path(tempfile.mkdtemp(dir=scratch)))
                for tracker in TRACKERS
                for kind in SCARCE
            ]
        )
        kills = 0 if alone or without else int(os.environ.get("FAULT_KILLS") or 200)
        real = kills and others.submit(
            run_real_servers, Path(tempfile.mkdtemp(dir=scratch)), kills=kills, seed=first
        )
        begun = [
            crew.run(first + n, without=without, stop_timeout_s=timeout_s) for n in range(runs)
        ]
        for future in as_completed(begun):
            outcome = future.result()
            outcomes.append(outcome)
            _say(_line(len(outcomes), runs, outcome))
            if alone or not outcome.verdict.is_sound:
                _say(outcome.report())
        told = [story.result() for story in stories]
        served = real.result() if real else None
    for story in told:
        _say(f"{story.tracker}, {story.scarce}: {'FAILED' if story.problems else 'ok'}")
        if story.problems:
            _say(story.report())
    if served is not None:
        _say(f"real servers: {'ok' if served.is_sound else 'FAILED'}")
        if not served.is_sound:
            _say(served.report())
    figures = _figures(outcomes, time.monotonic() - begin)
    figures["full_disk"] = [story.figures() for story in told]
    if served is not None:
        figures["real_servers"] = served.figures()
    _REPORT.parent.mkdir(exist_ok=True)
    _REPORT.write_text(json.dumps(figures, indent=2) + "\n")
    _say(json.dumps(figures, indent=2))
    return int(
        any(not outcome.verdict.is_sound for outcome in outcomes)
        or any(story.problems for story in told)
        or (served is not None and not served.is_sound)
    )


@contextlib.contextmanager
def _one_by_one() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(1, thread_name_prefix="faults-full-disk")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _line(number: int, runs: int, outcome: Outcome) -> str:
    verdict = outcome.verdict
    return (
        f"{number}/{runs} seed {outcome.seed}: {'ok' if verdict.is_sound else 'FAILED'}, "
        f"{verdict.acknowledged} acknowledged, {verdict.lost} lost, {verdict.duplicated} "
        f"duplicated, {outcome.kills} kills, {outcome.wall_s:.1f} s"
    )


def _figures(outcomes: list[Outcome], wall_s: float) -> dict[str, object]:
    faults = sum((outcome.faults for outcome in outcomes), Counter[str]())
    skipped = sum((outcome.skipped for outcome in outcomes), Counter[str]())
    return {
        "runs": len(outcomes),
        "acknowledged": sum(outcome.verdict.acknowledged for outcome in outcomes),
        "lost": sum(outcome.verdict.lost for outcome in outcomes),
        "duplicated": sum(outcome.verdict.duplicated for outcome in outcomes),
        "kills": sum(outcome.kills for outcome in outcomes),
        "failed_seeds": sorted(o.seed for o in outcomes if not o.verdict.is_sound),
        "rows": sum(outcome.rows for outcome in outcomes),
        "faults": dict(sorted(faults.items())),
        "skipped": dict(sorted(skipped.items())),
        "peak_rss_mib": max((o.peak_rss_bytes >> 20 for o in outcomes), default=0),
        "wall_s": round(wall_s, 1),
    }


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
