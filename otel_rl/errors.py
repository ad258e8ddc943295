"""Every exception that otel_rl raises on purpose.

* OtelRLError
  * ConfigError            a setting is wrong; raised at start only
  * RequestError           the sender's request cannot be taken; never retried
    * MalformedRequest       the bytes are not OTLP: HTTP 400, gRPC INVALID_ARGUMENT
    * RequestTooLarge        over a limit on requests: HTTP 413, gRPC RESOURCE_EXHAUSTED
    * Unauthenticated        no valid token: HTTP 401, gRPC UNAUTHENTICATED
  * ReceiveError           the request cannot be taken now: 503, UNAVAILABLE, the sender retries
    * Overloaded             too many bytes are in flight
    * SlowSender             the request did not arrive in time
  * JournalError           the bridge's own database
    * JournalLocked          another process has it open
    * JournalFull            no room: HTTP 503, gRPC UNAVAILABLE, the sender retries
    * JournalClosed          the bridge is stopping: HTTP 503, gRPC UNAVAILABLE
    * JournalUnavailable     the database is away: HTTP 503, gRPC UNAVAILABLE
    * JournalGone            removed or replaced under the bridge: HTTP 503, gRPC UNAVAILABLE
    * LeaseLost              the run belongs to another bridge
  * TrackerError
    * TrackerUnavailable     the same rows may be tried again later
    * TrackerRejected        refused until a person changes something
      * RunDiverged            something else wrote to the tracker's run
  * TraceStoreError        a Jaeger that is asked for traces does not answer as one
"""

__all__ = [
    "ConfigError",
    "JournalClosed",
    "JournalError",
    "JournalFull",
    "JournalGone",
    "JournalLocked",
    "JournalUnavailable",
    "LeaseLost",
    "MalformedRequest",
    "OtelRLError",
    "Overloaded",
    "ReceiveError",
    "RequestError",
    "RequestTooLarge",
    "RunDiverged",
    "SlowSender",
    "TraceStoreError",
    "TrackerError",
    "TrackerRejected",
    "TrackerUnavailable",
    "Unauthenticated",
]


class OtelRLError(Exception):
    """Base class: catch this to catch everything that otel_rl raises on purpose.

    Attributes:
        hint: What the reader should do next, as one sentence. Empty if nothing helps.
    """

    hint: str = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint or self.hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} {self.hint}" if self.hint else message


class ConfigError(OtelRLError):
    """A setting or an argument of ``init`` is wrong. Raised before any work begins."""


class RequestError(OtelRLError):
    """The sender's request cannot be taken. Sending it again will not help."""


class MalformedRequest(RequestError):
    """The bytes are not what OTLP says they should be."""


class RequestTooLarge(RequestError):
    """The request has more bytes, counted after decompression, or more parts than it may have."""


class Unauthenticated(RequestError):
    """The bridge wants a bearer token, and the request has none that it knows."""


class ReceiveError(OtelRLError):
    """The request cannot be taken now. Nothing was kept; the sender should retry."""


class Overloaded(ReceiveError):
    """Too many bytes of other requests are in flight."""


class SlowSender(ReceiveError):
    """The request did not arrive in the time that one may take."""


class JournalError(OtelRLError):
    """The bridge's own database cannot do what was asked."""


class JournalLocked(JournalError):
    """Another process has this data directory open."""


class JournalFull(JournalError):
    """There is no room for the batch. Nothing was written; the sender should retry."""


class JournalClosed(JournalError):
    """The bridge is stopping and takes no more batches; the sender should retry."""


class JournalUnavailable(JournalError):
    """The database cannot be reached, or did not answer. What was being written may be there."""


class JournalGone(JournalError):
    """Somebody removed or replaced the database under the bridge: it acknowledges nothing more."""


class LeaseLost(JournalError):
    """Another bridge owns the run, or may own it by now. Nothing was written."""


class TrackerError(OtelRLError):
    """The experiment tracker did not take rows."""


class TrackerUnavailable(TrackerError):
    """The tracker cannot be reached now. The same rows are tried again later."""


class TrackerRejected(TrackerError):
    """The tracker refuses until a person changes something. Rows are kept, the reason is told."""


class RunDiverged(TrackerRejected):
    """The tracker's run has rows that are not ours. It is not written to until a restart."""


class TraceStoreError(OtelRLError):
    """A Jaeger that is asked for traces does not answer, or not as a Jaeger does."""
