"""Items of any sizes arrive in order, in requests of at most the limit, under their scopes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.signals import Signal
from otel_rl.worker.otlp import protobuf
from otel_rl.worker.otlp.request_packer import (
    Request,
    RequestPacker,
    encode_resource,
    encode_scope,
)

RESOURCE = encode_resource(Resource({"service.name": "s"}, "https://r/1"))
SCOPES = [encode_scope(InstrumentationScope(name, "1", f"https://{name}/1")) for name in "ab"]


def item(name: str) -> tuple[tuple[bytes, bytes], int]:
    """A span with a name, in two pieces, and their length."""
    encoded = protobuf.field(5, name.encode())
    head = protobuf.head(2, len(encoded))
    return (head, encoded), len(head) + len(encoded)


def names(requests: list[Request]) -> list[dict[str, list[str]]]:
    """The names in each request by scope; each request has the resource."""
    found = []
    for request in requests:
        (part,) = ExportTraceServiceRequest.FromString(request.payload).resource_spans
        assert part.schema_url == "https://r/1"
        assert [pair.key for pair in part.resource.attributes] == ["service.name"]
        for scope in part.scope_spans:
            assert (scope.scope.version, scope.schema_url) == ("1", f"https://{scope.scope.name}/1")
        scopes = [scope.scope.name for scope in part.scope_spans]
        assert len(scopes) == len(set(scopes))
        found.append({s.scope.name: [span.name for span in s.spans] for s in part.scope_spans})
    return found


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 300)), max_size=40))
def test_requests_keep_the_order_the_scopes_and_the_limit(sizes: list[tuple[int, int]]) -> None:
    packer = RequestPacker(RESOURCE, Signal.TRACES, 300)
    sent: dict[str, list[str]] = {"a": [], "b": []}
    for number, (scope, size) in enumerate(sizes):
        name = f"{number}" + "x" * size
        if packer.add(SCOPES[scope], *item(name)):
            sent["ab"[scope]].append(name)
        else:
            assert size > 150
    requests = packer.requests()
    assert all(len(request.payload) <= 300 for request in requests)
    arrived = names(requests)
    for name_of_scope, own in sent.items():
        assert [name for request in arrived for name in request.get(name_of_scope, [])] == own
    counts = [sum(map(len, request.values())) for request in arrived]
    assert [request.measurements for request in requests] == counts
    assert 0 not in counts


def test_an_item_that_just_fits_is_added_and_one_more_byte_is_not() -> None:
    sizes = []
    for size in range(100, 300):
        packer = RequestPacker(RESOURCE, Signal.TRACES, 300)
        if packer.add(SCOPES[0], *item("x" * size)):
            (request,) = packer.requests()
            sizes.append(len(request.payload))
        else:
            assert not packer.has_items
    assert 300 - 12 <= max(sizes) <= 300  # the bound allows for heads of any length


def test_a_new_request_begins_only_where_the_last_one_is_full() -> None:
    packer = RequestPacker(RESOURCE, Signal.TRACES, 400)
    for number in range(100):
        assert packer.add(SCOPES[number % 2], *item(f"{number:06}"))
    *full, _ = packer.requests()
    assert min(len(request.payload) for request in full) > 400 - 30


@pytest.mark.parametrize("signal", list(Signal))
def test_nothing_is_no_request_and_a_request_has_its_signal(signal: Signal) -> None:
    packer = RequestPacker(RESOURCE, signal)
    assert not packer.has_items
    assert packer.requests() == []
    packer = RequestPacker(RESOURCE, signal)
    packer.add(SCOPES[0], *item("x"), 7)
    (request,) = packer.requests()
    assert (request.signal, request.measurements) == (signal, 7)
