"""``python -m tests.faults.launch bridge ...``: the real command, with short waits.

The intervals of the delivery are made for servers far away; here the server is on loopback, and a
run takes seconds. ``FAULTS_MUTANT`` names a safety layer to take out first, see ``mutants.py``.
"""

import functools
import os
import sys

from otel_rl.bridge import pipeline
from otel_rl.bridge.track.delivery import DeliverySettings
from otel_rl.cli import main
from tests.faults.mutants import MUTANTS

__all__ = ["VARIABLE"]

VARIABLE = "FAULTS_MUTANT"


def _shorten_waits() -> None:
    short = functools.partial(
        DeliverySettings,
        confirm_interval_s=0.5,
        first_retry_s=0.1,
        max_retry_s=1.0,
        rejected_retry_s=0.5,
    )
    vars(pipeline)["DeliverySettings"] = short


if __name__ == "__main__":
    _shorten_waits()
    if mutant := os.environ.get(VARIABLE):
        MUTANTS[mutant]()
    sys.exit(main(sys.argv[1:]))
