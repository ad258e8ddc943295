"""What the bridge implements of OTLP, item by item, and that each is held by tests that exist."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from otel_rl.bridge.receive.answers import (
    ANSWERS,
    NOT_FOUND,
    TOO_MANY_CONNECTIONS,
    UNFORESEEN,
)
from otel_rl.errors import JournalFull, MalformedRequest, RequestTooLarge, Unauthenticated
from tests.support import plain_http
from tests.support.otlp_requests import grpc_receiver, http_receiver, metrics_request

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

OVER_BOTH = [
    "test_otlp_exchange",
    "test_otlp_security",
    "test_otlp_exporters",
    "test_otlp_items",
]
FILES = {
    "HTTP": ["test_otlp_http", *OVER_BOTH],
    "gRPC": ["test_otlp_grpc", *OVER_BOTH],
    "logs": ["test_otlp_exchange", "test_otlp_http", "test_otlp_logs", "test_otlp_exporters"],
}


class Item(NamedTuple):
    """One rule, and the beginnings of the names of its tests; None where it does not apply."""

    rule: str
    over_http: str | None
    over_grpc: str | None
    logs: str | None


ITEMS = {
    1: Item(
        "protobuf: empty protobuf response, partial_success unset",
        "test_01",
        "test_01",
        "test_01",
    ),
    2: Item("JSON: {}", "test_02", None, "test_02"),
    3: Item("media type without case and parameters", "test_03", None, None),
    4: Item("empty requests and envelopes are accepted", "test_04", "test_04", "test_04"),
    5: Item("the success body parses", "test_05", "test_05", "test_05"),
    6: Item("keep-alive, chunked bodies", "test_06", None, None),
    7: Item(
        "gzip and deflate; no zstd (400, item 9)",
        "test_07_compressed",
        "test_07_a",
        "test_07",
    ),
    8: Item(
        "body not in its declared encoding: 400, Status in the request's encoding",
        "test_08",
        None,
        None,
    ),
    9: Item("unknown encoding: 400, in JSON without a media type", "test_09", None, None),
    10: Item(
        "limits count decompressed bytes; a truncated stream is 400, never partly accepted",
        "test_10",
        "test_32_message_over_the_limit_after",
        "test_11",
    ),
    11: Item(
        "over the limit (16 MiB): 413, final; the limit itself passes",
        "test_11",
        "test_11",
        "test_11",
    ),
    12: Item("answers stay below 4 KiB", "test_12", "test_12", "test_12"),
    13: Item("undecodable: 400, INVALID_ARGUMENT, with a Status", "test_13", "test_13", "test_13"),
    14: Item("405 and 415 have a message", "test_14", None, "test_14"),
    15: Item(
        "404 for an unknown path, UNIMPLEMENTED for an unknown service",
        "test_15",
        "test_15",
        None,
    ),
    16: Item("no error page of the framework", "test_16", None, None),
    17: Item("unforeseen exception: 503, UNAVAILABLE, retryable", "test_17", "test_17", "test_17"),
    18: Item("back-pressure: 503, UNAVAILABLE, never 429", "test_18", "test_18", "test_18"),
    19: Item(
        "Retry-After in whole seconds, RetryInfo, on retryable answers only",
        "test_19",
        "test_18",
        "test_18",
    ),
    20: Item(
        "no valid token: 401, UNAUTHENTICATED, final; several valid tokens allow rotation",
        "test_20",
        "test_20",
        "test_20",
    ),
    21: Item("acknowledged after it is durable", "test_21", "test_21", "test_21"),
    22: Item("a repeated request is accepted and deduplicated", "test_22", "test_22", "test_22"),
    23: Item("partial_success counts and explains refusals", "test_23", "test_23", "test_23"),
    24: Item("a warning has a count of 0 and a message", "test_24", "test_24", None),
    25: Item("ids are hexadecimal of the right length", "test_25", None, "test_25"),
    26: Item("64-bit integers are strings or numbers", "test_26", None, "test_26"),
    27: Item(
        "enums are numbers (names accepted); unknown and snake_case keys are ignored",
        "test_27",
        None,
        "test_27",
    ),
    28: Item(
        "'NaN', 'Infinity', '-Infinity'; the literal NaN is refused",
        "test_28",
        None,
        "test_28",
    ),
    29: Item(
        "nesting, duplicate keys and invalid UTF-8 harm neither the server nor other resources",
        "test_29",
        "test_29",
        "test_29",
    ),
    30: Item("every metric type and temporality", "test_30", "test_30", "test_30"),
    31: Item(
        "flags, exemplars, start times, zero times, NaN and infinities",
        "test_30_and_31",
        "test_30_and_31",
        None,
    ),
    32: Item(
        "unary Export, gzip, messages of up to 16 MiB, RESOURCE_EXHAUSTED beyond",
        None,
        "test_32",
        "test_07",
    ),
    33: Item("UNAVAILABLE with RetryInfo for back-pressure", None, "test_18", "test_18"),
    34: Item("each error has the same status over both protocols", "test_39", "test_39", "test_39"),
    35: Item("a used port and bad TLS files fail at start, by name", "test_35", "test_35", None),
    36: Item("a stop finishes requests in flight and accepts no more", "test_36", "test_36", None),
    37: Item("no bytes fail the server", "test_37", "test_37", "test_37"),
    38: Item("counts match acknowledgements", "test_38", "test_38", "test_38"),
    39: Item(
        "each of the 16 gRPC error codes has its meaning or is never sent",
        "test_39",
        "test_39",
        "test_39",
    ),
    40: Item(
        "Python exporters and random failures: each item is delivered or counted as dropped",
        "test_40",
        "test_40",
        "test_40",
    ),
    41: Item(
        "a storm of 503; a refused batch blocks no other; kill -9 of the bridge before its answer",
        "test_41",
        "test_41",
        None,
    ),
}
"""The items of the specification and of the exporters of Go, Python and the Collector."""


@cache
def names_of(column: str) -> list[str]:
    """The names of all test functions that a column may name."""
    names = []
    for file in FILES[column]:
        tree = ast.parse((HERE / f"{file}.py").read_text(encoding="utf-8"))
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
        names += [function.name for function in functions if function.name.startswith("test_")]
    return names


def test_no_item_is_missing() -> None:
    assert list(ITEMS) == list(range(1, 42))


@pytest.mark.parametrize("item", ITEMS)
def test_every_item_is_held_by_tests_that_exist(item: int) -> None:
    _, *prefixes = ITEMS[item]
    assert set(prefixes) != {None}
    for column, prefix in zip(FILES, prefixes, strict=True):
        if prefix is not None:
            assert any(name.startswith(prefix) for name in names_of(column)), prefix


# Item 41 with a real Collector.
WITH_A_COLLECTOR = [
    "test_kill_9_loses_and_doubles_nothing",
    "test_an_orderly_restart_loses_and_doubles_nothing",
    "test_what_was_measured_while_the_bridge_was_away_is_in_the_run",
    "test_full_queues_tell_workers_to_come_again_and_lose_nothing",
    "test_a_poisoned_batch",
    "test_a_poisoned_part_of_a_batch_takes_nothing_else_with_it",
    "test_kill_9_of_collectors_and_jaeger_loses_and_doubles_no_span",
]


def test_41_what_is_said_of_a_collector_is_held_by_tests_that_exist() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/lab").glob("*.py"))
    assert [name for name in WITH_A_COLLECTOR if f"def {name}" not in text] == []


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
    assert {answer.http for answer in answers if answer.grpc.name == code.name} == (
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
        answer = plain_http.post(
            receiver.url + "/v1/metrics", content=b"{}", headers=headers, timeout=60
        )
        assert answer.status_code == 200  # nothing in it reaches the consumer
        headers = {"content-type": "application/x-protobuf"}
        answer = plain_http.post(
            receiver.url + "/v1/metrics", content=body, headers=headers, timeout=60
        )
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
