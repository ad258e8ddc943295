"""The list of docs/otlp.md is complete, and each of its items is held by tests that exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grpc
import httpx
import pytest

from otel_rl.bridge.receive.status import ANSWERS, NOT_FOUND, TOO_MANY_CONNECTIONS, UNFORESEEN
from otel_rl.errors import JournalFull, MalformedRequest, RequestTooLarge, Unauthenticated
from tests.otlp_requests import grpc_receiver, http_receiver, metrics_request

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

OVER_BOTH = ["test_otlp_security", "test_otlp_exporters", "test_otlp_items"]
FILES = {
    "HTTP": ["test_otlp_http", *OVER_BOTH],
    "gRPC": ["test_otlp_grpc", *OVER_BOTH],
    "logs": ["test_otlp_logs", "test_otlp_exporters"],
}


def rows() -> Iterator[tuple[int, dict[str, str]]]:
    """(item, column -> cell) of the table."""
    page = (ROOT / "docs" / "otlp.md").read_text(encoding="utf-8")
    for item, *cells in re.findall(
        r"^\| (\d+) \| .+ \| (.+) \| (.+) \| (.+) \|$", page, re.MULTILINE
    ):
        yield int(item), dict(zip(FILES, cells, strict=True))


@cache
def names_of(column: str) -> list[str]:
    """The names of all test functions that a column may name."""
    names = []
    for file in FILES[column]:
        tree = ast.parse((HERE / f"{file}.py").read_text(encoding="utf-8"))
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
        names += [function.name for function in functions if function.name.startswith("test_")]
    return names


def test_every_item_has_a_row() -> None:
    assert [item for item, _ in rows()] == list(range(1, 42))


@pytest.mark.parametrize(("item", "cells"), list(rows()), ids=lambda value: str(value)[:2])
def test_every_item_is_held_by_tests_that_exist(item: int, cells: dict[str, str]) -> None:
    assert set(cells.values()) != {"-"}
    for column, cell in cells.items():
        if cell != "-":
            (prefix,) = re.findall(r"^`(test_\w+)`$", cell)
            assert any(name.startswith(prefix) for name in names_of(column)), prefix


def test_41_what_is_said_of_a_collector_is_held_by_tests_that_exist() -> None:
    page = (ROOT / "docs" / "otlp.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| [^|\d][^|]* \| `(test_\w+)` \|$", page, re.MULTILINE)
    assert len(named) == 7
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/lab").glob("*.py"))
    assert [name for name in named if f"def {name}" not in text] == []


# Item 39. What the specification of OTLP calls a code over HTTP, for those that the bridge sends.
# RESOURCE_EXHAUSTED is only ever said of a request that is too large: that is final, as 413 is,
# while the 429 that stands for it elsewhere would be repeated.
SENT = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.UNIMPLEMENTED: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 413,
    grpc.StatusCode.UNAVAILABLE: 503,
}
ERRORS = {
    grpc.StatusCode.INVALID_ARGUMENT: MalformedRequest("x"),
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated("x"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: RequestTooLarge("x"),
    grpc.StatusCode.UNAVAILABLE: JournalFull("x"),
}


@pytest.mark.parametrize("code", [c for c in grpc.StatusCode if c is not grpc.StatusCode.OK])
def test_39_each_code_is_sent_as_what_it_means_or_never(code: grpc.StatusCode) -> None:
    answers = [*ANSWERS.values(), UNFORESEEN, NOT_FOUND, TOO_MANY_CONNECTIONS]
    assert {answer.http for answer in answers if answer.grpc is code} == (
        {SENT[code]} if code in SENT else set()
    )


def test_39_there_are_sixteen_of_them() -> None:
    assert len(list(grpc.StatusCode)) == 17


@pytest.mark.parametrize("code", ERRORS)
def test_39_an_error_of_the_consumer_arrives_as_the_same_code_over_both_protocols(
    code: grpc.StatusCode,
) -> None:
    body = metrics_request().SerializeToString()
    with http_receiver() as receiver:
        receiver.journal.error = ERRORS[code]
        headers = {"content-type": "application/json"}
        answer = httpx.post(
            receiver.url + "/v1/metrics", content=b"{}", headers=headers, timeout=60
        )
        assert answer.status_code == 200  # nothing in it reaches the consumer
        headers = {"content-type": "application/x-protobuf"}
        answer = httpx.post(receiver.url + "/v1/metrics", content=body, headers=headers, timeout=60)
        assert answer.status_code == SENT[code]
    with (
        grpc_receiver() as receiver,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        receiver.journal.error = ERRORS[code]
        method = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method, bytes, bytes)
        with pytest.raises(grpc.RpcError) as caught:
            call(body, timeout=60)
        assert caught.value.code() is code
