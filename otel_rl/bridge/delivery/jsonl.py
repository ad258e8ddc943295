"""Writes each run to a file of JSON lines, for use without a tracker, and for tests.

The file is ``<directory>/<run id>.jsonl``; each line is one row:

    {"number": 7, "step": 3, "attempt": 1, "time_ns": 1700000000000000000, "policy_version": null,
     "values": {"trainer/loss": 0.25, "trainer/grad/norm": "NaN"}}

Where an attempt repeats steps, the rows of the newest attempt count.

A row of text samples has no values, but tables:
``"tables": {"trainer/samples": {"columns": ["step", ...], "data": [[3, ...], ...]}}``.
A row that explains a step has texts, too: ``"labels": {"critical_path/worker": "trainer-3"}``.

Beside the file, ``<run id>.run.json`` holds the run's metadata: config, notes, tags, group, job
type, attempts and status. ``<run id>.journal`` names the journal of the rows.

``<run id>.console.log`` holds the lines of the workers' consoles, ``[trainer/0] ...``.

A row counts as safe when its line was synced and read back from the file at this path: a disk may
be full, and a file may be removed or replaced while it is written.

JSON has no NaN and no infinities. They become the strings "NaN", "Infinity" and "-Infinity", which
``float()`` reads in Python and ``Number()`` in JavaScript.
"""

import dataclasses
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from otel_rl.bridge.delivery.files import (
    AppendedFile,
    check_journal,
    not_opened,
    unavailable,
)
from otel_rl.bridge.delivery.texts import ConsoleLines
from otel_rl.bridge.delivery.tracker import (
    CheckResult,
    RunInfo,
    TrackerKind,
    check_settings,
    check_writable,
)
from otel_rl.bridge.journal.state import fast_json
from otel_rl.bridge.private_files import open_private, sync
from otel_rl.errors import ConfigError, TrackerUnavailable
from otel_rl.records import CONSOLE, Description, Row, Value

_log = logging.getLogger(__name__)


class JsonLinesTracker:
    """Appends rows to one file per run.

    Opening cuts off a partial last line that a crash has left.
    """

    def __init__(self) -> None:
        self._path = Path()
        self._file: AppendedFile | None = None
        self._console: AppendedFile | None = None  # opened when there is a line for it
        self._console_lines = ConsoleLines(0)
        self._next_row = 0

    def open(self, run: RunInfo, /) -> int:
        """Open the file, and resume after its last row, or before the first missing one."""
        self._path = run.directory / f"{run.run_id}.jsonl"
        try:
            self._file = AppendedFile(self._path)
            there = _rows_of(self._file, self._path)
            check_journal(
                self._path.with_suffix(".journal"),
                run.journal,
                rows=there.rows,
                place=self._path,
                kind="file",
            )
            self._file.truncate(there.end)
            # Rows after a gap stay until the missing ones are here, and are then written anew.
            self._file.begin(there.sound_end)
            self._next_row = there.sound_rows
            if there.sound_end < there.end:
                _log.warning("%s: has no row %d, but later ones.", self._path, self._next_row)
            sync(run.directory)
        except OSError as exc:
            raise not_opened(self._path, exc, self._path.parent) from exc
        self.describe(run.description)
        return self._next_row

    def describe(self, description: Description, /) -> None:
        path = self._path.with_suffix(".run.json")
        new = path.with_suffix(".json.new")
        text = json.dumps(_named(dataclasses.asdict(description)), indent=2) + "\n"
        try:
            with open(new, "w", opener=open_private) as file:
                file.write(text)
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
            file.append(lines)
        except OSError as exc:
            raise self._unavailable(exc) from exc
        self._next_row = rows[-1].number + 1

    def flush(self, *, timeout_s: float) -> int:  # noqa: ARG002  # fsync cannot be bounded
        """Sync the rows to disk, so that they survive a power cut, and read them back."""
        try:
            if self._console is not None:  # before its rows
                self._console.sync()
            self._opened().check()
        except OSError as exc:
            raise self._unavailable(exc) from exc
        return self._next_row

    def location(self) -> str:
        return str(self._path)

    def close(self, *, exit_code: int) -> int:  # noqa: ARG002  # a file of rows has no state
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
        """Append the console lines that the file lacks; the operating system has them on return."""
        if not any(CONSOLE in row.tables for row in rows):
            return
        if self._console is None:
            self._console = AppendedFile(self._path.with_suffix(".console.log"))
            lines = _lines_of(self._console)
            self._console.begin(lines.end)
            self._console_lines = ConsoleLines(lines.n)
        lacking = [f"{line}\n" for row in rows for line in self._console_lines.of(row)]
        self._console.append("".join(lacking).encode(errors="backslashreplace"))

    def _unavailable(self, exc: OSError) -> TrackerUnavailable:
        return unavailable(self._path, exc, self._path.parent)

    def _opened(self) -> AppendedFile:
        if self._file is None:
            raise TrackerUnavailable(f"{self._path}: is not open.")
        return self._file


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


