"""What a worker reports of its errors, and how it says that it has ended."""

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk.resources import Resource

from otel_rl.semconv.names import (
    ERROR_TYPE,
    EXCEPTION_MESSAGE,
    RL_LOOP_ITERATION,
    RL_WORKER_STATUS,
)
from otel_rl.worker.drops import Drops
from otel_rl.worker.events.queue import EventQueue, ExitReport, mark_step
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.requests import Request


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
