"""Stores the requests that are complete in one pass of the event loop in one transaction."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from otel_rl.bridge.ingest.pipeline import AcceptTogether
from otel_rl.errors import JournalFull
from otel_rl.records import Batch

__all__ = ["StoredTogether"]

_Done = Callable[[bool | BaseException], None]
_Waiting = tuple[Sequence[Batch], _Done]


class StoredTogether:
    """Requests that wait for the disk without a thread. Used on one event loop.

    One transaction, and one message between threads, costs as much as a request or more.

    Args:
        accept: Begins to store the batches of several requests.
        answered: Called once those who wait know that they are stored.
    """

    def __init__(self, accept: AcceptTogether, answered: Callable[[], None]) -> None:
        self._accept = accept
        self._answered = answered
        self._waiting: list[_Waiting] = []

    def begin(self, batches: Sequence[Batch], done: _Done) -> None:
        """Begin to store the batches of a request.

        Args:
            batches: Of one request.
            done: Called on the event loop with whether that is done, or else a thread has to; or
                with an error.
        """
        if not self._waiting:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._store, loop)  # behind the requests that are being read now
        self._waiting.append((batches, done))

    async def keep(self, batches: Sequence[Batch]) -> bool:
        """Store the batches of a request. Returns whether that is done; else a thread has to.

        Raises:
            JournalError: The sender should send this again.
        """
        kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.begin(batches, partial(_tell, kept))
        return await kept

    def _store(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            storing = self._accept([batches for batches, _ in waiting])
        except Exception as exc:  # noqa: BLE001  # handed to those who wait
            _settle(waiting, [exc] * len(waiting))
            return
        if storing is None:
            _settle(waiting, [False] * len(waiting))
            return
        storing.add_done_callback(
            lambda stored: loop.call_soon_threadsafe(self._stored, waiting, stored)
        )

    def _stored(
        self, waiting: Sequence[_Waiting], stored: Future[Sequence[JournalFull | None]]
    ) -> None:
        error = stored.exception()
        if error is not None:
            _settle(waiting, [error] * len(waiting))
            return
        _settle(waiting, [True if full is None else full for full in stored.result()])
        self._answered()


def _settle(waiting: Sequence[_Waiting], outcomes: Sequence[bool | BaseException]) -> None:
    for (_, done), outcome in zip(waiting, outcomes, strict=True):
        try:
            done(outcome)
        except Exception as exc:  # noqa: BLE001  # one of them, as the event loop does
            report = {"message": "An answer could not be given.", "exception": exc}
            asyncio.get_running_loop().call_exception_handler(report)


def _tell(kept: "asyncio.Future[bool]", outcome: bool | BaseException) -> None:  # noqa: FBT001
    if kept.done():  # cut off meanwhile
        return
    if isinstance(outcome, BaseException):
        kept.set_exception(outcome)
    else:
        kept.set_result(outcome)
