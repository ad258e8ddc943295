"""``python -m tests.mutants``: every mutant of the table, with figures in ``build/mutants.json``.

Ctrl-C keeps what is known by then; ``--resume`` goes on from there.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from tests.mutants.run import BaselineFailed, Judged, run
from tests.mutants.table import Mutant, load

_REPORT = Path("build/mutants.json")

_LEAST_KILLED = 0.95


def main(arguments: Sequence[str]) -> int:
    """Run them. Returns 1 if too few are killed, 2 if that cannot be told."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("-k", metavar="WORD", default="", help="only those with it in their name")
    parser.add_argument("-j", metavar="N", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument("--resume", action="store_true", help="leave out what was killed before")
    parser.add_argument("--survivors", action="store_true", help="only those that survived before")
    parser.add_argument("--list", action="store_true", help="only say their names")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    mutants = {name: mutant for name, mutant in load().items() if options.k in name}
    if options.list:
        _say("\n".join(mutants))
        return 0
    known = _known() if options.resume or options.survivors or options.k else {}
    if options.survivors:
        mutants = {n: one for n, one in mutants.items() if n in known and not known[n]["killed"]}
    todo = [
        mutant
        for name, mutant in mutants.items()
        if not (options.resume and known.get(name, {}).get("killed"))
    ]
    begin, done = time.monotonic(), 0

    def told(judged: Judged) -> None:
        nonlocal done
        done += 1
        known[judged.mutant.name] = _entry(judged)
        _write(known)
        _say(f"{done}/{len(todo)} {_line(judged)}")

    try:
        run(todo, jobs=options.j, told=told)
    except BaselineFailed as exc:
        _say(str(exc))
        return 2
    figures = _write(known)
    _say(
        f"{figures['killed']} of {figures['mutants']} killed, {time.monotonic() - begin:.0f} s for "
        f"these {len(todo)}"
    )
    for name in mutants:
        entry = known.get(name, {})
        if entry and not entry["killed"]:
            argument = mutants[name].survives or "no argument"
            _say(f"survived: {name}: {mutants[name].breaks} ({argument})")
    killed = sum(bool(known[name]["killed"]) for name in mutants if name in known)
    return int(killed < _LEAST_KILLED * len(mutants))


def _known() -> dict[str, dict[str, object]]:
    """Results of earlier runs, of mutants that are still the same."""
    if not _REPORT.exists():
        return {}
    mutants = load()
    return {
        name: entry
        for name, entry in json.loads(_REPORT.read_text()).get("results", {}).items()
        if name in mutants and entry["digest"] == mutants[name].digest
    }


def _entry(judged: Judged) -> dict[str, object]:
    return {
        "killed": judged.is_killed,
        "by": judged.result.failed or judged.result.outcome.value,
        "seconds": round(judged.result.seconds, 1),
        "digest": judged.mutant.digest,
    }


def _write(known: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    mutants = load()
    figures: dict[str, object] = {
        "mutants": len(known),
        "killed": sum(bool(entry["killed"]) for entry in known.values()),
        "timeouts": sorted(name for name, entry in known.items() if entry["by"] == "timeout"),
        "survivors": [
            _survivor(mutants[name]) for name, entry in known.items() if not entry["killed"]
        ],
        "results": known,
    }
    _REPORT.parent.mkdir(exist_ok=True)
    _REPORT.write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def _survivor(mutant: Mutant) -> dict[str, str]:
    return {"name": mutant.name, "breaks": mutant.breaks, "argument": mutant.survives}


def _line(judged: Judged) -> str:
    result = judged.result
    word = "killed" if judged.is_killed else "SURVIVED"
    by = f" by {result.failed or result.outcome.value}" if judged.is_killed else ""
    return f"{word} {judged.mutant.name} in {result.seconds:.0f} s{by}"


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
