"""``make tenants``: each attack beside a victim that sends once a second.

    python -m tests.tenants [ATTACK...]

Figures go to ``build/tenants.json``: for each attack, how many requests of the victim were not
taken at once, how late its rows were at most, the most memory the bridge had, and how long it took
to end when told to in the middle of the attack. The exit status is 1 if one of them is over its
bound.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.tenants.attacks import ATTACKS
from tests.tenants.stage import STOP_TIMEOUT_S, Figures, play

SECONDS = 30.0
SHOWN = 3

BOUNDS = {
    "victim_failed": 0,
    "victim_late_s": 2.0,
    "memory_mib": 1024.0,
    "stop_s": STOP_TIMEOUT_S + 10.0,
}
"""What docs/reliability.md promises, for each of the figures."""


def over_bounds(figures: Figures) -> Sequence[str]:
    """What is not as promised, in words."""
    found = asdict(figures)
    wrong = [
        f"{name} is {found[name]}, not at most {most}"
        for name, most in BOUNDS.items()
        if found[name] > most
    ]
    if figures.exit_status != 0 and not (figures.exit_status == 1 and figures.says_what_waits):
        wrong.append(f"the bridge ended with {figures.exit_status}")
    return wrong


def main() -> int:
    """Run, write the figures, and return the exit status."""
    names = sys.argv[1:] or [attack.name for attack in ATTACKS]
    unknown = set(names) - {attack.name for attack in ATTACKS}
    if unknown:
        known = ", ".join(attack.name for attack in ATTACKS)
        sys.stderr.write(f"No such attack: {', '.join(sorted(unknown))}. Known: {known}.\n")
        return 2
    chosen = [attack for attack in ATTACKS if attack.name in names]
    figures, failed = [], 0
    for number, attack in enumerate(chosen, 1):
        sys.stderr.write(f"{number}/{len(chosen)} {attack.name}\n")
        with tempfile.TemporaryDirectory() as directory:
            one = play(attack, Path(directory), SECONDS)
        wrong = over_bounds(one)
        failed += bool(wrong)
        sys.stderr.write("".join(f"  {what}\n" for what in (*wrong, *one.troubles[:SHOWN])))
        figures.append({**asdict(one), "troubles": one.troubles[:SHOWN]})
        sys.stdout.write(f"{json.dumps(figures[-1])}\n")
    Path("build").mkdir(exist_ok=True)
    Path("build/tenants.json").write_text(f"{json.dumps(figures, indent=1)}\n")
    sys.stderr.write(f"{failed} of {len(chosen)} attacks broke a bound\n")
    return 1 if failed else 0
