"""One table answers every error over both protocols."""

import grpc
import pytest

from otel_rl import errors
from otel_rl.bridge.receive.answers import (
    ANSWERS,
    UNFORESEEN,
    GrpcCode,
    answer_to,
    status_message,
)

# What HTTP status a gRPC status is, where the two say the same thing.
SAME = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 413,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.UNAVAILABLE: 503,
}


@pytest.mark.parametrize("error", [*ANSWERS, Exception], ids=lambda error: error.__name__)
def test_http_and_grpc_agree(error: type[Exception]) -> None:
    answer = answer_to(error("x"))
    assert answer.http == SAME[grpc.StatusCode[answer.grpc.name]]


@pytest.mark.parametrize("code", GrpcCode)
def test_a_code_is_that_of_grpc(code: GrpcCode) -> None:
    assert grpc.StatusCode[code.name].value[0] == code


def test_only_requests_that_can_never_be_taken_are_final() -> None:
    final = {error for error, answer in ANSWERS.items() if not answer.is_retryable}
    assert final == {errors.MalformedRequest, errors.RequestTooLarge, errors.Unauthenticated}


def test_subclass_is_answered_as_its_nearest_ancestor() -> None:
    class Torn(errors.MalformedRequest):
        pass

    assert answer_to(Torn("x")) is ANSWERS[errors.MalformedRequest]
    assert answer_to(errors.JournalLocked("x")) is ANSWERS[errors.JournalError]


def test_retry_info_stands_on_retryable_answers_only() -> None:
    retryable = status_message(UNFORESEEN, "x", retry_after_s=2)
    final = status_message(ANSWERS[errors.MalformedRequest], "x", retry_after_s=2)
    assert len(retryable.details) == 1
    assert len(final.details) == 0


def test_message_is_shortened_between_characters() -> None:
    message = status_message(UNFORESEEN, "é" * 5000, retry_after_s=1).message
    assert len(message.encode()) <= 4096
    assert message.endswith("é...")
