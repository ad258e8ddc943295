"""Interface of what sends a worker's requests, and the result of one attempt."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

MAX_RETRY_AFTER_S: Final = 300.0
"""A wrong Retry-After must not silence a worker for a day."""

PERHAPS_TLS: Final = " (if the endpoint has TLS, write https:// instead of http://)"
"""Added to the failure of a plain connection that the endpoint has closed without a word."""


class Outcome(Enum):
    """Result of one send attempt."""

    ACCEPTED = "accepted"
    RETRY = "retry"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Reply:
    """The endpoint's answer to one attempt.

    Attributes:
        outcome: Whether the request was accepted, is to be retried, or will never be taken.
        message: Text for people; may be empty.
        rejected: Number of points, log records or spans of an accepted request that were not taken.
        retry_after_s: Pause that the endpoint asked for, in seconds; None if it did not.
        unreachable: Whether there was no connection: probably no server listens.
        wants_token: Whether the endpoint does not know the sender, and wants a token.
    """

    outcome: Outcome
    message: str = ""
    rejected: int = 0
    retry_after_s: float | None = None
    unreachable: bool = False
    wants_token: bool = False


class Transport(Protocol):
    """Sends request bodies. One thread uses it."""

    def prepare(self, payload: bytes) -> bytes:
        """Return the body to store until it is sent, compressed if so configured."""
        ...

    def send(self, body: bytes) -> Reply:
        """Try once. Nothing that the network or the endpoint does makes this raise."""
        ...

    def close(self) -> None: ...


def accepted(body: bytes) -> Reply:
    """Return the reply of an acknowledgement, which may say that a part was refused."""
    if not body:
        return Reply(Outcome.ACCEPTED)
    try:  # the answers of all signals are the same bytes
        partial = ExportMetricsServiceResponse.FromString(body).partial_success
    except DecodeError:
        return Reply(Outcome.ACCEPTED, "its answer is no OTLP; is this the address of a receiver?")
    return Reply(Outcome.ACCEPTED, partial.error_message, rejected=partial.rejected_data_points)
