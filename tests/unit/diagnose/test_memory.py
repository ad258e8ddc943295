"""A history in memory: small columns, and a measure of them that is that of the interpreter."""

import gc
import tracemalloc

from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import GrowingHistory
from tests.support.slow import examples
from tests.unit.diagnose.worlds import World

STEPS = examples(3_000)
SIZES = {"actor": 8, "judge": 2, "learner": 4}


def test_the_memory_of_a_history_is_what_the_interpreter_has_given() -> None:
    bodies = [facts.encode() for facts in World(steps=STEPS, sizes=SIZES).facts()]
    gc.collect()
    tracemalloc.start()
    try:
        growing = GrowingHistory()
        for body in bodies:
            growing.add(Facts.decode(body))
        gc.collect()
        given, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 * given < growing.memory_bytes() < 1.2 * given
