"""Parent side of a writer process: a Tracker that forwards its calls."""

from collections.abc import Sequence
from typing import Self, TypeVar

from otel_rl.bridge.delivery.tracker_interface import RunInfo, WriterTimeouts
from otel_rl.bridge.delivery.trackers import backend
from otel_rl.bridge.delivery.writer_messages import (
    Close,
    Closed,
    Describe,
    Described,
    Flush,
    Flushed,
    Open,
    Ready,
    Rejected,
    Reply,
    Request,
    Unavailable,
    Write,
    Written,
)
from otel_rl.bridge.delivery.writer_process import Channel, OwnProcess, WriterHost
from otel_rl.errors import TrackerRejected, TrackerUnavailable
from otel_rl.records import Description, Row

__all__ = ["WriterProcess"]

# Only a hanging writer reaches these, like those of ``WriterTimeouts``.
_WRITE_TIMEOUT_S = 300.0  # a tracker may block while its own buffer is full
_FLUSH_GRACE_S = 60.0

_ReplyT = TypeVar("_ReplyT", bound=Reply)


class WriterProcess:
    """Runs a tracker in another process. Use it once, as a context manager.

    In addition to a Tracker's errors, every method raises TrackerUnavailable if the process has
    died or does not answer in time. After any error, leave the context and start another: a process
    whose tracker library has failed is in an unknown state. Leaving ends the process, even if it is
    busy.

    ``kill`` may be called from any thread, at any time; everything else from one.

    Args:
        tracker: Its name.
        host: Where the writer runs; in a process of its own if not given.
    """

    def __init__(self, tracker: str, host: WriterHost | None = None) -> None:
        self._tracker = tracker
        self._host = host or OwnProcess(tracker)
        self._connection: Channel | None = None
        self._location = ""
        self._patience = WriterTimeouts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def pid(self) -> int | None:
        """Return the pid of the process, or None before ``open``."""
        return self._host.pid

    def open(self, run: RunInfo, /) -> int:
        """Start the process and open the run in it."""
        self._patience = backend(self._tracker).patience(dict(run.attributes))
        self._connection = self._host.start(run)
        ready = self._ask(Open(self._tracker, run), Ready, timeout_s=self._patience.open_s)
        self._location = ready.location
        return ready.next_row

    def write(self, rows: Sequence[Row], /) -> None:
        """Hand over rows; returns when the tracker has taken them."""
        self._ask(Write(rows), Written, timeout_s=_WRITE_TIMEOUT_S)

    def describe(self, description: Description, /) -> None:
        """See ``Tracker.describe``."""
        self._ask(Describe(description), Described, timeout_s=_WRITE_TIMEOUT_S)

    def flush(self, *, timeout_s: float) -> int | None:
        """See ``Tracker.flush``."""
        return self._ask(Flush(timeout_s), Flushed, timeout_s=timeout_s + _FLUSH_GRACE_S).safe_row

    def location(self) -> str:
        """See ``Tracker.location``."""
        return self._location

    def close(self, *, exit_code: int) -> int | None:
        """Finish the run and wait for the process to end."""
        closed = self._ask(Close(exit_code), Closed, timeout_s=self._patience.close_s)
        self._host.closed()
        return closed.safe_row

    def kill(self) -> None:
        """End the writer at once. Idempotent."""
        self._host.kill()

    def _ask(self, request: Request, expected: type[_ReplyT], *, timeout_s: float) -> _ReplyT:
        connection = self._connection  # ``__exit__`` of another thread may take it away
        if connection is None:
            raise TrackerUnavailable("The run is not open.")
        is_sent = False
        try:
            connection.send(request)
            is_sent = True
            if not connection.poll(timeout_s):
                raise TrackerUnavailable(
                    f"The tracker {self._tracker} did not answer in {timeout_s:.0f} s.",
                    hint=f"Its messages are in {self._host.log}.",
                )
            reply = connection.recv()
        except (EOFError, OSError) as exc:
            if is_sent:
                self._host.lost()
            raise TrackerUnavailable(
                f"The writer process of {self._tracker} died.",
                hint=f"Its last messages are in {self._host.log}.",
            ) from exc
        match reply:
            case Unavailable(message, hint):
                raise TrackerUnavailable(message, hint=hint)
            case Rejected(message, hint):
                raise TrackerRejected(message, hint=hint)
        if not isinstance(reply, expected):
            raise TrackerUnavailable(f"The writer process answered {type(reply).__name__}.")
        return reply
