"""Writes each run to a file of JSON lines, for use without a tracker and for tests.

The file is ``<directory>/<run id>.jsonl``; each line is one row:

    {"number": 7, "step": 3, "attempt": 1, "time_ns": 1700000000000000000, "policy_version": null,
     "values": {"trainer/loss": 0.25, "trainer/grad/norm": "NaN"}}

Where an attempt repeats steps, the rows of the newest count.

A row of text samples has no values but
``"tables": {"trainer/samples": {"columns": ["step", ...], "data": [[3, ...], ...]}}``.
A row that explains a step has texts as well: ``"labels": {"critical_path/worker": "trainer-3"}``.

Beside it, ``<run id>.run.json`` holds the run's metadata: config, notes, tags, group, job type,
attempts and status. ``<run id>.journal`` names the journal of the rows.

``<run id>.console.log`` holds the lines of the workers' consoles, ``[trainer/0] ...``.

A row counts as safe when its line was synced and read back from the file of that name: a disk may
be full, and a file may be removed or replaced while it is written.

JSON has no NaN and no infinities. They are the strings "NaN", "Infinity" and "-Infinity", which
``float()`` reads in Python and ``Number()`` in JavaScript.
"""

import dataclasses
import json
import logging
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from io import BufferedRandom
from pathlib import Path

from otel_rl.bridge.delivery.console_lines import ConsoleLines
from otel_rl.bridge.delivery.local_files.file_errors import not_opened, unavailable
from otel_rl.bridge.delivery.local_files.journal_mark import check_journal
from otel_rl.bridge.delivery.local_files.read_back import ReadBack
from otel_rl.bridge.delivery.tracker_interface import RunInfo
from otel_rl.bridge.journal.formats.row_format import fast_json
from otel_rl.errors import TrackerUnavailable
from otel_rl.records import CONSOLE, Description, Row, Value

__all__ = ["JsonLinesTracker"]

_log = logging.getLogger(__name__)

_CHUNK = 1 << 20  # bytes


class JsonLinesTracker:
    """Appends rows to one file per run. A partial last line of a crash is cut off on open."""

    def __init__(self) -> None:
        self._path = Path()
        self._file: BufferedRandom | None = None
        self._console: BufferedRandom | None = None  # opened when there is a line for it
        self._console_lines = ConsoleLines(0)
        self._next_row = 0
        self._written = ReadBack()  # the end of the rows, in bytes

    def open(self, run: RunInfo, /) -> int:
        """Open the file, and resume after its last row, or before the first missing one."""
        self._path = run.directory / f"{run.run_id}.jsonl"
        try:
            self._file = self._path.open("r+b" if self._path.exists() else "w+b")
            end, self._next_row = _end_of_rows(self._file)
            check_journal(
                self._path.with_suffix(".journal"),
                run.journal,
                rows=self._next_row,
                place=self._path,
                kind="file",
            )
            self._file.truncate(end)
            sound_end, self._next_row = _end_before_gap(self._file, end, self._next_row)
            if sound_end < end:
                _log.warning("%s: has no row %d, but later ones.", self._path, self._next_row)
            self._written = ReadBack(sound_end)
            self._file.seek(sound_end)
            _sync_names(run.directory)
        except OSError as exc:
            raise not_opened(self._path, exc, self._path.parent) from exc
        self.describe(run.description)
        return self._next_row

    def describe(self, description: Description, /) -> None:
        """Write the description to its own file."""
        path = self._path.with_suffix(".run.json")
        new = path.with_suffix(".json.new")
        try:
            new.write_text(json.dumps(_named(dataclasses.asdict(description)), indent=2) + "\n")
            new.replace(path)
        except OSError as exc:
            raise self._unavailable(exc) from exc

    def write(self, rows: Sequence[Row], /) -> None:
        """Append the rows; the operating system has them when this returns."""
        if not rows:
            return
        file = self._opened()
        lines = b"".join(_line(row) for row in rows)
        try:
            self._write_console(rows)
            # Rows after a gap are written anew, now that the missing ones are here.
            if os.fstat(file.fileno()).st_size > self._written.end:
                file.truncate(self._written.end)
            file.write(lines)
            file.flush()
        except OSError as exc:
            raise self._unavailable(exc) from exc
        self._written.appended(lines)
        self._next_row = rows[-1].number + 1

    def flush(self, *, timeout_s: float) -> int:  # noqa: ARG002  # fsync cannot be bounded
        """Sync the rows to disk, so that they survive a power cut, and read them back."""
        try:
            if self._console is not None:  # before its rows
                os.fsync(self._console.fileno())
            self._written.check(self._opened(), self._path)
        except OSError as exc:
            raise self._unavailable(exc) from exc
        return self._next_row

    def location(self) -> str:
        """Return the path of the file."""
        return str(self._path)

    def close(self, *, exit_code: int) -> int:  # noqa: ARG002  # a file of rows has no state
        """Flush, read back and close the file."""
        if self._file is not None:
            self.flush(timeout_s=0)
            try:
                self._file.close()
                if self._console is not None:
                    self._console.close()
            except OSError as exc:
                raise self._unavailable(exc) from exc
            self._file = self._console = None
        return self._next_row

    def _write_console(self, rows: Sequence[Row]) -> None:
        """Append the lines that the file lacks; the operating system has them on return."""
        if not any(CONSOLE in row.tables for row in rows):
            return
        if self._console is None:
            path = self._path.with_suffix(".console.log")
            self._console = path.open("r+b" if path.exists() else "w+b")
            end, lines = _end_of_lines(self._console)
            self._console.truncate(end)
            self._console.seek(end)
            self._console_lines = ConsoleLines(lines)
        lacking = [f"{line}\n" for row in rows for line in self._console_lines.of(row)]
        self._console.write("".join(lacking).encode(errors="backslashreplace"))
        self._console.flush()

    def _unavailable(self, exc: OSError) -> TrackerUnavailable:
        return unavailable(self._path, exc, self._path.parent)

    def _opened(self) -> BufferedRandom:
        if self._file is None:
            raise TrackerUnavailable(f"{self._path}: is not open.")
        return self._file


