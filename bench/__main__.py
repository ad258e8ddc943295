"""``python -m bench``: costs of otel_rl, side by side with today's alternatives.

    python -m bench [--tiny] [--out FILE] [calls] [export] [phases] [loop] [start] [today] [bridge]
                    [way] [sparse] [view] [tracing]

Every part runs in a process of its own. A missed goal is a finding and no failure.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from bench.figures import HEADER, Figure, Limits, summary, write

PARTS = {
    "calls": "What a measurement costs the thread that trains",
    "export": "What a measurement costs the exporter thread",
    "phases": "What a phase costs the thread that trains",
    "loop": "By how much a training loop that is bound by the CPU is slowed, the export included",
    "start": "What a worker costs before its first export is through",
    "today": "The same work with what users do today: all processes",
    "bridge": "What the bridge costs",
    "way": "What collectors in front of the bridge cost",
    "sparse": "What many workers cost the bridge, each with one measurement of a series a second",
    "view": "What a reader of the page costs those who send",
    "tracing": "What spans cost the demo",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART")
    parser.add_argument(
        "--tiny", action="store_true", help="seconds, and figures that mean nothing"
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        _measure(options.part, tiny=options.tiny)
        return
    begun_s = time.monotonic()
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    print(f"{cores} cores, load {load:.1f}", end="")
    print(": the machine is busy, so costs are upper bounds" if load > cores / 2 else "")
    print(HEADER)
    figures: list[Figure] = []
    failed = []
    for part in options.parts or PARTS:
        print(f"\n{PARTS[part]}", flush=True)
        try:
            for figure in _figures(part, tiny=options.tiny):
                print(figure.line(), flush=True)
                figures.append(figure)
        except subprocess.CalledProcessError as error:
            print(error, flush=True)
            failed.append(part)
    write(figures, options.out)
    print(f"\n{summary(figures)}; {time.monotonic() - begun_s:.0f} s; {options.out}")
    if failed:
        raise SystemExit(f"Not measured: {', '.join(failed)}.")


def _figures(part: str, *, tiny: bool) -> Iterator[Figure]:
    command = [sys.executable, "-m", "bench", "--part", part, *(["--tiny"] if tiny else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            found = json.loads(line)
            yield Figure(**found | {"limits": Limits(found["limits"])})
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _measure(part: str, *, tiny: bool) -> None:
    module = importlib.import_module(f"bench.{part}")
    for figure in module.figures(tiny=tiny):
        print(json.dumps(asdict(figure)), flush=True)


if __name__ == "__main__":
    main()