class _Lines(NamedTuple):
    """Complete lines of a file.

    Attributes:
        last: Position at which the last line begins.
        end: Position at which the last line ends.
        has_zeros: Whether the file has a zero byte, which neither JSON nor a console has.
    """

    n: int
    last: int
    end: int
    has_zeros: bool


def _lines_of(file: AppendedFile) -> _Lines:
    n = last = end = position = 0
    has_zeros = False
    for chunk in file.chunks():
        newest = chunk.rfind(b"\n")
        if newest >= 0:
            before = chunk.rfind(b"\n", 0, newest)
            last = position + before + 1 if before >= 0 else end
            end = position + newest + 1
        n += chunk.count(b"\n")
        has_zeros = has_zeros or b"\0" in chunk
        position += len(chunk)
    return _Lines(n, last, end, has_zeros)


class _Rows(NamedTuple):
    """Rows of a file.

    Attributes:
        sound_end: End of the rows that are consecutive from 0.
        sound_rows: Number of the row after the sound rows.
        end: End of the last complete row.
        rows: Number of the row after the last complete one.
    """

    sound_end: int
    sound_rows: int
    end: int
    rows: int


def _rows_of(file: AppendedFile, path: Path) -> _Rows:
    """Find the rows of a file.

    A power cut can leave a gap before later rows, because blocks of a file reach the disk in any
    order. Only a file with a gap is parsed line by line.
    """
    lines = _lines_of(file)
    newest = _number(file.read(lines.last, lines.end - lines.last))
    if newest is not None and newest + 1 == lines.n and not lines.has_zeros:
        return _Rows(lines.end, lines.n, lines.end, lines.n)
    sound_end = sound_rows = end = rows = position = 0
    with path.open("rb") as content:
        for line in content:
            position += len(line)
            number = _number(line) if line.endswith(b"\n") else None
            if number is None:
                continue
            if number == sound_rows and sound_end == position - len(line):
                sound_end, sound_rows = position, number + 1
            end, rows = position, number + 1
    return _Rows(sound_end, sound_rows, end, rows)


def _number(line: bytes) -> int | None:
    # A power cut can leave zeros or a mixture of two lines: such a line is no row.
    try:
        record = json.loads(line)
    except ValueError:
        return None
    number = record.get("number") if isinstance(record, dict) else None
    return number if isinstance(number, int) else None


def _validate(attributes: Mapping[str, str]) -> None:
    for name, value in attributes.items():
        raise ConfigError(f'jsonl.{name}: unknown setting (got "{value}"). There are none.')


def _check(attributes: Mapping[str, str], directory: Path) -> Sequence[CheckResult]:
    wrong = check_settings("jsonl settings", _validate, attributes)
    return [wrong or check_writable("tracker directory", directory)]


JSONL: Final = TrackerKind("jsonl", lambda _: JsonLinesTracker(), _validate, _check, in_bridge=True)
"""The kind, for the table of trackers."""
