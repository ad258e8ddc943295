"""What a diagnosis finds is told to a webhook, and ends the command that asks for it."""

import json
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.process.commands import otel_rl, otel_rl_here

pytestmark = pytest.mark.process

# It goes on until it is ended: only --stop-on does that before its last step.
PROGRAM = """
    import math
    import signal
    import sys
    import time

    import otel_rl

    def ended(number, frame):
        otel_rl.finish()
        sys.exit(7)

    signal.signal(signal.SIGTERM, ended)
    otel_rl.init()
    for step in range(20_000):
        with otel_rl.step(step), otel_rl.phase("train"):
            otel_rl.log({"loss": math.nan if step >= 30 else 1 / (1 + step)})
            time.sleep(0.03)
"""


class Receiver:
    """A webhook, such as people write: answers 503 to the first message, and 200 to others."""

    def __init__(self) -> None:
        received: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append(json.loads(body))
                self.send_response(503 if len(received) == 1 else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.received = received
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?secret=s3cr3t"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def test_a_cause_is_told_and_ends_the_command(tmp_path: Path, receiver: Receiver) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    done = otel_rl(
        *("run", "--experiment", "e", "--trial", "1", "--tracker", "jsonl"),
        *("--notify", receiver.url, "--stop-on", "straggler,nan", "--", sys.executable, script),
        cwd=tmp_path,
    )
    assert done.status == 7, done.err  # the command's own, which has ended in order
    assert done.err.count("CMD gets SIGTERM, for --stop-on nan.") == 1
    assert "s3cr3t" not in done.err
    # The first one was refused for a while, so it has come twice.
    first, again, *_ = receiver.received
    assert first == again
    assert (first["experiment"], first["trial"]) == ("e", "1")
    assert (first["kind"], first["worker"]) == ("nan", "trainer/0")
    assert "NaN or infinite since step 30" in first["words"]


@pytest.mark.parametrize(
    ("kinds", "said"),
    [("nann", "nann: no cause of a diagnosis. Did you mean nan?"), ("", "name a cause")],
)
def test_a_kind_that_no_diagnosis_has_is_refused(tmp_path: Path, kinds: str, said: str) -> None:
    done = otel_rl_here("run", "--stop-on", kinds, "--", "true", cwd=tmp_path)
    assert done.status == 2
    assert said in done.err


@pytest.mark.parametrize(
    "url", ["hooks.slack.com/s3cr3t", "https://user:s3cr3t@host/x", "https://host/a s3cr3t"]
)
def test_an_address_that_cannot_be_used_is_not_printed(tmp_path: Path, url: str) -> None:
    done = otel_rl_here("run", "--notify", url, "--", "true", cwd=tmp_path)
    assert done.status == 2
    assert "notify.url" in done.err
    assert "s3cr3t" not in done.err
