"""What hands over the requests of a worker, and the result of one attempt."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

__all__ = [
    "MAX_RETRY_AFTER_S",
    "PERHAPS_TLS",
    "Outcome",
    "Reply",
    "Transport",
    "accepted",
]

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
    """The endpoint's answer.

    Attributes:
        outcome: Accepted, to be retried, or never to be taken.
        message: For people; may be empty.
        rejected: Of an accepted request, the points, log records or spans that were not taken.
        retry_after_s: What the endpoint asked for, or None.
        unreachable: There was no connection: probably no server listens.
        wants_token: The endpoint does not know the sender.
    """

    outcome: Outcome
    message: str = ""
    rejected: int = 0
    retry_after_s: float | None = None
    unreachable: bool = False
    wants_token: bool = False


class Transport(Protocol):
    """Sends request bodies. Used by one thread."""

    def prepare(self, payload: bytes) -> bytes:
        """The body to keep until it is sent: compressed if so configured."""
        ...

    def send(self, body: bytes) -> Reply:
        """Try once. Does not raise for anything that the network or the endpoint can do."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


def accepted(body: bytes) -> Reply:
    """An acknowledgement, which may report that a part of the request was refused."""
    if not body:
        return Reply(Outcome.ACCEPTED)
    try:  # the answers of all signals are the same bytes
        partial = ExportMetricsServiceResponse.FromString(body).partial_success
    except DecodeError:
        return Reply(Outcome.ACCEPTED, "its answer is no OTLP; is this the address of a receiver?")
    return Reply(Outcome.ACCEPTED, partial.error_message, rejected=partial.rejected_data_points)
