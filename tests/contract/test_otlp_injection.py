"""Names that senders choose never become a path, a header, markup or a second line of a log."""

import json
import logging
import re
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import load_settings
from otel_rl.bridge.delivery.wandb.growing_tables import MAX_TABLES
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.validate import validate
from otel_rl.run_id import run_id
from otel_rl.signals import Signal
from tests.support import plain_http
from tests.support.otlp_requests import (
    Attributes,
    Receiver,
    event,
    gauge,
    http_receiver,
    key_values,
    logs_request,
    metrics_request,
    point,
    trace_request,
)
from tests.support.slow import examples

PROTOBUF = {"content-type": "application/x-protobuf"}

# Legal names, each of them dangerous somewhere.
PRINTABLE = [
    "../../../tmp/pwned",
    "..",
    "/etc/passwd",
    "a/../../b",
    "C:\\windows\\x",
    "%2e%2e%2fx",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "$(touch pwned)",
    "`touch pwned`",
    "a; rm -rf b | c",
    "-rf",
    "'; DROP TABLE runs; --",
    "{0}%s%n",
    "te\u0430m",  # a Cyrillic letter that looks Latin
    "\u5b9f\u9a13",
    "x" * 128,
]

# Names that could end a line, hide, or turn what follows around.
UNPRINTABLE = [
    "a\nb",
    "a\r\nSet-Cookie: b",
    "a\x00b",
    "\x1b[31mred",
    "a\x9bb",
    "\u202egnp.exe",
    "\u2066a",
    "a\u200bb",
    "a\u2028b",
    "\ufeffa",
    "",
    " ",
    "x" * 129,
]

