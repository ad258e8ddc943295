"""What a request is charged for its memory is at least what it takes. In processes of their own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


# Sends one request and prints what it was charged, and what its peak was beyond the start.
SEND = """
import sys, time
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.validation.validate import memory_of, validate
from otel_rl.signals import Signal
from tests.otlp_requests import delimited
signal, n, resource = Signal(sys.argv[1]), int(sys.argv[2]), {!r}
payload = bytes.fromhex(sys.argv[3]) * n
for tag in bytes.fromhex(sys.argv[4]):
    payload = delimited(tag, payload)
payload = delimited(0x0A, delimited(0x0A, bytes.fromhex(resource)) + payload)
limits = ReceiveLimits()
validate(signal, b"", limits, time.time_ns())

def of_process(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))

before = of_process("VmRSS")
charged = memory_of(signal, payload, limits)
validate(signal, payload, limits, time.time_ns(), is_weighed=True)
print(charged, of_process("VmHWM") - before)
"""

NAMED = (b"\x0a\x19\x0a\x12rl.experiment.name\x12\x03\x0a\x01x").hex()

CASES = {
    "attributes": ("metrics", 900_000, "3a00", "0a2a1212"),
    "values": ("metrics", 900_000, "0a00", "2a123a0a2a1212"),
    "points": ("metrics", 190_000, "0a00", "2a1212"),
    "points with attributes": ("metrics", 190_000, "0a023a00", "2a1212"),
    "metrics": ("metrics", 190_000, "1200", "12"),
    "scopes": ("metrics", 190_000, "1200", ""),
    "spans": ("traces", 190_000, "1200", "12"),
    "links": ("traces", 900_000, "6a00", "1212"),
    "records": ("logs", 190_000, "1200", "12"),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("case", CASES)
def test_a_request_takes_no_more_memory_than_it_is_charged(case: str) -> None:
    signal, n, content, tags = CASES[case]
    done = subprocess.run(
        [sys.executable, "-c", SEND.format(NAMED), signal, str(n), content, tags],
        capture_output=True,
        text=True,
        check=True,
    )
    charged, taken = map(int, done.stdout.split())
    assert taken <= charged + (4 << 20)
    assert charged <= 384 << 20  # what large requests may take together, by default
