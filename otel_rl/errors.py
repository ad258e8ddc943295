"""All exceptions that otel_rl raises on purpose.

* OtelRLError
  * ConfigError            a setting is wrong; raised at start only
    * MissingExtra           a library of an extra is not installed
  * RequestError           the sender's request cannot be accepted; never retried
    * MalformedRequest       the bytes are not OTLP: HTTP 400, gRPC INVALID_ARGUMENT
    * RequestTooLarge        over a limit on requests: HTTP 413, gRPC RESOURCE_EXHAUSTED
    * Unauthenticated        no valid token: HTTP 401, gRPC UNAUTHENTICATED
  * ReceiveError           the request cannot be accepted now: 503, UNAVAILABLE, the sender retries
    * Overloaded             too many bytes are in flight
    * SlowSender             the request did not arrive in time
  * JournalError           the bridge's own database
    * JournalLocked          another process has it open
    * JournalFull            no room: HTTP 503, gRPC UNAVAILABLE, the sender retries
    * JournalClosed          the bridge is stopping: HTTP 503, gRPC UNAVAILABLE
    * JournalUnavailable     the database is unreachable: HTTP 503, gRPC UNAVAILABLE
    * JournalGone            removed or replaced under the bridge: HTTP 503, gRPC UNAVAILABLE
    * LeaseLost              the run belongs to another bridge
  * TrackerError
    * TrackerUnavailable     the same rows may be retried later
    * TrackerRejected        refused until an operator acts
      * RunDiverged            the tracker's run has rows of another writer
      * NoTeam                 the run is of no team of the bridge
"""

from otel_rl.extras import how_to_install

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
    "MissingExtra",
    "NoTeam",
    "OtelRLError",
    "Overloaded",
    "ReceiveError",
    "RequestError",
    "RequestTooLarge",
    "RunDiverged",
    "SlowSender",
    "TrackerError",
    "TrackerRejected",
    "TrackerUnavailable",
    "Unauthenticated",
]


class OtelRLError(Exception):
    """Base class of all exceptions that otel_rl raises on purpose.

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
    """A setting or an argument of ``init`` is wrong. Raised at start only."""


class MissingExtra(ConfigError):
    """A library of an extra is not installed.

    Args:
        what: What needs the library, as the beginning of a sentence.
        library: Name under which the library is imported.
        extra: Extra that brings the library.
    """

    def __init__(self, what: str, library: str, extra: str) -> None:
        super().__init__(
            f"{what} needs {library}, which is not installed.",
            hint=f"Install it: {how_to_install(extra)}",
        )


class RequestError(OtelRLError):
    """The request is refused for good; the sender should not repeat it."""


class MalformedRequest(RequestError):
    """The bytes are not OTLP."""


class RequestTooLarge(RequestError):
    """The request has too many bytes, decompressed, or too many parts."""


class Unauthenticated(RequestError):
    """The request has no valid bearer token."""


class ReceiveError(OtelRLError):
    """The request is refused for now and nothing is kept; the sender should retry."""


class Overloaded(ReceiveError):
    """Too many bytes of requests are in flight."""


class SlowSender(ReceiveError):
    """The request did not arrive in time."""


class JournalError(OtelRLError):
    """The bridge's own database failed."""


class JournalLocked(JournalError):
    """Another process has this data directory open."""


class JournalFull(JournalError):
    """There is no room for the batch. Nothing was written; the sender should retry."""


class JournalClosed(JournalError):
    """The bridge is stopping; the sender should retry."""


class JournalUnavailable(JournalError):
    """The database is unreachable or did not answer. An unfinished write may have succeeded."""


class JournalGone(JournalError):
    """The database was removed or replaced; nothing more is acknowledged."""


class LeaseLost(JournalError):
    """Another bridge may own the run. Nothing was written."""


class TrackerError(OtelRLError):
    """The experiment tracker did not accept rows."""


class TrackerUnavailable(TrackerError):
    """The tracker is unreachable. The same rows are retried later."""


class TrackerRejected(TrackerError):
    """The tracker refuses the rows until an operator acts. The rows are kept."""


class RunDiverged(TrackerRejected):
    """The tracker's run has rows of another writer. The run is not written until a restart."""


class NoTeam(TrackerRejected):
    """The bridge has teams, and the run belongs to none: its rows go to nobody's account."""

    def __init__(self, experiment: str) -> None:
        super().__init__(
            f"No team has the experiment {experiment!r}.",
            hint="Name it in `experiments` of a team, or delete the run.",
        )
