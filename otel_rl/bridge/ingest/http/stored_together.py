"""Stores the requests that are complete in one pass of the event loop in one transaction."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from otel_rl.bridge.ingest.pipeline import AcceptTogether
from otel_rl.errors import JournalFull
from otel_rl.records import Batch

__all__ = ["StoredTogether"]

_Waiting = tuple[Sequence[Batch], "asyncio.Future[bool]"]


class StoredTogether:
    """Requests that wait for the disk without a thread. Used on one event loop.

    One transaction, and one message between threads, costs as much as a request or more.

    Args:
        accept: Begins to store the batches of several requests.
    """

    def __init__(self, accept: AcceptTogether) -> None:
        self._accept = accept
        self._waiting: list[_Waiting] = []

    async def keep(self, batches: Sequence[Batch]) -> bool:
        """Store the batches of a request. Returns whether that is done; else a thread has to.

        Raises:
            JournalError: The sender should send this again.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._store, loop)  # behind the requests that are being read now
        kept: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((batches, kept))
        return await kept

    def _store(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            storing = self._accept([batches for batches, _ in waiting])
        except Exception as exc:  # noqa: BLE001  # handed to those who wait
            _fail(waiting, exc)
            return
        if storing is None:
            _settle(waiting, [None] * len(waiting), is_kept=False)
            return
        storing.add_done_callback(
            lambda stored: loop.call_soon_threadsafe(partial(_stored, waiting, stored))
        )


def _stored(waiting: Sequence[_Waiting], stored: Future[Sequence[JournalFull | None]]) -> None:
    error = stored.exception()
    if error is not None:
        _fail(waiting, error)
    else:
        _settle(waiting, stored.result(), is_kept=True)


def _fail(waiting: Sequence[_Waiting], error: BaseException) -> None:
    for _, kept in waiting:
        if not kept.done():  # cut off meanwhile
            kept.set_exception(error)


def _settle(
    waiting: Sequence[_Waiting], full: Sequence[JournalFull | None], *, is_kept: bool
) -> None:
    for (_, kept), exc in zip(waiting, full, strict=True):
        if kept.done():  # cut off meanwhile
            continue
        if exc is not None:
            kept.set_exception(exc)
        else:
            kept.set_result(is_kept)
