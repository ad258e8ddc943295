"""How much of the journal the experiments of each token may take together."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from otel_rl.bridge.receive.shares import Shares
from otel_rl.errors import JournalError, JournalFull
from otel_rl.records import Batch, ExperimentKey

__all__ = ["JournalShares"]

_ASK_EVERY_S = 1.0


class JournalShares:
    """Refuses batches of a token that has its share of the journal. Any thread may call it.

    What was taken since the journal was last asked is added to its answer, so nothing slips
    through; what was written to a tracker in between makes room with the next answer.

    Args:
        shares: Of each token.
        max_bytes: Of the journal.
        in_use: Bytes of each run, asked at most once a second.
        owner_of: The token whose an experiment is.
        clock_s: Seconds that never go back.
    """

    def __init__(
        self,
        shares: Shares,
        max_bytes: int,
        in_use: Callable[[], Mapping[ExperimentKey, int]],
        owner_of: Callable[[ExperimentKey], str],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shares = shares
        self._max_bytes = max_bytes
        self._in_use = in_use
        self._owner_of = owner_of
        self._clock_s = clock_s
        # _lock guards everything below. The journal is asked without it.
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()
        self._since: Counter[str] = Counter()  # what was taken since the journal was asked
        self._is_asking = False
        self._next_s = 0.0
        if shares.are_needed:
            self._ask()

    def take(self, batches: Sequence[Batch]) -> None:
        """Count what is about to be kept.

        Raises:
            JournalFull: It is over the share of the token whose an experiment is.
        """
        if not self._shares.are_needed:
            return
        sizes: Counter[str] = Counter()
        for batch in batches:
            sizes[self._owner_of(batch.experiment)] += len(batch.payload)
        with self._lock:
            is_due = not self._is_asking and self._clock_s() >= self._next_s
            self._is_asking |= is_due
        if is_due:
            self._ask()
        with self._lock:
            for token, size in sizes.items():
                used = self._used[token] + self._since[token]
                share = self._shares.of(token, self._max_bytes)
                # What is larger than the share is taken when there is nothing else, or it never
                # fits.
                if used and used + size > share:
                    raise JournalFull(
                        f"The experiments of token {token} have {used} bytes in the journal, of"
                        f" which its share is {share}.",
                        hint="Raise its share or journal.max_bytes; senders retry meanwhile.",
                    )
            self._since += sizes

    def _ask(self) -> None:
        with self._lock:
            before = self._since.copy()
        used: Counter[str] = Counter()
        try:
            for key, size in self._in_use().items():
                used[self._owner_of(key)] += size
        except JournalError:
            return  # whoever writes next will be told; the numbers stay
        else:
            with self._lock:
                self._used = used
                self._since -= before  # in the answer, or never kept
        finally:
            with self._lock:
                self._is_asking = False
                self._next_s = self._clock_s() + _ASK_EVERY_S
