"""Two processes that take turns on one (scripted) device: who held it, and for which work."""

import sys
from collections.abc import Mapping, Sequence

import pytest

from tests.gpu.machine import Machine, compiler, gpu, library
from tests.process.commands import Row, clean_environment, jsonl_rows, otel_rl

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        compiler() is None, reason="the stand-in for the NVIDIA driver needs a C compiler"
    ),
]

STEPS = 6
UTILIZATION = 0.8
DEVICE = "gpu/node1/gpu0/owner"

OF_EACH = {
    "generator": {"weight_pull", "generate", "offload"},
    "trainer": {"h2d_copy", "reference", "train", "weight_push"},
}

# The trainer works on what the generator has made, and the other way round.
PROGRAM = f"""
import multiprocessing, time
import otel_rl

def take_turns(role, key, phases, mine, others):
    otel_rl.init(role=role, index=0, count=1)
    for step in range(1, {STEPS} + 1):
        mine.acquire()
        with otel_rl.step(step):
            for phase in phases:
                with otel_rl.phase(phase, gpu=True):
                    time.sleep(0.02)  # the work
            otel_rl.log({{key: float(step)}})
        others.release()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    first, second = context.Semaphore(1), context.Semaphore(0)
    generator = "generator", "reward/mean", {sorted(OF_EACH["generator"])}, first, second
    trainer = "trainer", "rl.train.loss", {sorted(OF_EACH["trainer"])}, second, first
    processes = [context.Process(target=take_turns, args=of) for of in (generator, trainer)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Row]:
    directory = tmp_path_factory.mktemp("turns")
    program = directory / "turns.py"
    program.write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as monkeypatch:
        machine = Machine(directory, monkeypatch.setenv, load=False)
        machine.set(gpu(0, utilization=UTILIZATION * 100))
        environment = clean_environment(
            directory,
            NVML_SCRIPT=str(machine.script),
            LD_LIBRARY_PATH=str(library()),
            OTEL_RL_GPU="1",
            OTEL_RESOURCE_ATTRIBUTES="host.name=node1",
        )
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        done = otel_rl(
            *("run", "--experiment", "turns", "--trial", "t", "--tracker", "jsonl", "--"),
            *(sys.executable, program),
            cwd=directory,
            env=environment,
            timeout_s=540,
        )
    assert done.status == 0, done.out + done.err
    return jsonl_rows(directory, "turns", "t")


def last(rows: Sequence[Row]) -> Mapping[str, float]:
    """The last value of each key."""
    return {key: value for row in rows for key, value in row.values.items()}


def test_every_turn_is_told_once(rows: Sequence[Row]) -> None:
    for key in ("trainer/loss", "generator/reward/mean"):
        assert [row.step for row in rows if key in row.values] == list(range(1, STEPS + 1)), key


def test_each_role_has_held_the_device_for_its_own_phases(rows: Sequence[Row]) -> None:
    found = last(rows)
    for role, phases in OF_EACH.items():
        prefix = f"gpu/{role}/owner/time/"
        held = {
            key.removeprefix(prefix)
            for key in found
            if key.startswith(prefix) and not key.endswith("/rate")
        }
        assert held == phases


def test_what_the_phases_had_adds_up_to_the_device(rows: Sequence[Row]) -> None:
    found = last(rows)
    phases = OF_EACH["generator"] | OF_EACH["trainer"]
    held_s = {phase: found[f"{DEVICE}/time/{phase}"] for phase in phases}
    busy_s = {phase: found[f"{DEVICE}/busy_time/{phase}"] for phase in phases}
    # The device says the same whenever it is asked, so there is no error of sampling.
    assert busy_s == pytest.approx({phase: UTILIZATION * s for phase, s in held_s.items()})
    assert sum(busy_s.values()) == pytest.approx(found["gpu/utilization"] * sum(held_s.values()))
    assert min(held_s.values()) > 0
