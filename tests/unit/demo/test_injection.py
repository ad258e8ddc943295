import subprocess
import sys
import time

import pytest

from otel_rl.demo.faults import FaultInjection, Kind


def test_nothing_is_wrong_until_somebody_says_so() -> None:
    troubles = FaultInjection()
    assert [troubles.size(kind) for kind in Kind] == [None] * len(Kind)


def test_slowed_work_takes_so_many_times_as_long() -> None:
    troubles = FaultInjection()
    troubles.begin({Kind.STRAGGLER: 5})
    with troubles.slowed(Kind.SLOW_TRAINING, Kind.STRAGGLER):
        begun_s = time.perf_counter()  # a busy machine may take its time to come here
        while time.perf_counter() - begun_s < 0.02:
            pass
    assert time.perf_counter() - begun_s >= 5 * 0.02


def test_what_happens_once_happens_once() -> None:
    troubles = FaultInjection()
    troubles.begin({Kind.NAN: 1})
    assert troubles.once(Kind.NAN)
    troubles.begin({Kind.NAN: 1})  # who comes up is told twice
    assert not troubles.once(Kind.NAN)


@pytest.mark.process
def test_a_wrong_wall_clock_is_wrong_for_whoever_asks_for_the_time() -> None:
    code = (
        "import time\n"
        "from otel_rl.demo import clock\n"
        "true_s = time.time()\n"
        "clock.install()\n"
        "clock.set_ahead(-7200)\n"
        "from time import time_ns\n"
        "print(true_s - time.time(), true_s - time_ns() / 1e9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert all(6600 < float(behind_s) <= 7200 for behind_s in done.stdout.split())
