"""Devices: those that CUDA shows, and one that is there. The latter is skipped where none is."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from otel_rl.semconv.names import METRICS
from otel_rl.worker.system.nvml import Device, visible

A, B, C = "GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"
PART, OTHER_PART = "MIG-1111", "MIG-2222"
WHOLE = [Device(uuid, f"gpu{number}") for number, uuid in enumerate((A, B, C))]
PARTS = tuple(Device(uuid, "gpu1.mig", parent=B) for uuid in (PART, OTHER_PART))
DIVIDED = [Device(A, "gpu0"), Device(B, "gpu1", instances=PARTS)]


def shown_by(gpus: Sequence[Device | None], value: str | None) -> list[str]:
    return [device.uuid for device in visible(gpus, value)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, [A, B, C]),
        ("", []),
        ("NoDevFiles", []),
        ("-1", []),
        ("0", [A]),
        ("2,0", [C, A]),
        (" 1 , 2 ", [B, C]),
        ("1,1", [B]),
        ("0,-1,2", [A]),
        ("0,7,2", [A]),
        ("0,x,2", [A]),
        ("0,,2", [A]),
        (C, [C]),
        (f"{C},{A}", [C, A]),
        ("GPU-cc,GPU-aaaa", [C, A]),
        ("GPU-aa", []),
        ("GPU-unknown,0", []),
        (f"0,{C}", [A, C]),
        ("MIG-1111", []),
    ],
)
def test_whole_gpus_are_shown_as_cuda_shows_them(value: str | None, shown: list[str]) -> None:
    assert shown_by(WHOLE, value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, [A, PART, OTHER_PART]),
        (PART, [PART]),
        (f"{OTHER_PART},{PART}", [OTHER_PART, PART]),
        ("MIG-2", [OTHER_PART]),
        ("1", [PART]),
        ("0,1", [A, PART]),
        (B, [B]),
    ],
)
def test_instances_of_a_divided_gpu_are_devices_of_their_own(
    value: str | None, shown: list[str]
) -> None:
    assert shown_by(DIVIDED, value) == shown


def test_a_divided_gpu_without_instances_shows_nothing() -> None:
    assert shown_by([Device(A, "gpu0", instances=())], None) == []
    assert shown_by([Device(A, "gpu0", instances=())], "0") == []


def test_a_gpu_that_does_not_answer_keeps_its_number() -> None:
    assert shown_by([None, WHOLE[1]], "1") == [B]
    assert shown_by([None, WHOLE[1]], "0,1") == [B]
    assert shown_by([None, WHOLE[1]], None) == [B]


# In a process of its own, which has not loaded the stand-in of other tests.
_READ = """
import json
from otel_rl.worker.guard import GUARD
from otel_rl.worker.system.nvml import Driver, NoDriver

try:
    driver = Driver(GUARD)
    devices, _ = driver.devices(None)
except NoDriver as reason:
    print(json.dumps(str(reason)))
else:
    print(json.dumps({d.uuid: [[r.metric, r.value] for r in driver.read(d)] for d in devices}))
    driver.close()
"""


@pytest.fixture(scope="module")
def read() -> Mapping[str, list[tuple[str, float]]]:
    """What each device of this machine says."""
    done = subprocess.run(
        [sys.executable, "-c", _READ], capture_output=True, text=True, check=True, timeout=100
    )
    found = json.loads(done.stdout)
    if isinstance(found, str) or not found:
        pytest.skip(f"needs an NVIDIA GPU: {found or 'the driver shows none'}")
    devices: Mapping[str, list[tuple[str, float]]] = found
    return devices


@pytest.mark.process
@pytest.mark.gpu
def test_a_real_device_says_what_it_does_in_units_that_make_sense(
    read: Mapping[str, list[tuple[str, float]]],
) -> None:
    for uuid, readings in read.items():
        found = dict(readings)
        assert uuid.startswith(("GPU-", "MIG-"))
        assert set(found) <= set(METRICS)
        assert 0 <= found["hw.gpu.memory.usage"] <= found["hw.gpu.memory.limit"]
        assert found["hw.gpu.memory.limit"] > 1 << 28
        assert 0 <= found.get("hw.gpu.utilization", 0) <= 1
        assert 0 < found.get("hw.temperature", 40) < 120
        assert 0 <= found.get("hw.power", 100) < 3000
