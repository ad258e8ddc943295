"""``python -m bench``: costs of otel_rl, side by side with today's alternatives.

    python -m bench [--tiny] [--out FILE] [--publish] [calls] [export] [phases] [loop] [start]
                    [today] [trackers] [bridge] [way] [sparse] [foreign] [sites] [flat] [view]
                    [tracing]

Every part runs in a process of its own. A missed goal is a finding and no failure. With
``--publish`` the figures also go to docs/bench.json, from which ``make generate`` makes the chart
and the list of docs/performance.md.
"""

import argparse
import compileall
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import msgspec

import otel_rl
from bench.capacity import misses
from bench.figures import HEADER, Figure, summary
from bench.record import PUBLISHED, PartRecord, publish, record, write

PARTS = {
    "calls": "What a measurement costs the thread that trains",
    "export": "What a measurement costs the exporter thread",
    "phases": "What a phase costs the thread that trains",
    "loop": "By how much a training loop that is bound by the CPU is slowed, the export included",
    "start": "What a worker costs before its first export is through, and a script from its start",
    "today": "The same work with what users do today: all processes",
    "trackers": "The same values into a tracker's own server: all processes, the server's included",
    "bridge": "What the bridge costs",
    "way": "What collectors in front of the bridge cost",
    "sparse": "What many workers cost the bridge, each with one measurement of a series a second",
    "foreign": "What workers of other SDKs cost the bridge, and how late their rows are",
    "sites": "What whole sites cost the bridge, 8 to 2,000 workers, and how late their rows are",
    "flat": "Costs of long runs, many series and many runs, beside those of small ones",
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
    parser.add_argument(
        "--publish", action="store_true", help=f"also replace these parts of {PUBLISHED}"
    )
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        _measure(options.part, tiny=options.tiny)
        return
    _compile()
    begun_s = time.monotonic()
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    print(f"{cores} cores, load {load:.1f}", end="")
    print(": the machine is busy, so costs are upper bounds" if load > cores / 2 else "")
    print(HEADER)
    records: dict[str, PartRecord] = {}
    failed = []
    for part in options.parts or PARTS:
        print(f"\n{PARTS[part]}", flush=True)
        figures: list[Figure] = []
        before = os.getloadavg()[0]
        try:
            for figure in _figures(part, tiny=options.tiny):
                print(figure.line(), flush=True)
                figures.append(figure)
        except subprocess.CalledProcessError as error:
            print(error, flush=True)
            failed.append(part)
        if figures and part not in failed:
            records[part] = record(PARTS[part], figures, (before, os.getloadavg()[0]))
            write(records, options.out)
            if options.publish:
                publish({part: records[part]})
    every = [figure for one in records.values() for figure in one.figures]
    print(f"\n{summary(every)}; {time.monotonic() - begun_s:.0f} s; {options.out}")
    if not options.tiny:
        print(*(f"beyond the formula of capacity: {line}" for line in misses(records)), sep="\n")
    if failed:
        raise SystemExit(f"Not measured: {', '.join(failed)}.")


def _compile() -> None:
    """Write the bytecode of otel_rl, as an installation has it, else each process compiles it."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for package in (Path(otel_rl.__file__).parent, Path(__file__).parent):
        compileall.compile_dir(package, quiet=1)


def _figures(part: str, *, tiny: bool) -> Iterator[Figure]:
    command = [sys.executable, "-m", "bench", "--part", part, *(["--tiny"] if tiny else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            yield msgspec.json.decode(line, type=Figure)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _measure(part: str, *, tiny: bool) -> None:
    module = importlib.import_module(f"bench.{part}")
    for figure in module.figures(tiny=tiny):
        print(json.dumps(asdict(figure)), flush=True)


if __name__ == "__main__":
    main()
