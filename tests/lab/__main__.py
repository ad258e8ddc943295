"""``python -m tests.lab``: build what is not there yet, and say where everything is."""

import sys

from tests.lab.programs import PROGRAMS, CannotBuild, build


def main() -> int:
    """Build. Returns 1 if a program cannot be built."""
    for program in PROGRAMS:
        sys.stdout.write(f"{program.name} {program.version}: {program.path}\n")
        sys.stdout.flush()
        try:
            build(program)
        except CannotBuild as exc:
            sys.stderr.write(f"{exc}\n")
            return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # what is compiled is kept
