"""The same sampler on a GPU that is there. Skipped with its reason where none is."""

import json
import subprocess
import sys
from collections.abc import Mapping

import pytest

from otel_rl.semconv.names import METRICS

# In a process of its own, which has not loaded the stand-in of other tests.
_READ = """
import json
from otel_rl.worker.system.nvml import Driver, NoDriver

try:
    driver = Driver(set())
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
