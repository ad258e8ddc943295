"""Conversions that several trackers share: texts, values, metadata of a run, console lines."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from otel_rl.records import CONSOLE, CONSOLE_COLUMNS, Description, Row, Value

_MAX_KEPT_PLACES: Final = 10_000

_NUMBER, _WORKER, _TEXT = map(CONSOLE_COLUMNS.index, ("line", "worker", "text"))


def storable_text(text: str) -> str:
    r"""Return a text with lone surrogates, which UTF-8 cannot hold, written as ``\udc80``."""
    return text.encode("utf-8", "backslashreplace").decode()


def storable(value: Value, *, keeps_nan: bool = False) -> Value:
    """Return a value with all texts and numbers in a form that JSON can store.

    Args:
        value: Value of any depth.
        keeps_nan: Whether the tracker gets NaN and infinities as they are; they become texts
            otherwise.
    """
    match value:
        case float() if not keeps_nan and not math.isfinite(value):
            return str(value)
        case str():
            return storable_text(value)
        case Mapping():
            return {
                storable_text(str(key)): storable(item, keeps_nan=keeps_nan)
                for key, item in value.items()
            }
        case Sequence():
            return [storable(item, keeps_nan=keeps_nan) for item in value]
    return value


def metadata_of(description: Description) -> dict[str, Value]:
    """Return a run's metadata beside its config, without empty entries."""
    crash = description.crash
    known: dict[str, Value] = {
        "notes": description.notes,
        "tags": [*description.tags],
        "group": description.group,
        "job_type": description.job_type,
        "hosts": dict(description.hosts),
        "status": str(description.status),
        "crash": "" if crash is None else f"{crash.as_crash}: {crash.message}".rstrip(": "),
    }
    return {name: value for name, value in known.items() if value}


class ConsoleLines:
    """Selects the console lines that a tracker lacks, by their numbers. One thread uses it.

    A tracker that counts its lines gets no line twice: after a kill, rows are handed over again,
    and lines below the tracker's count are left out. Lines that the tracker lacks, although it has
    their rows, keep their places, so that the count stays right.

    Args:
        next_line: Number of lines that the tracker has; None if it does not count our lines.
    """

    def __init__(self, next_line: int | None) -> None:
        self._next_line = next_line

    def of(self, row: Row) -> Sequence[str]:
        """Return the lines of a row that the tracker lacks, each with its worker's name."""
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
