"""The archive of a bridge that is killed again and again, read as docs/archive.md says."""

import contextlib
import gzip
import io
import itertools
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import duckdb
import pytest
import requests
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from otel_rl.run_id import run_id
from tests.process.commands import OTEL_RL, clean_environment, otel_rl
from tests.support.docs_examples import blocks
from tests.support.otlp_requests import Attributes, gauge, key_values, metrics_request, point

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0
COUNT, STEP = "otel_rl.step.count", "rl.loop.iteration"

VALUES = 50
"""Of each request."""

FAST = {
    "OTEL_RL_BRIDGE__ARCHIVE__ENABLED": "true",
    "OTEL_RL_BRIDGE__ARCHIVE__EVERY": "0.001",
}
RARE = FAST | {"OTEL_RL_BRIDGE__ARCHIVE__EVERY": "3600"}


@contextlib.contextmanager
def bridge(
    directory: Path, variables: dict[str, str]
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL of a bridge, and its process, which is killed at the end of the context."""
    with subprocess.Popen(
        [
            *(*OTEL_RL, "bridge", "--tracker", "jsonl", "--data", str(directory)),
            *("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"),
        ],
        env=clean_environment(directory, **variables),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"OTLP/HTTP on (\S+), ", line):
                    yield f"http://{found[1]}/v1/metrics", process
                    break
            else:
                pytest.fail("the bridge did not start")
        finally:
            process.kill()


def request(first: int) -> bytes:
    """Values that no other request has."""
    now_ns = time.time_ns()
    points = []
    for value in range(first, first + VALUES):
        points.append(point(float(value), now_ns + value))
        points[-1].attributes.extend(key_values({"rl.loop.iteration": value // 10}))
    resource: Attributes = {
        "rl.experiment.name": "grpo-7b",
        "rl.worker.role": "trainer",
        "rl.worker.index": 0,
        "service.instance.id": "one",
    }
    return metrics_request(gauge(*points, name="id"), resource=resource).SerializeToString()


def send(url: str, body: bytes) -> bool:
    try:
        headers = {"Content-Type": "application/x-protobuf"}
        return requests.post(url, data=body, headers=headers, timeout=90).ok
    except requests.RequestException:
        return False


def archived(directory: Path) -> Counter[float]:
    pattern = directory / "archive" / run_id("grpo-7b", "default") / "*.parquet"
    found = duckdb.execute("SELECT value FROM read_parquet(?)", [str(pattern)]).fetchall()
    return Counter(value for (value,) in found)


def files(directory: Path) -> int:
    return len([*directory.rglob("*.parquet")])


@pytest.mark.slow
def test_every_acknowledged_value_is_in_the_archive_once_whatever_dies(tmp_path: Path) -> None:
    offered: list[bytes] = []
    acknowledged: set[int] = set()
    for life in range(4):
        with bridge(tmp_path, FAST) as (url, process):
            before = files(tmp_path)
            for number in range(life * 10, life * 10 + 10):
                offered.append(request(number * VALUES))
                if send(url, offered[number]):
                    acknowledged.add(number)
            for number, body in enumerate(offered):  # again: unanswered ones, and repeats
                if send(url, body):
                    acknowledged.add(number)
            deadline = time.monotonic() + DEADLINE_S
            while files(tmp_path) <= before and time.monotonic() < deadline:
                time.sleep(0.01)
                if life == 1:
                    break  # killed before or while it writes
            if life == 3:
                process.send_signal(signal.SIGTERM)
                assert process.wait(DEADLINE_S) == 0
    assert len(acknowledged) == 40
    assert archived(tmp_path) == Counter(float(value) for value in range(40 * VALUES))


def test_a_command_writes_what_a_killed_bridge_has_left(tmp_path: Path) -> None:
    with bridge(tmp_path, RARE) as (url, _):
        assert send(url, request(0))
        deadline = time.monotonic() + DEADLINE_S
        while not waiting_values(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert files(tmp_path) == 0
    environment = clean_environment(tmp_path, **RARE)
    done = otel_rl("finish", tmp_path, cwd=tmp_path, env=environment)
    assert done.status == 0, done.err
    assert archived(tmp_path) == Counter(float(value) for value in range(VALUES))


def waiting_values(directory: Path) -> int:
    with contextlib.closing(
        sqlite3.connect(f"file:{directory / 'journal.db'}?mode=ro", uri=True)
    ) as connection:
        (found,) = connection.execute("SELECT COALESCE(SUM(samples), 0) FROM archive").fetchone()
    return int(found)


@pytest.mark.slow
def test_the_examples_of_the_page_read_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import otel_rl\n"
        "otel_rl.init()\n"
        "for step in range(1, 4):\n"
        "    otel_rl.log({'rl.train.loss': 1 / step}, step=step)\n"
        "assert otel_rl.finish(timeout_s=60)\n"
    )
    done = otel_rl(
        *("run", "--tracker", "jsonl", "--experiment", "grpo-7b", "--role", "trainer", "--"),
        *(sys.executable, "-c", script),
        cwd=tmp_path,
        env=clean_environment(tmp_path, **RARE),
    )
    assert done.status == 0, done.err
    page = ROOT / "docs" / "archive.md"
    (file,) = tmp_path.rglob("*.parquet")
    (code,), (query,) = blocks(page, "py"), blocks(page, "sql")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(code, {"directory": file.parent})
    assert "0.500000" in shown.getvalue()
    monkeypatch.chdir(tmp_path)
    assert duckdb.execute(query).fetchall() == [("default", step, 1 / step) for step in (1, 2, 3)]


Identity = tuple[str, int, str, int, str]
"""Of a measurement or point: role, index, metric, time, and value or count."""


class Door:
    """Passes requests on to a bridge, and keeps those of metrics that it has answered for."""

    def __init__(self, bridge_url: str) -> None:
        self.acknowledged: list[bytes] = []
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                passed = {
                    name: self.headers[name]
                    for name in ("Content-Type", "Content-Encoding")
                    if name in self.headers
                }
                answer = requests.post(
                    bridge_url + self.path, data=body, headers=passed, timeout=DEADLINE_S
                )
                if answer.ok and self.path == "/v1/metrics":
                    is_zipped = passed.get("Content-Encoding") == "gzip"
                    door.acknowledged.append(gzip.decompress(body) if is_zipped else body)
                self.send_response(answer.status_code)
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def identities(self) -> Counter[Identity]:
        """What is in the acknowledged requests; a point that was repeated counts once."""
        points: dict[tuple[str, int, str, bytes], list[Identity]] = {}
        for body in self.acknowledged:
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                said = {pair.key: pair.value for pair in resource.resource.attributes}
                role = said["rl.worker.role"].string_value
                index = said["rl.worker.index"].int_value
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        kind = metric.WhichOneof("data")
                        for one in getattr(metric, kind).data_points if kind else ():
                            whole = (role, index, metric.name, one.SerializeToString())
                            points[whole] = [(*whole[:3], *each) for each in values_of(kind, one)]
        return Counter(itertools.chain.from_iterable(points.values()))


def values_of(kind: str | None, one: Any) -> Iterator[tuple[int, str]]:
    """Time and value of what the archive keeps of a point, that of each step, too."""
    if kind in {"histogram", "exponential_histogram"}:
        yield one.time_unix_nano, str(one.count)
        steps: dict[int, list[tuple[int, int]]] = {}
        for each in one.exemplars:
            marks = {pair.key: pair.value.int_value for pair in each.filtered_attributes}
            steps.setdefault(marks[STEP], []).append((each.time_unix_nano, marks.get(COUNT, 1)))
        for measured in steps.values():
            yield max(time_ns for time_ns, _ in measured), str(sum(n for _, n in measured))
    elif not one.flags & 1:  # no value: a heartbeat
        steps_of_sum = [
            each
            for each in (one.exemplars if kind == "sum" else ())
            if STEP in {pair.key for pair in each.filtered_attributes}
        ]
        for each in (*steps_of_sum, *((one.exemplars if kind == "gauge" else ()) or [one])):
            value = each.as_int if each.WhichOneof("value") == "as_int" else each.as_double
            yield each.time_unix_nano, str(float(value))


DEMO = """
from otel_rl.demo import DemoSettings, run
result = run(DemoSettings(steps=20))
print(result)
raise SystemExit(not result.ok)
"""


@pytest.mark.slow
def test_the_archive_of_the_demo_has_every_value_that_was_acknowledged(tmp_path: Path) -> None:
    with bridge(tmp_path, FAST) as (url, process), Door(url.removesuffix("/v1/metrics")) as door:
        demo = subprocess.run(
            [sys.executable, "-c", DEMO],
            env=clean_environment(
                tmp_path,
                OTEL_EXPORTER_OTLP_ENDPOINT=door.url,
                OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
                OTEL_RESOURCE_ATTRIBUTES="rl.experiment.name=demo,rl.trial.name=test",
                OTEL_PYTHON_METER_PROVIDER="otel_rl",
                OTEL_PYTHON_TRACER_PROVIDER="otel_rl",
                OTEL_METRIC_EXPORT_INTERVAL="500",
                OTEL_METRICS_EXEMPLAR_FILTER="always_on",
                OTEL_RL_EXPERIMENT="demo",
                OTEL_RL_TRIAL="test",
                TMPDIR=str(tmp_path),
            ),
            timeout=4 * DEADLINE_S,
            capture_output=True,
            text=True,
            check=False,
        )
        assert demo.returncode == 0, demo.stdout + demo.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        sent = door.identities()
    found = duckdb.execute(
        "SELECT role, worker_index, metric, epoch_ns(time), value, count FROM read_parquet(?)",
        [str(tmp_path / "archive" / run_id("demo", "test") / "*.parquet")],
    ).fetchall()
    archived = Counter(
        (role, index, metric, time_ns, str(value) if count is None else str(count))
        for role, index, metric, time_ns, value, count in found
    )
    assert len(sent) > 10_000
    assert archived == sent
