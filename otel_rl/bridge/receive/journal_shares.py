"""Share of the journal that the experiments of each token may use together.

Usage covers everything of a run: its batches and all that was made of them. A request is refused
once its token has used up its share. No more batches are made into rows once what was made uses up
the share, and begun steps stay open once the rows alone do: rows may be several times larger than
the batches and the state that they are made of. The journal has room for more than the shares, as
what is under way when a share is used up is stored.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from otel_rl.bridge.journal.interface import Use
from otel_rl.bridge.receive.tokens import TokenShares
from otel_rl.errors import JournalError, JournalFull
from otel_rl.records import Batch, ExperimentKey

_ASK_EVERY_S = 1.0


class JournalShares:
    """Holds each token to its share of the journal. Any thread may call any method.

    Bytes taken since the last query of the journal are added to the query's result, so none is
    missed; room that was freed in between counts from the next query on.

    Args:
        in_use: Returns the bytes of each run; it is called at most once a second.
        owner_of: Returns the token of an experiment.
    """

    def __init__(
        self,
        shares: TokenShares,
        max_bytes: int,
        in_use: Callable[[], Mapping[ExperimentKey, Use]],
        owner_of: Callable[[ExperimentKey], str],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shares = shares
        self._max_bytes = max_bytes
        self._in_use = in_use
        self._owner_of = owner_of
        self._clock_s = clock_s
        # _lock guards everything below. The journal is queried without it.
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()
        self._made: Counter[str] = Counter()  # the part of it that is not batches
        self._rows: Counter[str] = Counter()  # the part of that which is rows
        self._since: Counter[str] = Counter()  # taken since the last query of the journal
        self._rows_since: Counter[str] = Counter()  # rows made since then
        self._is_asking = False
        self._next_s = 0.0

    @property
    def is_shared(self) -> bool:
        return self._shares.are_needed

    def take(self, batches: Sequence[Batch]) -> None:
        """Count batches that are about to be stored.

        Raises:
            JournalFull: The token of an experiment is over its share.
        """
        if not self.is_shared:
            return
        sizes: Counter[str] = Counter()
        for batch in batches:
            sizes[self._owner_of(batch.experiment)] += len(batch.payload)
        self._ask_if_due()
        with self._lock:
            for token, size in sizes.items():
                used = self._used[token] + self._since[token]
                share = self._shares.of(token, self._max_bytes)
                # A batch larger than the share is taken when nothing else is held; otherwise it
                # would never fit.
                if used and used + size > share:
                    raise _full(token, used, share)
            self._since += sizes

    def is_left(self, key: ExperimentKey) -> bool:
        """Return whether more of the tenant's batches may be made into rows."""
        if not self.is_shared:
            return True
        self._ask_if_due()
        token = self._owner_of(key)
        with self._lock:
            return self._made[token] < self._shares.of(token, self._max_bytes)

    def is_left_for_rows(self, key: ExperimentKey) -> bool:
        """Return whether the tenant's begun steps may become rows."""
        if not self.is_shared:
            return True
        self._ask_if_due()
        token = self._owner_of(key)
        with self._lock:
            rows = self._rows[token] + self._rows_since[token]
            return rows < self._shares.of(token, self._max_bytes)

    def add_rows(self, key: ExperimentKey, n_bytes: int) -> None:
        """Count stored rows."""
        if self.is_shared and n_bytes:
            token = self._owner_of(key)
            with self._lock:
                self._rows_since[token] += n_bytes

    def _ask_if_due(self) -> None:
        with self._lock:
            is_due = not self._is_asking and self._clock_s() >= self._next_s
            self._is_asking |= is_due
        if is_due:
            self._ask()

    def _ask(self) -> None:
        with self._lock:
            before, rows_before = self._since.copy(), self._rows_since.copy()
        used: Counter[str] = Counter()
        made: Counter[str] = Counter()
        rows: Counter[str] = Counter()
        try:
            for key, use in self._in_use().items():
                token = self._owner_of(key)
                used[token] += use.total
                made[token] += use.made
                rows[token] += use.rows
        except JournalError:
            return  # the next writer gets the error; the figures stay
        else:
            with self._lock:
                self._used, self._made, self._rows = used, made, rows
                self._since -= before  # in the answer, or never stored
                self._rows_since -= rows_before
        finally:
            with self._lock:
                self._is_asking = False
                self._next_s = self._clock_s() + _ASK_EVERY_S


def _full(token: str, used: int, share: int) -> JournalFull:
    return JournalFull(
        f"The experiments of token {token} have {used} bytes in the journal, of which its share is"
        f" {share}.",
        hint="Raise its share or journal.max_bytes; senders retry meanwhile.",
    )
