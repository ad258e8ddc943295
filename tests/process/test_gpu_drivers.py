"""Workers whose NVIDIA driver hangs, or is older than ``nvidia-ml-py``."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.machine import Machine, compiler, gpu, library
from tests.process.commands import clean_environment
from tests.support.otlp_sink import Sink, serve, sums
from tests.support.slow import slow_after

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        compiler() is None, reason="the stand-in for the NVIDIA driver needs a C compiler"
    ),
]

TIMEOUT_S = 60.0
GIB = 1 << 30


@pytest.fixture
def sink() -> Iterator[Sink]:
    with serve(Sink()) as serving:
        yield serving


HANGING = """
import os, pathlib, sys, time

import otel_rl

otel_rl.init(experiment="e", role="trainer", gpu={"interval_s": 0.02})
hangs = pathlib.Path(sys.argv[1])

def wait_for_the_query():
    while not hangs.exists():
        time.sleep(0.01)

wait_for_the_query()
for step in (1, 2):
    with otel_rl.step(step), otel_rl.phase("train", gpu=True):
        otel_rl.log({"seen": step})
assert otel_rl.flush(timeout_s=60)
hangs.unlink()
child = os.fork()
if not child:
    otel_rl.init(role="generator", gpu={"interval_s": 0.02})
    wait_for_the_query()
    otel_rl.log({"seen_by_child": 1})
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
with otel_rl.step(3), otel_rl.phase("train", gpu=True):
    otel_rl.log({"seen": 3})
"""


@pytest.mark.parametrize(
    "answers", slow_after(1, [{"init": "?"}, {"count": "?"}, gpu(0, power="?")])
)
def test_a_driver_that_hangs_for_ever_holds_up_neither_init_nor_steps_nor_flush_nor_forks_nor_exit(
    answers: dict[str, object], sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch.setenv, load=False)
    machine.set(answers)
    # The driver never answers: whatever waited for it would run into the timeout.
    done = run(HANGING, machine, sink, tmp_path, library())
    assert (done.returncode, machine.hangs.exists()) == (0, True)
    assert {m.step: m.value for m in sink.measurements("seen")} == {1: 1.0, 2: 2.0, 3: 3.0}
    assert len(sink.measurements("rl.iteration.duration")) == 3
    assert [m.value for m in sink.measurements("seen_by_child")] == [1.0]
    # Once by each process.
    assert done.stderr.count("The NVIDIA driver does not answer a query") == 2


OLD = """
import logging

import otel_rl
from otel_rl.worker.guard import GUARD

logging.basicConfig(level=logging.INFO)
otel_rl.init(experiment="e", role="trainer", gpu={"interval_s": 0.02})
input()  # until the test has seen two samples
otel_rl.finish()
assert not GUARD.drops.counts(), GUARD.drops.counts()
"""


def test_a_driver_older_than_the_library_reports_what_it_knows_and_the_rest_is_told_once(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch.setenv, load=False)
    machine.set(gpu(0))
    driver = library("-DOLD_DRIVER")
    process = subprocess.Popen(
        [sys.executable, "-c", OLD],
        env=environment(machine, sink, tmp_path, driver),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        sink.wait(lambda s: len(s.measurements("hw.power")) > 1, TIMEOUT_S)
        _, told = process.communicate("\n", timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
    assert process.returncode == 0, told
    # This version of the answer counts what the driver reserves as used.
    used = sums(sink.metrics, "hw.gpu.memory.usage")
    assert set(used.values()) == {20 * GIB + GIB // 2}
    assert sums(sink.metrics, "hw.gpu.io") == {}
    assert sums(sink.metrics, "rl.gpu.process.memory.usage") == {}
    for lacking in ("nvlink bytes", "memory of the process"):
        assert told.count(f"does not report its {lacking}") == 1


def environment(machine: Machine, sink: Sink, home: Path, driver: Path) -> dict[str, str]:
    environ = clean_environment(
        home,
        NVML_SCRIPT=str(machine.script),
        LD_LIBRARY_PATH=str(driver),
        OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
        OTEL_METRIC_EXPORT_INTERVAL="50",
        PYTHONPATH=str(Path(__file__).parents[2]),
    )
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    return environ


def run(
    program: str, machine: Machine, sink: Sink, home: Path, driver: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, str(machine.hangs)],
        env=environment(machine, sink, home, driver),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