def _sync_names(directory: Path) -> None:
    """Sync the names of new files."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _line(row: Row) -> bytes:
    record: dict[str, object] = {
        "number": row.number,
        "step": row.step,
        "attempt": row.attempt,
        "time_ns": row.time_ns,
        "policy_version": row.policy_version,
        "values": row.values,
    }
    if row.labels:
        record["labels"] = dict(row.labels)
    line = None if row.tables else fast_json(record, row.values.values())
    # Other text is escaped: some readers take further characters for the end of a line.
    if line is not None and line.isascii():
        return line + b"\n"
    record["values"] = {key: _named(value) for key, value in row.values.items()}
    tables = {
        key: {
            "columns": table.columns,
            "data": [[_named(v) for v in line] for line in table.rows],
        }
        for key, table in row.tables.items()
        if key != CONSOLE
    }
    if tables:
        record["tables"] = tables
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _named(value: Value) -> Value:
    """Return the value as JSON."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case str():
            return value
        case Mapping():
            return {key: _named(item) for key, item in value.items()}
        case Sequence():
            return [_named(item) for item in value]
    return value


def _end_of_rows(file: BufferedRandom) -> tuple[int, int]:
    """Return the end of the last complete row, and the number of the row after it."""
    if not os.fstat(file.fileno()).st_size:
        return 0, 0
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = content.rfind(b"\n") + 1
        while end:
            start = content.rfind(b"\n", 0, end - 1) + 1
            number = _number(content[start:end])
            if number is not None:
                return end, number + 1
            end = start
    return 0, 0


def _end_before_gap(file: BufferedRandom, end: int, next_row: int) -> tuple[int, int]:
    """Return the end of the rows that are consecutive from 0, and the number of the next one.

    A power cut can leave a gap before later rows, because blocks of a file reach the disk in any
    order.

    Args:
        file: A file of whole lines.
        end: End of the last complete row.
        next_row: Number of the row after it.
    """
    file.seek(0)
    lines, left, has_zeros = 0, end, False
    while left and (chunk := file.read(min(_CHUNK, left))):
        lines += chunk.count(b"\n")
        has_zeros = has_zeros or b"\0" in chunk  # which JSON never has
        left -= len(chunk)
    if lines == next_row and not has_zeros:
        return end, next_row
    file.seek(0)
    position = 0
    for number, line in enumerate(file):
        if _number(line) != number:
            return position, number
        position += len(line)
    return position, next_row


def _end_of_lines(file: BufferedRandom) -> tuple[int, int]:
    """Return the end of the last complete line, and the number of lines."""
    file.seek(0)
    position = end = lines = 0
    while chunk := file.read(_CHUNK):
        lines += chunk.count(b"\n")
        end = position + last + 1 if (last := chunk.rfind(b"\n")) >= 0 else end
        position += len(chunk)
    return end, lines


def _number(line: bytes) -> int | None:
    # A power cut can leave zeros or a mixture of two lines: such a line is no row.
    try:
        record = json.loads(line)
    except ValueError:
        return None
    number = record.get("number") if isinstance(record, dict) else None
    return number if isinstance(number, int) else None
