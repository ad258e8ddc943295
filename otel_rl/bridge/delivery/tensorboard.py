"""Writes each run to TensorBoard: one event file in ``<directory>/tensorboard/EXPERIMENT/TRIAL``.

A row is one event, which is whole or not there. The event's source metadata has the number of the
row, which TensorBoard does not show. When a run is opened, whatever follows the last whole row is
cut off, and the rows after it are written again.

TensorBoard's own writer begins a new file whenever it is opened, and loses its memory when it is
killed. Here a run has one file. Its events are TensorBoard's protobuf messages in TensorBoard's
framing: length, checksum of the length, message, checksum of the message.

Values are 32-bit scalars, as PyTorch's ``SummaryWriter`` writes them. Tables, texts and the config
become TensorBoard's texts, in Markdown.
"""

import hashlib
import importlib.util
import json
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from otel_rl.bridge.delivery.files import (
    AppendedFile,
    check_journal,
    not_opened,
    unavailable,
)
from otel_rl.bridge.delivery.texts import metadata_of, storable_text
from otel_rl.bridge.delivery.tracker import (
    CheckResult,
    RunInfo,
    Tracker,
    TrackerKind,
    check_settings,
    check_writable,
)
from otel_rl.bridge.private_files import sync
from otel_rl.errors import ConfigError, MissingExtra, TrackerUnavailable
from otel_rl.inbox import make_private_directory
from otel_rl.records import CONSOLE, Description, Row, Table, Value
from otel_rl.redaction import printable

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

_ROW: Final = "otel_rl row "
_CONFIG: Final = "otel_rl config "
_FILE_VERSION: Final = "brain.Event:2"

_MAX_NAME_BYTES: Final = 200  # a file system has 255

_HEADER: Final = struct.Struct("<QI")
_FOOTER_BYTES: Final = 4
_MAX_EVENT_BYTES: Final = 1 << 30  # of any sane file

# A power cut can only harm what was not synced. Checksums of the rest would take long: they are
# computed in Python.
_CHECKED_BYTES: Final = 4 << 20


def run_directory(run: RunInfo) -> Path:
    return run.directory / "tensorboard" / _part(run.key.experiment) / _part(run.key.trial)


class TensorBoardTracker:
    """Tracker of one TensorBoard run; see the module's docstring."""

    def __init__(self) -> None:
        self._directory = Path()
        self._file: _EventFile | None = None
        self._next_row = 0
        self._config = ""  # digest of the one in the file

    def open(self, run: RunInfo, /) -> int:
        """Open the file, and resume after its last whole row."""
        _validate(dict(run.attributes))
        self._directory = run_directory(run)
        try:
            make_private_directory(self._directory)
            path = self._directory / f"events.out.tfevents.otel_rl.{run.run_id}"
            self._file = _EventFile(path, self._accepts)
            check_journal(
                self._directory / "otel_rl.journal",
                run.journal,
                rows=self._next_row,
                place=self._directory,
                kind="directory",
            )
            self._file.cut_off()
            sync(self._directory)
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
        """Append the run's metadata as a text, unless the file has this text."""
        text = _known(description)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        if digest != self._config:
            event = _new_event(f"{_CONFIG}{digest}", time.time(), 0)
            _add_text(event.summary, "run", text)
            self._append([event])
            self._config = digest

    def flush(self, *, timeout_s: float) -> int:  # noqa: ARG002  # fsync cannot be bounded
        try:
            self._opened().check()
        except OSError as exc:
            raise self._unavailable(exc) from exc
        return self._next_row

    def location(self) -> str:
        return str(self._directory)

    def close(self, *, exit_code: int) -> int:  # noqa: ARG002  # an event file has no end
        if self._file is not None:
            self.flush(timeout_s=0)
            self._file.close()
            self._file = None
        return self._next_row

    def _accepts(self, message: bytes) -> bool:
        """Take an event of the file into account; False for a foreign one, or after a gap."""
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

    def _opened(self) -> "_EventFile":
        if self._file is None:
            raise TrackerUnavailable(f"{self._directory}: is not open.")
        return self._file


class _Framed(NamedTuple):
    end: int
    message: bytes


class _EventFile:
    """One event file. Opening the file changes none of its content.

    Args:
        path: Path of the file; a missing file is made.
        accepts: Called with each message, in order; returns False for the first message that must
            be cut off, with all messages after it.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path, accepts: Callable[[bytes], bool]) -> None:
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._crc: Callable[[bytes], int] = masked_crc32c
        self._frame = RecordWriter
        self._file = AppendedFile(path)
        self._file.begin(self._sound_end(path, accepts))

    def cut_off(self) -> None:
        self._file.truncate(self._file.end)

    @property
    def is_empty(self) -> bool:
        return not self._file.end

    def append(self, messages: Sequence[bytes]) -> None:
        framed = BytesIO()
        frame = self._frame(framed)
        for message in messages:
            frame.write(message)
        self._file.append(framed.getvalue())

    def check(self) -> None:
        self._file.check()

    def close(self) -> None:
        self._file.close()

    def _sound_end(self, path: Path, accepts: Callable[[bytes], bool]) -> int:
        """Return the end of the last event that is whole and accepted."""
        end = 0
        with path.open("rb") as content:
            for event in self._events(content, self._file.size):
                if not accepts(event.message):
                    break
                end = event.end
        return end

    def _events(self, content: BufferedReader, size: int) -> Iterator[_Framed]:
        position = 0
        while len(header := content.read(_HEADER.size)) == _HEADER.size:
            length, crc = _HEADER.unpack(header)
            if length > _MAX_EVENT_BYTES or crc != self._crc(header[:8]):
                return
            message, footer = content.read(length), content.read(_FOOTER_BYTES)
            position += _HEADER.size + length + _FOOTER_BYTES
            if len(message) < length or len(footer) < _FOOTER_BYTES:
                return
            is_checked = position > size - _CHECKED_BYTES
            if is_checked and struct.unpack("<I", footer)[0] != self._crc(message):
                return
            yield _Framed(position, message)


def _part(name: str) -> str:
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
    config = {"config": description.config} if description.config else {}
    shown = config | metadata_of(description)
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


def _validate(attributes: Mapping[str, str]) -> None:
    for name in attributes:
        raise ConfigError(f"tensorboard.{name}: unknown setting.", hint="There are none.")
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtra("tracker: tensorboard", "the package tensorboard", "tensorboard")


def _check(attributes: Mapping[str, str], directory: Path) -> Sequence[CheckResult]:
    wrong = check_settings("tensorboard settings", _validate, attributes)
    return [wrong or check_writable("tracker directory", directory)]


def _create(_: RunInfo) -> Tracker:
    return TensorBoardTracker()


TENSORBOARD: Final = TrackerKind(
    "tensorboard",
    _create,
    _validate,
    _check,
    home=lambda _: Path(),
    lacks="consoles, a status, numbers of 64 bits (they have 32)",
    in_bridge=True,
)
"""The kind, for the table of trackers."""
