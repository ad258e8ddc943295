"""Events as OTLP bytes, read back by OpenTelemetry's own protobuf classes."""

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk.resources import Resource

from otel_rl.signals import Signal
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.logs import Event, event_requests
from otel_rl.worker.otlp.requests import encode_resource
from tests.otlp_sink import events

RESOURCE = encode_resource(Resource({"service.instance.id": "i"}))

plain = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=10,
)
mappings = st.dictionaries(st.text(max_size=9), plain, max_size=5)


def read(payload: bytes) -> ExportLogsServiceRequest:
    return ExportLogsServiceRequest.FromString(payload)


@given(mappings, st.none() | mappings, st.integers(0, 2**64 - 1))
def test_what_is_said_arrives(
    attributes: dict[str, object], body: dict[str, object] | None, time_ns: int
) -> None:
    event = Event("rl.rollout.sample", time_ns, attributes, body, uid="i/1")  # type: ignore[arg-type]
    (request,) = event_requests(RESOURCE, [event], Guard(Drops()))
    assert (request.signal, request.measurements) == (Signal.LOGS, event.carries_data)
    (found,) = events([read(request.payload)])
    assert (found.name, found.time_ns) == ("rl.rollout.sample", time_ns)
    assert found.attributes == {**attributes, "log.record.uid": "i/1"}
    assert found.body == body
    assert found.resource == {"service.instance.id": "i"}
    if body is not None:
        assert isinstance(found.body, dict)
        assert list(found.body) == list(body)


@given(st.lists(st.integers(0, 300), max_size=30))
def test_requests_keep_the_order_and_the_bound(sizes: list[int]) -> None:
    sent = [
        Event("e" if number % 2 == 0 else "rl.worker.end", number, {"text": "x" * size})
        for number, size in enumerate(sizes)
    ]
    requests = event_requests(RESOURCE, sent, Guard(Drops()), max_request_bytes=500)
    assert all(len(request.payload) <= 500 for request in requests)
    found = events([read(request.payload) for request in requests])
    assert [event.time_ns for event in found] == list(range(len(sizes)))
    assert sum(request.measurements for request in requests) == (len(sizes) + 1) // 2


def test_an_event_that_no_request_can_hold_is_counted_and_costs_no_other() -> None:
    sent = [Event("e", size, {"text": "x" * size}) for size in (1, 500, 2)]
    guard = Guard(Drops())
    (request,) = event_requests(RESOURCE, sent, guard, max_request_bytes=500)
    assert [event.time_ns for event in events([read(request.payload)])] == [1, 2]
    assert guard.drops.counts() == {DropReason.TOO_LARGE: 1}


def test_an_event_that_only_says_that_it_is_is_no_loss() -> None:
    assert not Event("rl.experiment.start", 1, {}).carries_data
    assert not Event("rl.worker.end", 1, {"rl.worker.status": "complete"}).carries_data
    assert Event("rl.experiment.start", 1, {"rl.experiment.group": "g"}).carries_data