RUN_FILE = re.compile(r"[a-z2-7]{16}(\.[a-z]+)+")


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def stray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, three levels deep, in and above which nothing may appear."""
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    return tmp_path / "a"


def events_that_say(name: str) -> list[LogRecord]:
    """Everything that an event can say, each time the same."""
    about: Attributes = {
        "rl.experiment.config": {name: {name: name}},
        "rl.experiment.notes": name,
        "rl.experiment.tags": [name],
        "rl.experiment.group": name,
        "rl.experiment.job_type": name,
        "log.record.uid": name,
    }
    sample: Attributes = {"rl.sample.table": name, "rl.loop.iteration": 1}
    return [
        event("rl.experiment.start", about),
        event("rl.rollout.sample", sample, {name: name, "prompt": name}),
    ]


@pytest.mark.process
def test_no_table_of_a_wandb_run_is_a_path(tmp_path: Path, stray: Path) -> None:
    free, data = {"http": "0", "grpc": "0"}, tmp_path / "data"
    overrides = {"data": data, "listen": free, "tracker": {"name": "wandb"}}
    bridge = Bridge(load_settings(None, overrides))
    bridge.start()
    resource: Attributes = {"rl.experiment.name": "x", "rl.worker.role": "../../r"}
    records = [record for name in PRINTABLE for record in events_that_say(name)]
    body = logs_request(*records, resource=resource).SerializeToString()
    answer = plain_http.post(
        f"http://{bridge.http}/v1/logs", content=body, headers=PROTOBUF, timeout=60
    )
    assert (answer.status_code, answer.content) == (200, b"")
    (status,) = bridge.stop()

    assert (status.pending, status.last_error) == (0, "")
    tables = [path for path in data.rglob("*.table.json") if path.is_file()]
    assert len(tables) == len(PRINTABLE) + MAX_TABLES  # of one step, and of all steps
    parts = {part for path in tables for part in path.relative_to(data).parts}
    assert {part for part in parts if not re.fullmatch(r"[A-Za-z0-9_.-]+", part)} == set()
    assert files(stray) == set()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "data"}


@pytest.mark.process
def test_no_name_is_a_path_and_every_name_is_a_run_of_its_own(
    tmp_path: Path, stray: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    free = {"http": "0", "grpc": "0"}
    data = tmp_path / "data"
    bridge = Bridge(
        load_settings(None, {"data": data, "listen": free, "tracker": {"name": "jsonl"}})
    )
    bridge.start()
    for name in PRINTABLE:
        measured = point()
        measured.attributes.extend(key_values({"rl.loop.iteration": 1, "label": name}))
        resource = {"rl.experiment.name": name, "rl.trial.name": name, "rl.worker.role": name}
        body = metrics_request(gauge(measured, name=name), resource=resource).SerializeToString()
        answer = plain_http.post(
            f"http://{bridge.http}/v1/metrics", content=body, headers=PROTOBUF, timeout=60
        )
        assert (answer.status_code, answer.content) == (200, b"")
        said = logs_request(*events_that_say(name), resource=resource).SerializeToString()
        answer = plain_http.post(
            f"http://{bridge.http}/v1/logs", content=said, headers=PROTOBUF, timeout=60
        )
        assert (answer.status_code, answer.content) == (200, b"")
    statuses = bridge.stop()

    assert {status.key.experiment for status in statuses} == set(PRINTABLE)
    runs = {f"{run_id(name, name)}.jsonl" for name in PRINTABLE}
    assert len(runs) == len(PRINTABLE)
    found = files(data)
    assert runs <= found
    own = {name for name in found if name.startswith(("journal.db", "lock", "writers/shared."))}
    assert {name for name in found - own if not RUN_FILE.fullmatch(Path(name).name)} == set()
    assert files(stray) == set()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "data"}
    assert [record for record in caplog.messages if not record.isprintable()] == []

    for name in PRINTABLE:
        for line in (data / f"{run_id(name, name)}.jsonl").read_text().splitlines():
            row = json.loads(line)
            assert all(key.isprintable() and key.strip() for key in row), row


@pytest.mark.parametrize("name", UNPRINTABLE, ids=repr)
@pytest.mark.parametrize("key", ["rl.experiment.name", "rl.trial.name", "rl.worker.role"])
def test_a_name_that_cannot_be_printed_is_refused(receiver: Receiver, key: str, name: str) -> None:
    receiver.journal.take()
    body = metrics_request(resource={"rl.experiment.name": "x"} | {key: name})
    url = receiver.url + "/v1/metrics"
    answer = plain_http.post(url, content=body.SerializeToString(), headers=PROTOBUF, timeout=60)
    assert b"invalid_name" in answer.content
    assert receiver.journal.take() == []


@pytest.mark.parametrize("name", [name for name in UNPRINTABLE if len(name) < 129], ids=repr)
def test_a_metric_that_cannot_be_printed_is_refused(receiver: Receiver, name: str) -> None:
    receiver.journal.take()
    body = metrics_request(gauge(name=name)).SerializeToString()
    answer = plain_http.post(
        receiver.url + "/v1/metrics", content=body, headers=PROTOBUF, timeout=60
    )
    assert b"invalid_metric_name" in answer.content
    assert receiver.journal.take() == []


@pytest.mark.parametrize("surrogate", [r"\ud800", r"\udfff"])
def test_a_lone_surrogate_is_malformed(receiver: Receiver, surrogate: str) -> None:
    body = f'{{"resourceMetrics": [{{"schemaUrl": "{surrogate}"}}]}}'
    headers = {"content-type": "application/json"}
    answer = plain_http.post(
        receiver.url + "/v1/metrics", content=body.encode(), headers=headers, timeout=60
    )
    assert answer.status_code == 400


@pytest.fixture(scope="module")
def receiver():  # type: ignore[no-untyped-def]  # a generator fixture
    with http_receiver() as receiver:
        yield receiver


@pytest.mark.parametrize(
    "path", ["/%0d%0aset-cookie:%20a=b", "/<script>alert(1)</script>", "/%00", "/%1b%5b31m"]
)
def test_an_unknown_path_is_repeated_as_text_only(receiver: Receiver, path: str) -> None:
    host, _, port = receiver.server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert b"\r\ncontent-type: application/json" in head
    assert b"set-cookie" not in head
    assert json.loads(body)["message"].isprintable()


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TIGHT = ReceiveLimits(
    max_resource_attributes=6,
    max_attributes=1,
    max_span_attributes=1,
    max_attribute_key_bytes=20,
    max_attribute_value_bytes=20,
    max_name_chars=10,
    max_metric_name_bytes=20,
)


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=4), ANY_TEXT, ANY_TEXT)
def test_what_a_sender_is_told_is_one_printable_line(
    attributes: dict[str, str], name: str, experiment: str
) -> None:
    resource = {"rl.experiment.name": experiment, **attributes}
    crowded = point()
    crowded.attributes.extend(key_values(attributes))
    metrics = metrics_request(gauge(crowded, point(time_ns=5), name=name), resource=resource)
    traces = trace_request(2, resource={"rl.experiment.name": "x"})
    span, late = traces.resource_spans[0].scope_spans[0].spans
    span.name = late.name = name
    span.attributes.extend(key_values(attributes))
    late.end_time_unix_nano = 5
    for signal, request in ((Signal.METRICS, metrics), (Signal.TRACES, traces)):
        now_ns = traces.resource_spans[0].scope_spans[0].spans[0].end_time_unix_nano
        assert validate(signal, request, TIGHT, now_ns).message.isprintable()
