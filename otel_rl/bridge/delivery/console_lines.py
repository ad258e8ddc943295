"""Lines of the run's console that a tracker lacks, known by their numbers.

A tracker that counts its lines gets none twice: after a kill, rows are handed over again, and
lines below that count are left out. Lines that are missing there, although their rows are not, keep
their places, so that the count stays right.
"""

from collections.abc import Sequence
from typing import Final

from otel_rl.records import CONSOLE, CONSOLE_COLUMNS, Row

__all__ = ["ConsoleLines"]

_MAX_KEPT_PLACES: Final = 10_000

_NUMBER, _WORKER, _TEXT = map(CONSOLE_COLUMNS.index, ("line", "worker", "text"))


class ConsoleLines:
    """Selects the lines of rows. Used by one thread.

    Args:
        next_line: Number of lines that the tracker has; None if it counts none of ours.
    """

    def __init__(self, next_line: int | None) -> None:
        self._next_line = next_line

    def of(self, row: Row) -> Sequence[str]:
        """Return the lines of a row that the tracker lacks, each with its worker."""
        table = row.tables.get(CONSOLE)
        lines: list[str] = []
        for record in () if table is None else table.rows:
            number = record[_NUMBER]
            if not isinstance(number, int):
                continue
            if self._next_line is None:
                self._next_line = number
            if number < self._next_line:
                continue
            missing = min(number - self._next_line, _MAX_KEPT_PLACES)
            lines += ["[otel_rl: a line is missing here]"] * missing
            lines.append(f"[{record[_WORKER]}] {record[_TEXT]}")
            self._next_line = number + 1
        return lines
