"""What a worker reports of its errors, and how it says that it has ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk.resources import Resource

from otel_rl.semconv.names import (
    ERROR_TYPE,
    EXCEPTION_MESSAGE,
    RL_LOOP_ITERATION,
    RL_WORKER_STATUS,
)
from otel_rl.signals import Signal
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.events.queue import (
    Event,
    EventQueue,
    ExitReport,
    event_requests,
    mark_step,
)
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.requests import Request, encode_resource
from tests.support.otlp_sink import events


class Rig:
    """A report over a real queue."""

    def __init__(self, *, with_message: bool = True) -> None:
        guard = Guard(Drops())
        self.events = EventQueue(Resource({}), guard)
        self.report = ExitReport(self.events, guard, with_message=with_message)

    def errors(self) -> list[dict[str, object]]:
        requests = self.events.requests(self.events.take_all())
        return [found for request in requests for found in attributes(request)]

    def end(self) -> dict[str, object]:
        (found,) = attributes(self.report.request())
        return found


def attributes(request: Request) -> list[dict[str, object]]:
    decoded = ExportLogsServiceRequest.FromString(request.payload)
    return [
        {one.key: one.value.string_value or one.value.int_value for one in record.attributes}
        for resource in decoded.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def test_an_error_that_leaves_a_step_is_reported_with_the_step() -> None:
    rig, error = Rig(), ValueError("no reward")
    mark_step(error, 7)
    rig.report.error(error)
    (found,) = rig.errors()
    assert (found[ERROR_TYPE], found[EXCEPTION_MESSAGE]) == ("ValueError", "no reward")
    assert found[RL_LOOP_ITERATION] == 7


@pytest.mark.parametrize(
    "error", [StopIteration(), StopAsyncIteration(), KeyboardInterrupt(), SystemExit(1)]
)
def test_what_ends_a_loop_or_the_process_is_no_error_of_a_step(error: BaseException) -> None:
    rig = Rig()
    rig.report.error(error)
    assert rig.errors() == []


def test_a_worker_without_a_failure_is_complete() -> None:
    assert Rig().end()[RL_WORKER_STATUS] == "complete"


def test_the_error_that_ended_the_process_is_its_failure() -> None:
    rig = Rig()
    rig.report.note(MemoryError("out of memory"))
    rig.report.note(None)
    found = rig.end()
    assert (found[RL_WORKER_STATUS], found[ERROR_TYPE]) == ("failed", "MemoryError")


def test_a_process_that_asks_for_its_own_end_has_not_failed() -> None:
    rig = Rig()
    rig.report.note(SystemExit(1))
    assert rig.report.failure is None


def test_messages_can_be_kept_back() -> None:
    rig = Rig(with_message=False)
    rig.report.error(ValueError("a secret"))
    rig.report.note(ValueError("a secret"))
    (error,) = rig.errors()
    assert EXCEPTION_MESSAGE not in error
    assert EXCEPTION_MESSAGE not in rig.end()


# Events as OTLP bytes, read back by OpenTelemetry's own classes

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
