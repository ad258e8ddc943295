"""Shows the progress of the run: one live line on a terminal, periodic lines elsewhere."""

import shutil
import time
from dataclasses import dataclass
from typing import TextIO

__all__ = ["Progress", "Status"]

LIVE_INTERVAL_S = 0.1
WAITING_INTERVAL_S = 3.0  # of plain lines before the first step
PLAIN_LINES = 12  # of a whole run
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
        self._live = stream.isatty()
        self._shown_at_s = 0.0
        self._waited_at_s = time.monotonic()
        self._shown_step = 0
        self._tokens = 0
        self._tokens_at_s = time.monotonic()
        self._rate = 0.0
        self._last: Status | None = None

    def show(self, status: Status) -> None:
        """Show the status. May be called at any rate."""
        now_s = time.monotonic()
        self._last = status
        if self._live:
            if now_s - self._shown_at_s >= LIVE_INTERVAL_S:
                self._shown_at_s = now_s
                self._write(status, now_s)
        elif self._is_due(status):
            self._shown_step = status.step
            print(self._line(status, now_s), file=self._stream, flush=True)

    def waiting(self, done: int, of: int | None, what: str) -> None:
        """Show how far the start is, before there is a status. May be called at any rate."""
        now_s = time.monotonic()
        interval_s = LIVE_INTERVAL_S if self._live else WAITING_INTERVAL_S
        if now_s - self._waited_at_s >= interval_s:
            self._waited_at_s = now_s
            text = f"{done} {what}" if of is None else f"{done} of {of} {what}"
            begin, end = ("\r\x1b[K", "") if self._live else ("", "\n")
            self._stream.write(begin + text + end)
            self._stream.flush()

    def note(self, text: str) -> None:
        """Print an event on a line of its own."""
        print(("\r\x1b[K" if self._live else "") + text, file=self._stream, flush=True)

    def close(self) -> None:
        """Leave the last status in the live line."""
        if self._live and self._last is not None:
            self._write(self._last, time.monotonic())
            print(file=self._stream, flush=True)

    def _write(self, status: Status, now_s: float) -> None:
        room = shutil.get_terminal_size().columns - 1  # a wrapped line cannot be overwritten
        self._stream.write("\r\x1b[K" + self._line(status, now_s)[:room])
        self._stream.flush()

    def _is_due(self, status: Status) -> bool:
        every = max(1, status.steps // PLAIN_LINES)
        steps_since = status.step - self._shown_step
        return steps_since >= every or (steps_since > 0 and status.step == status.steps)

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
