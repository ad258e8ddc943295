"""Writes each run to TensorBoard: one event file in ``<directory>/tensorboard/EXPERIMENT/TRIAL``.

A row is one event, whole or not there. The event's source metadata has the number of the row,
which TensorBoard does not show. When a run is opened, what follows the last whole row is cut off,
and the rows after it are written again.

Values are scalars as PyTorch's ``SummaryWriter`` writes them, of 32 bits. Tables, texts and the
config are TensorBoard's texts, in Markdown.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from otel_rl.bridge.delivery.local_files.file_errors import not_opened, unavailable
from otel_rl.bridge.delivery.local_files.journal_mark import check_journal
from otel_rl.bridge.delivery.storable import storable_text
from otel_rl.bridge.delivery.tensorboard.event_file import EventFile
from otel_rl.bridge.delivery.tensorboard.settings import validate
from otel_rl.bridge.delivery.tracker_interface import RunInfo
from otel_rl.errors import ConfigError, TrackerRejected, TrackerUnavailable
from otel_rl.records import CONSOLE, Description, Row, Table, Value
from otel_rl.redaction import printable

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

__all__ = ["TensorBoardTracker", "run_directory"]

_ROW: Final = "otel_rl row "
_CONFIG: Final = "otel_rl config "
_FILE_VERSION: Final = "brain.Event:2"

_MAX_NAME_BYTES: Final = 200  # a file system has 255


def run_directory(run: RunInfo) -> Path:
    """Return the directory of a run's event file."""
    return run.directory / "tensorboard" / _part(run.key.experiment) / _part(run.key.trial)


class TensorBoardTracker:
    """Tracker of one TensorBoard run. See the module."""

    def __init__(self) -> None:
        self._directory = Path()
        self._file: EventFile | None = None
        self._next_row = 0
        self._config = ""  # digest of the one in the file

    def open(self, run: RunInfo, /) -> int:
        """Open the file, and resume after its last whole row."""
        try:
            validate(dict(run.attributes))
        except ConfigError as exc:
            raise TrackerRejected(exc.args[0], hint=exc.hint) from exc
        self._directory = run_directory(run)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            path = self._directory / f"events.out.tfevents.otel_rl.{run.run_id}"
            self._file = EventFile(path, self._accepts)
            check_journal(
                self._directory / "otel_rl.journal",
                run.journal,
                rows=self._next_row,
                place=self._directory,
                kind="directory",
            )
            self._file.cut_off()
        except OSError as exc:
            raise not_opened(self._directory, exc, self._directory) from exc
        self.describe(run.description)
        return self._next_row

    def write(self, rows: Sequence[Row], /) -> None:
        """Append an event for each row; the operating system has them when this returns."""
        if rows:
            self._append([_event_of(row) for row in rows])
            self._next_row = rows[-1].number + 1

    def describe(self, description: Description, /) -> None:
        """Append the metadata of the run as a text, unless the file has it."""
        text = _known(description)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        if digest != self._config:
            event = _new_event(f"{_CONFIG}{digest}", time.time(), 0)
            _add_text(event.summary, "run", text)
            self._append([event])
            self._config = digest

    def flush(self, *, timeout_s: float) -> int:  # noqa: ARG002  # fsync cannot be bounded
        """Sync the rows to disk and read them back."""
        try:
            self._opened().sync()
        except OSError as exc:
            raise self._unavailable(exc) from exc
        return self._next_row

    def location(self) -> str:
        """Return the directory of the run."""
        return str(self._directory)

    def close(self, *, exit_code: int) -> int:  # noqa: ARG002  # an event file has no end
        """Sync, read back and close the file."""
        if self._file is not None:
            self.flush(timeout_s=0)
            self._file.close()
            self._file = None
        return self._next_row

    def _accepts(self, message: bytes) -> bool:
        """Take an event of the file into account; False if it is not ours, or after a gap."""
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event

        try:
            source = Event.FromString(message).source_metadata.writer
        except DecodeError:
            return False
        if source.startswith(_CONFIG):
            self._config = source.removeprefix(_CONFIG)
        elif source.startswith(_ROW):
            if int(source.removeprefix(_ROW)) != self._next_row:
                return False
            self._next_row += 1
        return True

    def _append(self, events: "Sequence[Event]") -> None:
        file = self._opened()
        messages = [event.SerializeToString() for event in events]
        if file.is_empty:
            version = _new_event("", time.time(), 0)
            version.file_version = _FILE_VERSION
            messages.insert(0, version.SerializeToString())
        try:
            file.append(messages)
        except OSError as exc:
            raise self._unavailable(exc) from exc

    def _unavailable(self, exc: OSError) -> TrackerUnavailable:
        return unavailable(self._directory, exc, self._directory)

    def _opened(self) -> EventFile:
        if self._file is None:
            raise TrackerUnavailable(f"{self._directory}: is not open.")
        return self._file


def _part(name: str) -> str:
    """Return a name as a part of a path."""
    part = quote(name, safe=" ", errors="backslashreplace")
    if not part.strip("."):
        part = part.replace(".", "%2E") or "%"
    if len(part) > _MAX_NAME_BYTES:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        part = f"{part[:_MAX_NAME_BYTES]}_{digest}"
    return part


def _new_event(source: str, time_s: float, step: int) -> "Event":
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event(wall_time=time_s, step=step)
    if source:
        event.source_metadata.writer = source
    return event


def _event_of(row: Row) -> "Event":
    event = _new_event(f"{_ROW}{row.number}", row.time_ns / 1e9, row.step)
    values = {**row.devices, **row.values, "attempt": row.attempt}
    if row.policy_version is not None:
        values["policy_version"] = row.policy_version
    for key, value in values.items():
        event.summary.value.add(tag=storable_text(key), simple_value=value)
    for key, text in row.labels.items():
        _add_text(event.summary, key, printable(text))
    for key, table in row.tables.items():
        if key != CONSOLE:
            _add_text(event.summary, key, _markdown(table))
    return event


def _add_text(summary: "Summary", tag: str, text: str) -> None:
    from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    metadata = SummaryMetadata(
        plugin_data=SummaryMetadata.PluginData(plugin_name="text"),
        data_class="DATA_CLASS_TENSOR",
    )
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode("utf-8", "backslashreplace")])
    summary.value.add(tag=storable_text(tag), metadata=metadata, tensor=tensor)


def _known(description: Description) -> str:
    """Return the metadata of the run, as JSON in Markdown."""
    crash = description.crash
    known: dict[str, object] = {
        "config": description.config,
        "notes": description.notes,
        "tags": [*description.tags],
        "group": description.group,
        "job_type": description.job_type,
        "hosts": description.hosts,
        "status": str(description.status),
        "crash": "" if crash is None else f"{crash.as_crash}: {crash.message}".rstrip(": "),
    }
    shown = {name: value for name, value in known.items() if value}
    lines = json.dumps(shown, indent=2, ensure_ascii=False, default=_plain).splitlines()
    return "\n".join(f"    {storable_text(line)}" for line in lines)


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else list(value)  # type: ignore[call-overload]  # a sequence


def _markdown(table: Table) -> str:
    lines = [[*table.columns], ["---"] * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: Value) -> str:
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    return storable_text(text).replace("|", "\\|").replace("\r", "").replace("\n", "<br>")
