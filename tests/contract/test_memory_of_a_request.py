"""What a request may take of a bridge's memory, however it is made. In processes of their own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

MOST_MIB = 200
"""A million messages of up to 200 bytes each."""

# Sends a request over HTTP, and prints the answer and the peak beyond what was there before.
SEND = """
import sys
import httpx
from tests.support.otlp_requests import delimited, http_receiver, metrics_request
path, n, resource = sys.argv[1], int(sys.argv[2]), {!r}
payload = bytes.fromhex(sys.argv[3]) * n
for tag in bytes.fromhex(sys.argv[4]):
    payload = delimited(tag, payload)
payload = delimited(0x0A, delimited(0x0A, bytes.fromhex(resource)) + payload)

def of_process(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith(name))

with http_receiver() as receiver:
    send = lambda body: httpx.post(receiver.url + path, content=body, timeout=120,
        headers={{"content-type": "application/x-protobuf"}}).status_code
    assert send(metrics_request().SerializeToString() if "metrics" in path else b"") == 200
    before = of_process("VmRSS")
    print(send(payload), of_process("VmHWM") - before)
"""

NAMED = (b"\x0a\x19\x0a\x12rl.experiment.name\x12\x03\x0a\x01x").hex()

CASES = {
    "16 MiB of empty points": (413, "metrics", 8_380_000, "0a00", "2a1212"),
    "16 MiB of empty spans": (413, "traces", 8_380_000, "1200", "12"),
    "16 MiB of empty records": (413, "logs", 8_380_000, "1200", "12"),
    "attributes": (200, "metrics", 900_000, "3a00", "0a2a1212"),
    "values": (200, "metrics", 900_000, "0a00", "2a123a0a2a1212"),
    "points": (200, "metrics", 190_000, "0a00", "2a1212"),
    "points of histograms": (200, "metrics", 190_000, "0a00", "4a1212"),
    "points with attributes": (200, "metrics", 190_000, "0a023a00", "2a1212"),
    "metrics": (200, "metrics", 190_000, "1200", "12"),
    "scopes": (200, "metrics", 190_000, "1200", ""),
    "spans": (200, "traces", 190_000, "1200", "12"),
    "links": (200, "traces", 900_000, "6a00", "1212"),
    "records": (200, "logs", 190_000, "1200", "12"),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("case", CASES)
def test_no_request_takes_more_memory_than_messages_may(case: str) -> None:
    status, signal, n, content, tags = CASES[case]
    done = subprocess.run(
        [sys.executable, "-c", SEND.format(NAMED), f"/v1/{signal}", str(n), content, tags],
        capture_output=True,
        text=True,
        check=True,
    )
    answered, taken_mib = map(int, done.stdout.split())
    assert answered == status
    assert taken_mib < MOST_MIB
