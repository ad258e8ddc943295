"""``python -m tests.faults``: many scenarios, with figures at the end.

FAULT_RUNS    how many (default 200)
FAULT_FIRST   the first seed (default 1)
FAULT_SEED    this one alone, with its timeline
FAULT_JOBS    how many at a time (default: one more than cores)
FAULT_MUTANT  a safety layer to take out, see ``mutants.py``
"""

import json
import os
import queue
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

from tests.faults.scenario import Outcome, run_scenario
from tests.wandb_server import WandbServer

_REPORT = Path("build/faults.json")


def main() -> int:
    """Run them. Returns 1 if anything was lost, doubled or otherwise wrong."""
    alone = os.environ.get("FAULT_SEED")
    first = int(alone or os.environ.get("FAULT_FIRST") or 1)
    runs = 1 if alone else int(os.environ.get("FAULT_RUNS") or 200)
    jobs = int(os.environ.get("FAULT_JOBS") or (os.cpu_count() or 1) + 1)
    mutant = os.environ.get("FAULT_MUTANT", "")
    begin = time.monotonic()
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        servers: queue.SimpleQueue[WandbServer] = queue.SimpleQueue()
        for _ in range(min(jobs, runs)):
            servers.put(stack.enter_context(WandbServer()))

        def run(seed: int) -> Outcome:
            server = servers.get()
            try:
                directory = scratch / str(seed)
                directory.mkdir()
                return run_scenario(seed, directory, server, mutant=mutant)
            finally:
                servers.put(server)

        threads = stack.enter_context(ThreadPoolExecutor(jobs))
        for future in as_completed([threads.submit(run, first + n) for n in range(runs)]):
            outcome = future.result()
            outcomes.append(outcome)
            _say(_line(len(outcomes), runs, outcome))
            if alone or not outcome.verdict.is_sound:
                _say(outcome.report())
    figures = _figures(outcomes, time.monotonic() - begin)
    _REPORT.parent.mkdir(exist_ok=True)
    _REPORT.write_text(json.dumps(figures, indent=2) + "\n")
    _say(json.dumps(figures, indent=2))
    return int(any(not outcome.verdict.is_sound for outcome in outcomes))


def _line(number: int, runs: int, outcome: Outcome) -> str:
    verdict = outcome.verdict
    return (
        f"{number}/{runs} seed {outcome.seed}: {'ok' if verdict.is_sound else 'FAILED'}, "
        f"{verdict.acknowledged} acknowledged, {verdict.lost} lost, {verdict.duplicated} "
        f"duplicated, {outcome.kills} kills, {outcome.wall_s:.1f} s"
    )


def _figures(outcomes: list[Outcome], wall_s: float) -> dict[str, object]:
    faults = sum((outcome.faults for outcome in outcomes), Counter[str]())
    return {
        "runs": len(outcomes),
        "acknowledged": sum(outcome.verdict.acknowledged for outcome in outcomes),
        "lost": sum(outcome.verdict.lost for outcome in outcomes),
        "duplicated": sum(outcome.verdict.duplicated for outcome in outcomes),
        "kills": sum(outcome.kills for outcome in outcomes),
        "failed_seeds": sorted(o.seed for o in outcomes if not o.verdict.is_sound),
        "rows": sum(outcome.rows for outcome in outcomes),
        "faults": dict(sorted(faults.items())),
        "peak_rss_mib": max((o.peak_rss_bytes >> 20 for o in outcomes), default=0),
        "wall_s": round(wall_s, 1),
    }


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
