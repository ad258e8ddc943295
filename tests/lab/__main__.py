"""``python -m tests.lab``: build what is not there yet, and say where everything is."""

import sys

from tests.lab.frameworks.environment import FRAMEWORKS
from tests.lab.programs import (
    EMITTER_NODE,
    EMITTERS,
    PROGRAMS,
    CannotBuild,
    build,
    node_refusal,
)


def main() -> int:
    """Build. Returns 1 if something cannot be built."""
    try:
        for program in (*PROGRAMS, *EMITTERS):
            if program is EMITTER_NODE and (refusal := node_refusal()):
                _say(f"{program.name}: left out, {refusal}")
                continue
            _say(f"{program.name} {program.version}: {program.path}")
            build(program)
        if refusal := FRAMEWORKS.refusal():
            _say(f"frameworks: left out, {refusal}")
        else:
            _say(f"frameworks: {FRAMEWORKS.path}")
            FRAMEWORKS.build()
    except CannotBuild as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # what is compiled is kept
