"""Keeps errors of otel_rl out of training: catches, counts and rarely logs them."""

import logging
import sys
import time
from collections.abc import Callable
from types import TracebackType

from otel_rl.worker.drops import DropReason, Drops

__all__ = ["Guard"]

_LOG_EVERY_S = 60.0
"""A fault in a training loop repeats every step; once a minute does not flood the log."""

_log = logging.getLogger("otel_rl")


class _Unconfigured(logging.Handler):
    """Writes ``otel_rl: <message>`` where a program has configured no logging.

    Python's last resort would write the message alone, without the name of the library.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or len(_log.handlers) > 1:
            return
        try:
            sys.stderr.write(f"otel_rl: {self.format(record)}\n")
        except (AttributeError, OSError, ValueError):  # standard error is closed, or there is none
            self.handleError(record)


_log.addHandler(_Unconfigured(logging.WARNING))


class Guard:
    """Catches every ``Exception`` before it reaches training code. One per process; thread-safe.

    ``with guard:`` counts the exception as an internal drop and logs it at most once a minute.
    ``KeyboardInterrupt`` and ``SystemExit`` pass.

    Args:
        drops: Where the losses are counted.
        clock_s: Monotonic seconds.
    """

    def __init__(self, drops: Drops, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.drops = drops
        self._clock_s = clock_s
        self._next_log_s: dict[str, float] = {}

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.caught(error)
        return True

    def caught(self, error: Exception) -> None:
        """Count an unexpected error as one lost measurement and log its traceback."""
        self.drops.add(DropReason.INTERNAL)
        self.warn(
            f"internal:{type(error).__name__}",
            "otel_rl failed inside and dropped a measurement; training goes on. "
            "Please report this.",
            error=error,
        )

    def drop(self, reason: DropReason, message: str, count: int = 1) -> None:
        """Count ``count`` measurements under ``reason``; log the message at most once a minute."""
        self.drops.add(reason, count)
        self.warn(reason.value, message)

    def warn(self, key: str, message: str, *, error: BaseException | None = None) -> None:
        """Log ``message`` unless one with the same ``key`` was logged in the last minute."""
        now_s = self._clock_s()
        # Two threads may both pass here and log twice, which is cheaper than a lock.
        if now_s >= self._next_log_s.get(key, float("-inf")):
            self._next_log_s[key] = now_s + _LOG_EVERY_S
            _log.warning(message, exc_info=error)
