"""``make fuzz``: a million fuzzed requests, with their figures in ``build/fuzz.json``.

``FUZZ_REQUESTS`` says how many, ``FUZZ_SEED`` which. Each core sends its share.
"""

import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

from tests.fuzz.fuzzer import T0, Fuzzer, Report, save
from tests.fuzz.stack import Stack

BUILD = Path("build")


def share(task: tuple[int, int]) -> dict[str, object]:
    """One process's share of the requests: (seed, how many)."""
    seed, requests = task
    failed = BUILD / "fuzz" / str(seed)
    shown, parent = 0, os.getppid()

    def progress(report: Report) -> None:
        nonlocal shown
        if os.getppid() != parent:
            raise SystemExit("the command was ended")  # its processes end with it
        for failure in report.failures[shown:]:
            sys.stderr.write(f"seed {seed}, batch {failure.batch}: {failure.what}\n")
        if len(report.failures) > shown:
            shown = len(report.failures)
            save(report.failures, failed)
        if report.requests % 10_000 < report.batch_size:
            per_s = report.requests / max(report.seconds, 1e-9)
            text = f"seed {seed}: {report.requests} of {requests}, {per_s:.0f}/s"
            sys.stderr.write(f"{text}, {len(report.failures)} failures\n")

    with tempfile.TemporaryDirectory() as directory, Stack(Path(directory), T0).running() as stack:
        report = Fuzzer(stack, seed).run(requests, progress)
    return report.as_json()


def main() -> int:
    """Run, write the figures, and return the exit status."""
    requests = int(os.environ.get("FUZZ_REQUESTS", "1000000"))
    seed = int(os.environ.get("FUZZ_SEED", "1"))
    processes = min(os.cpu_count() or 1, 4)
    tasks = [
        (seed + n, requests // processes + (n < requests % processes)) for n in range(processes)
    ]
    BUILD.mkdir(exist_ok=True)
    # Fresh interpreters: gRPC does not survive a fork.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        shares = pool.map(share, tasks)
    totals = {
        name: sum(int(str(one[name])) for one in shares)
        for name in ("requests", "good_requests_served", "failures")
    }
    figures = {**totals, "shares": shares}
    (BUILD / "fuzz.json").write_text(json.dumps(figures, indent=2) + "\n")
    sys.stdout.write(json.dumps(totals) + "\n")
    if totals["failures"]:
        sys.stderr.write(f"See {BUILD / 'fuzz'}/SEED/\n")
    return 1 if totals["failures"] else 0
