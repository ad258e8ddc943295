"""An endpoint that is away, silent or broken costs a training loop nothing that it can feel."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import pytest

from tests.otlp_sink import OK, Answer, Sink, serve

pytestmark = pytest.mark.process

LOOP = """
import otel_rl
otel_rl.init(experiment="e", role="r", export_interval_s=0.01)
for step in range(20_000):
    otel_rl.mlogger.log({"loss": 1.0}, step=step)
print("trained", flush=True)
delivered = otel_rl.shutdown(timeout_s=0.5)
print("delivered" if delivered else "gave up", flush=True)
"""


def train(url: str, code: str = LOOP) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@contextmanager
def black_hole() -> Iterator[str]:
    """Accepts connections into its backlog and never reads a byte."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_with_nobody_listening_the_loop_ends_and_says_what_was_lost() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        finished = train(f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert finished.returncode == 0
    assert finished.stdout.split("\n")[:2] == ["trained", "gave up"]
    assert "they are lost" in finished.stderr


def test_in_a_black_hole_the_loop_ends_and_the_exit_is_bounded() -> None:
    with black_hole() as url:
        finished = train(url)
    assert finished.returncode == 0
    assert finished.stdout.split("\n")[:2] == ["trained", "gave up"]


def test_an_endpoint_that_comes_back_gets_everything_in_order() -> None:
    back = Event()

    def answer(number: int) -> Answer:
        if number >= 3:
            back.set()
        return OK if back.is_set() else (503, {"Retry-After": "0"}, b"")

    with serve(Sink(answer=answer)) as sink:
        finished = train(sink.url, LOOP.replace("timeout_s=0.5", "timeout_s=30"))
        assert finished.stdout.split("\n")[:2] == ["trained", "delivered"]
        assert [m.step for m in sink.measurements("loss")] == list(range(20_000))


def test_requests_stay_below_what_a_server_takes() -> None:
    code = LOOP.replace("0.01", "60").replace("20_000", "100_000").replace("=0.5", "=30")
    with serve(Sink()) as sink:
        finished = train(sink.url, code)
        assert finished.stdout.split("\n")[:2] == ["trained", "delivered"]
        assert len(sink.measurements("loss")) == 100_000
        assert max(sink.sizes) <= 3 << 20
