"""``python -m tests.lab``: build what is not there yet, and say where everything is."""

import sys

from tests.lab.frameworks.environment import ENVIRONMENTS
from tests.lab.frameworks.sources import SOURCES, Source
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
        for environment in ENVIRONMENTS:
            if refusal := environment.refusal():
                _say(f"{environment.name}: left out, {refusal}")
                continue
            _say(f"{environment.name}: {environment.path}")
            environment.build()
        for source in SOURCES.values():
            _say(f"source of {source.name} {source.version}: {source.path}")
            _fetch(source)
    except CannotBuild as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


def _fetch(source: Source) -> None:
    """Fetch what a registry may not have; its tests are skipped where it is not, and say so."""
    try:
        if not source.is_built():
            source.build()
    except CannotBuild as exc:
        _say(f"  left out, {exc}\n  {source.not_verified()}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # what is compiled is kept
