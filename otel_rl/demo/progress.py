"""Says how far the run is: a line now and then, and one for each event."""

import time
from dataclasses import dataclass
from typing import TextIO

__all__ = ["Progress", "Status"]

WAITING_INTERVAL_S = 3.0  # of lines before the first step
LINES = 12  # of a whole run
REWARD_BAR = 10


@dataclass(frozen=True, slots=True)
class Status:
    """Snapshot of the run.

    Attributes:
        step: Policy updates so far.
        steps: Of the whole run.
        reward: Mean of the last batch, from 0 to 1.
        tokens: Generated so far.
        staleness: Mean age of the last batch, in policy versions.
        buffered: Samples in the replay buffer.
        buffer_limit: Capacity in samples.
        alive: Living processes.
        expected: Expected processes.
    """

    step: int
    steps: int
    reward: float
    tokens: int
    staleness: float
    buffered: int
    buffer_limit: int
    alive: int
    expected: int


class Progress:
    """Writes to one stream. One thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waited_at_s = time.monotonic()
        self._shown_step = 0
        self._tokens = 0
        self._tokens_at_s = time.monotonic()
        self._rate = 0.0

    def show(self, status: Status) -> None:
        """Show the status if it is due. May be called at any rate."""
        steps_since = status.step - self._shown_step
        is_last = steps_since > 0 and status.step == status.steps
        if is_last or steps_since >= max(1, status.steps // LINES):
            self._shown_step = status.step
            self.note(self._line(status, time.monotonic()))

    def waiting(self, done: int, of: int | None, what: str) -> None:
        """Show how far the start is, before there is a status. May be called at any rate."""
        now_s = time.monotonic()
        if now_s - self._waited_at_s >= WAITING_INTERVAL_S:
            self._waited_at_s = now_s
            self.note(f"{done} {what}" if of is None else f"{done} of {of} {what}")

    def note(self, text: str) -> None:
        """Print an event."""
        print(text, file=self._stream, flush=True)

    def _line(self, status: Status, now_s: float) -> str:
        if now_s - self._tokens_at_s >= 1.0:
            self._rate = (status.tokens - self._tokens) / (now_s - self._tokens_at_s)
            self._tokens, self._tokens_at_s = status.tokens, now_s
        bar = "#" * round(status.reward * REWARD_BAR)
        return (
            f"step {status.step:>3}/{status.steps}"
            f"  reward {status.reward:.2f} [{bar:<{REWARD_BAR}}]"
            f"  {self._rate:5.0f} tokens/s"
            f"  staleness {status.staleness:.1f}"
            f"  buffer {status.buffered:>3}/{status.buffer_limit} samples"
            f"  workers {status.alive}/{status.expected}"
        )
