"""Makes the batches of requests durable, and notifies the stage that makes rows of them."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from otel_rl.bridge.counters import Counter, Counters
from otel_rl.bridge.ingest.admission.journal_shares import JournalShares
from otel_rl.bridge.journal.presence import JournalPresence
from otel_rl.bridge.journal.spool import Spool
from otel_rl.errors import JournalFull, JournalGone
from otel_rl.records import Batch

__all__ = ["DurableBatches"]


class DurableBatches:
    """Last step before a request is acknowledged. Any thread may call any method.

    Args:
        spool: Where batches are kept.
        room: Holds tenants to their shares.
        presence: Told whether the journal is there.
        counters: Of the bridge.
        kept: Called after each request; from a thread of the journal, perhaps.
    """

    def __init__(
        self,
        spool: Spool,
        room: JournalShares,
        presence: JournalPresence,
        counters: Counters,
        kept: Callable[[], None],
    ) -> None:
        self._spool = spool
        self._room = room
        self._presence = presence
        self._counters = counters
        self._kept = kept

    def keep(self, batches: Sequence[Batch]) -> None:
        """Store the batches of a request: they are durable when this returns.

        Raises:
            JournalFull: No room, or none in a tenant's share; the sender retries.
            JournalClosed: The bridge is stopping; the sender retries.
            JournalGone: The journal was removed; the sender retries.
        """
        self._room.take(batches)
        try:
            self._spool.append(batches)
        except JournalGone as exc:
            self._presence.gone(exc)
            raise
        self._were_kept(len(batches))

    def keep_together(
        self, requests: Sequence[Sequence[Batch]]
    ) -> Future[Sequence[JournalFull | None]] | None:
        """Begin to store the batches of several requests in one transaction, without waiting.

        Returns:
            Done once they are durable, or with an error as of ``keep``; it cannot be cancelled. The
            result has a JournalFull for each request that found no room. None where this journal,
            or shares of it, make the caller wait: nothing was begun.

        Raises:
            JournalClosed: The bridge is stopping; the sender retries.
        """
        if self._room.is_shared:
            return None
        appended = self._spool.append_together(requests)
        if appended is None:
            return None
        kept: Future[Sequence[JournalFull | None]] = Future()
        kept.set_running_or_notify_cancel()
        appended.add_done_callback(partial(self._settle, kept, [*map(len, requests)]))
        return kept

    def _settle(
        self,
        kept: Future[Sequence[JournalFull | None]],
        sizes: Sequence[int],
        appended: Future[Sequence[JournalFull | None]],
    ) -> None:
        error = appended.exception()
        if isinstance(error, JournalGone):
            self._presence.gone(error)
        if error is not None:
            kept.set_exception(error)
            return
        full = appended.result()
        n = sum(size for size, exc in zip(sizes, full, strict=True) if exc is None)
        if n:
            self._were_kept(n)
        kept.set_result(full)

    def _were_kept(self, n: int) -> None:
        self._presence.there()
        self._counters.add(Counter.BATCHES_SPOOLED, n)
        self._kept()
