"""Keeps errors of otel_rl out of training: it catches, counts and rarely logs them."""

import logging
import math
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from otel_rl.worker.drops import DropReason, Drops

_LOG_EVERY_S = 60.0
"""A fault in a training loop repeats every step; once a minute does not flood the log."""

_MAX_SAID = 1000
"""Bounds the memory against messages that contain a step or an id."""

_MAX_NAMED = 100
"""Keys whose values are no numbers that are named: keys may contain an id or a step."""

_REMEDY = "Log Python numbers, or arrays and tensors of one element."

_MAX_SUMMED_UP = 10
"""Those of them that a summary names."""

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
    """Catches every ``Exception`` before it reaches training code. Thread-safe.

    ``with guard:`` counts the exception as an internal drop and logs it at most once a minute.
    ``KeyboardInterrupt`` and ``SystemExit`` pass.
    """

    def __init__(self, drops: Drops, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.drops = drops
        self._clock_s = clock_s
        self._next_log_s: dict[str, float] = {}
        self._not_numbers: dict[str, int] = {}
        self._unnamed = 0

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

    def not_a_number(self, name: str, kind: str, remedy: str = _REMEDY) -> None:
        """Count a value that is not a number, and log the first 100 names with the value's kind."""
        self.drops.add(DropReason.NOT_A_NUMBER)
        named = self._not_numbers
        if name in named:
            named[name] += 1
        elif len(named) < _MAX_NAMED:
            named[name] = 1
            _log.warning("%s: not a number (got %s). It is dropped. %s", name, kind, remedy)
        else:
            self._unnamed += 1

    def sum_up(self) -> None:
        """Log how many values were not numbers, if any, and start counting again."""
        named, self._not_numbers = self._not_numbers, {}
        unnamed, self._unnamed = self._unnamed, 0
        values = sum(named.values()) + unnamed
        if not values:
            return
        keys = f"{'more than ' if unnamed else ''}{_counted(len(named), 'key')}"
        shown = ", ".join([*named][:_MAX_SUMMED_UP])
        if len(named) > _MAX_SUMMED_UP:
            shown += " and others"
        was = "was no number and was" if values == 1 else "were no numbers and were"
        _log.warning(f"{_counted(values, 'value')} of {keys} {was} dropped: {shown}.")

    def forget(self) -> None:
        """Start from zero in a forked child, which counts its own losses."""
        self.drops.reset()
        self._not_numbers, self._unnamed = {}, 0
        self._next_log_s = {key: at_s for key, at_s in self._next_log_s.items() if at_s < math.inf}

    def once(self, message: str, level: int = logging.WARNING) -> bool:
        """Log a message that this process has not logged yet. Returns whether it is new."""
        is_new = message not in self._next_log_s and len(self._next_log_s) < _MAX_SAID
        if is_new:
            self._next_log_s[message] = math.inf
            _log.log(level, message)
        return is_new

    def warn(self, key: str, message: str, *, error: BaseException | None = None) -> None:
        """Log ``message`` unless one with the same ``key`` was logged in the last minute."""
        now_s = self._clock_s()
        # Two threads may both pass here and log twice, which is cheaper than a lock.
        if now_s >= self._next_log_s.get(key, float("-inf")):
            self._next_log_s[key] = now_s + _LOG_EVERY_S
            _log.warning(message, exc_info=error)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


GUARD: Final = Guard(Drops())
"""Guard of the whole process: counts its losses before and after ``init``."""
