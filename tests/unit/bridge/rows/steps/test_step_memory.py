"""Memory of open steps: a job whose slowest worker is late has many of them."""

import gc
import tracemalloc
from collections.abc import Sequence

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Decoded, Export, Measurements, Series
from tests.unit.bridge.rows.steps.jobs import T0, S, ranks

SERIES, STEPS = 20, 500


def exported(first: int, *, is_shared: bool) -> Decoded:
    """An export of steps that measure every series at one time: equal ones, or the same objects."""
    worker, _ = ranks(2)  # of the other one nothing comes
    steps = tuple(range(first, first + STEPS))

    def times() -> Sequence[int]:
        return tuple(T0 + step * S // 1000 for step in steps)

    shared = times()
    points = [
        Measurements(
            Series(worker, f"metric_{n}"),
            shared if is_shared else times(),
            tuple(step + n / 7 for step in steps),
            steps,
        )
        for n in range(SERIES)
    ]
    return Decoded(points, [Export(worker, shared[-1], sends_exit_report=True)])


def kept_bytes(*, is_shared: bool) -> int:
    aligner = Run(AlignSettings(per_worker=True))
    aligner.add(exported(0, is_shared=is_shared), received_ns=T0)
    gc.collect()
    tracemalloc.start()
    try:
        aligner.add(exported(STEPS, is_shared=is_shared), received_ns=T0)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_series_of_equal_times_keep_these_once() -> None:
    assert kept_bytes(is_shared=False) < 1.03 * kept_bytes(is_shared=True)
