"""The page of a bridge: at its HTTP address, in a process of its own."""

import asyncio
import contextlib
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.counters import Counter, Where
from otel_rl.run_id import run_id
from otel_rl.view.page_process import BridgePage
from otel_rl.view.questions import Question
from tests.process.commands import growing_lines
from tests.support.otlp_requests import gauge, key_values, metrics_request, point
from tests.support.view_runs import LookedAt, write_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

TOKEN = "a-token-that-nobody-guesses"
DEADLINE_S = 120.0
READERS = 8
SENT = 20


class Served:
    """A bridge with the page, on a journal with one run."""

    def __init__(self, data: Path, **settings: object) -> None:
        self.data = data
        write_run(data, LookedAt())
        given = {
            "data": data,
            "listen": {"http": "127.0.0.1:0", "grpc": "off"},
            "tracker": {"name": "jsonl"},
            "archive": {"enabled": False},
            **settings,
        }
        parsed = BridgeSettings.model_validate(given)
        self.page = BridgePage(parsed)
        self.bridge = Bridge(parsed, page=self.page)
        self.bridge.start()

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        request = urllib.request.Request(f"http://{self.bridge.http}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def post(self, step: int) -> int:
        """Export a value of a step. Returns the status."""
        one = point(float(step))
        one.attributes.extend(key_values({"rl.loop.iteration": step}))
        body = metrics_request(gauge(one)).SerializeToString()
        headers = {"content-type": "application/x-protobuf"}
        url = f"http://{self.bridge.http}/v1/metrics"
        request = urllib.request.Request(url, body, headers)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return int(answer.status)

    def steps(self) -> set[int | None]:
        """Return the steps of the rows that are in the run."""
        return {
            row.get("step") for path in self.data.rglob("*.jsonl") for row in growing_lines(path)
        }

    def reader(self) -> int:
        pid = self.page._process.pid
        assert pid is not None
        return pid


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "data")
    yield served
    served.bridge.stop()


def test_a_bridge_shows_its_runs_from_another_process(served: Served) -> None:
    assert b"<title>otel_rl</title>" in served.get("/")[1]
    assert served.page._process.pid is None  # nobody has asked for a run yet
    status, body = served.get("/api/runs")
    assert status == 200
    assert [run["experiment"] for run in json.loads(body)["runs"]] == ["grpo"]
    assert served.reader() != os.getpid()


def test_a_bridge_makes_the_report_of_a_run(served: Served) -> None:
    status, html = served.get(f"/api/runs/{run_id('grpo', '1')}/report")
    assert (status, b'id="report">' in html) == (200, True)


def test_otlp_paths_are_as_before(served: Served) -> None:
    assert served.get("/v1/metrics")[0] == 405
    assert served.get("/nothing")[0] == 404
    assert served.get("/healthz") == (200, b"ok\n")


def test_a_killed_reader_is_counted_and_started_again(served: Served) -> None:
    assert served.get("/api/runs")[0] == 200
    before = served.reader()
    os.kill(before, signal.SIGSTOP)  # it cannot answer, and has not ended yet
    os.kill(before, signal.SIGKILL)
    statuses = {served.get("/api/runs")[0] for _ in range(2)}
    assert 200 in statuses
    assert served.reader() != before
    failed = served.bridge.counters.value(Counter.EXCEPTIONS, reason=Where.VIEW)
    assert failed == (1 if 503 in statuses else 0)


def test_readers_that_wait_hold_up_no_sender(served: Served) -> None:
    assert served.get("/api/runs")[0] == 200
    reader = served.reader()
    os.kill(reader, signal.SIGSTOP)
    with ThreadPoolExecutor(READERS) as readers:
        waiting = [readers.submit(served.get, "/api/runs") for _ in range(READERS)]
        try:
            for step in range(SENT):
                assert served.post(step) == 200
                if step == 0:
                    assert not any(one.done() for one in waiting)
            wait_until(lambda: SENT - 2 in served.steps(), "rows", timeout_s=DEADLINE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(reader, signal.SIGCONT)
        # A reader that does not answer within a minute is ended.
        assert {one.result()[0] for one in waiting} <= {200, 503}


def test_the_reader_ends_with_the_bridge(served: Served) -> None:
    assert served.get("/api/runs")[0] == 200
    reader = served.reader()
    served.bridge.stop()
    assert not Path(f"/proc/{reader}").exists()


def test_an_open_page_does_not_hold_up_the_end(served: Served) -> None:
    with urllib.request.urlopen(f"http://{served.bridge.http}/api/events", timeout=60) as events:
        assert events.readline().startswith(b"data: ")
        served.bridge.stop()
        wait_until(lambda: not events.readline(), "the end of the events", timeout_s=DEADLINE_S)


def test_readers_need_a_token_where_senders_do(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKEN)
    (tmp_path / "tokens").chmod(0o600)
    token = {"name": "team", "experiments": ["ppo*"], "file": str(tmp_path / "tokens")}
    served = Served(tmp_path / "data", team=[token])
    try:
        assert served.get("/api/runs")[0] == 401
        status, body = served.get("/api/runs", authorization=f"Bearer {TOKEN}")
        assert (status, json.loads(body)["runs"]) == (200, [])  # grpo is not theirs
    finally:
        served.bridge.stop()


def test_the_reader_outlives_a_database_that_does_not_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = "postgresql://u:secret@127.0.0.1:1/none"
    settings = {"data": tmp_path, "journal": {"url": url}}
    page = BridgePage(BridgeSettings.model_validate(settings))
    pids = []
    for _ in range(2):
        answer = asyncio.run(page._ask(Question("runs")))
        assert answer.status == 503
        assert "does not answer" in json.loads(answer.body)["error"]
        assert page._process is not None
        pids.append(page._process.pid)
    page.stop()
    assert pids[0] == pids[1]
    assert capfd.readouterr().err == ""
