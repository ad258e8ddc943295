"""``python -m tests.faults.launch bridge ...``: the real command, with a safety layer taken out.

``FAULTS_MUTANT`` names it, see ``mutants.py``.
"""

import os
import sys

from otel_rl.cli import main
from tests.faults.mutants import MUTANTS

__all__ = ["VARIABLE"]

VARIABLE = "FAULTS_MUTANT"

if __name__ == "__main__":
    MUTANTS[os.environ[VARIABLE]]()
    sys.exit(main(sys.argv[1:]))
