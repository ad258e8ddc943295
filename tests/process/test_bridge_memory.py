"""The memory of a bridge's process while requests come that would like to have more of it."""

import gzip
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.process.commands import OTEL_RL, clean_environment, http_address
from tests.support import plain_http

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

MIB = 1 << 20
MAX_BODY = 2 * MIB  # so 32 MiB may be in flight
SENDERS = 512

# All bodies together are 1 GiB. One is there in pieces and joined, a thread has a heap of its own,
# and the allocator keeps some of what it had: 150 to 190 MiB were seen, and 840 without the bound.
MAX_GROWTH = 320 * MIB


class Bridge:
    """A bridge of its own process, and how much memory it has had."""

    def __init__(self, process: "subprocess.Popen[str]", address: str) -> None:
        self.url = f"http://{address}"
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        self._proc = Path(f"/proc/{process.pid}")
        self._begun = 0

    def begin(self) -> None:
        """Look at the memory from now on."""
        (self._proc / "clear_refs").write_text("5")  # the peak begins anew
        self._begun = self._peak()

    @property
    def growth(self) -> int:
        """Bytes of its peak since ``begin``."""
        return self._peak() - self._begun

    def _peak(self) -> int:
        (found,) = re.findall(r"VmHWM:\s+(\d+) kB", (self._proc / "status").read_text())
        return int(found) << 10


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[Bridge]:
    process = subprocess.Popen(
        [*OTEL_RL, "bridge", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"],
        cwd=tmp_path,
        env=clean_environment(
            tmp_path,
            OTEL_RL_BRIDGE__TRACKER__NAME="jsonl",
            OTEL_RL_BRIDGE__RECEIVE__MAX_BODY_BYTES=str(MAX_BODY),
        ),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr:
        made = Bridge(process, http_address(process))
        assert plain_http.get(f"{made.url}/healthz", timeout=90).status_code == 200
        made.begin()
        yield made
        process.terminate()
        process.stderr.read()
    assert process.wait(120) == 0


@pytest.mark.slow
def test_bodies_that_do_not_end_take_no_more_than_what_may_be_in_flight(bridge: Bridge) -> None:
    head = (
        b"POST /v1/metrics HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n"
        b"content-length: %d\r\n\r\n" % MAX_BODY
    )
    almost = bytes(MAX_BODY - 1)

    def send(connection: socket.socket) -> None:
        connection.sendall(head)
        # What the bridge holds it has read; what it has refused it reads and forgets.
        connection.sendall(almost)

    with ExitStack() as stack, ThreadPoolExecutor(SENDERS // 2) as senders:
        connections = [
            stack.enter_context(socket.create_connection(bridge.address, timeout=60))
            for _ in range(SENDERS)
        ]
        list(senders.map(send, connections))
        assert bridge.growth < MAX_GROWTH


@pytest.mark.slow
def test_small_bombs_together_take_no_more_than_what_may_be_in_flight(bridge: Bridge) -> None:
    bomb = gzip.compress(bytes(MAX_BODY))
    headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}

    def send(_: int) -> int:
        url = f"{bridge.url}/v1/metrics"
        return plain_http.post(url, content=bomb, headers=headers, timeout=60).status_code

    with ThreadPoolExecutor(SENDERS // 2) as senders:
        # Zeros are no OTLP, so each is refused in the end, or asked to come again.
        assert set(senders.map(send, range(SENDERS))) <= {400, 503}
    assert bridge.growth < MAX_GROWTH
