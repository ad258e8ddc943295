"""Encodes stored objects: states and logs as MessagePack, rows and descriptions as JSON.

The classes of the bridge that are stored *are* the format. Each derives from ``Stored``, and its
fields, in their order, are an array in the journal; attributes that ``__post_init__`` sets are not
stored. Records of ``otel_rl.records`` are maps by the names of their fields. The decoder makes
numbers, texts and containers, never calls anything that the bytes name, and takes memory in
proportion to the stored bytes.

A row is a JSON list of its fields. Fast libraries write and read its numbers, but none of them
knows NaN and infinities. A row with any of those, with tables, or with values that the libraries
refuse, goes through the standard library, which writes the words ``NaN`` and ``Infinity``. Both
ways read what either has written.

Rules for a change: ``docs/adr/0011-state-is-messagepack.md``.
"""

import dataclasses
import json
import logging
import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast

import msgspec
import orjson

from otel_rl.bridge.journal.interface import checksum
from otel_rl.bridge.journal.schema import FORMAT
from otel_rl.records import (
    Attempt,
    Description,
    Device,
    ExperimentKey,
    ExperimentStatus,
    KeySpec,
    Provenance,
    Row,
    Table,
    WorkerFailure,
)
from otel_rl.run_id import run_id

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_ENVELOPE: Final = bytes([FORMAT])
"""Begins everything that is encoded here: a later release may find bodies of several formats."""

# Compressed bytes are read up to so many, or so many times what is stored. Identities of ten
# thousand series are 2 MB and one tenth of that compressed.
_MAX_RAW_BYTES: Final = 16 << 20
_MAX_RATIO: Final = 32

Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Times in ns, steps, and what else stands in columns of the database."""

Count = Annotated[int, msgspec.Meta(ge=0)]
"""A number of things, or the place of one in a list."""

Number = int | float
"""A measured value; integers are exact, and NaN and infinities are data."""

if TYPE_CHECKING:
    Integers = array[int]
    Floats = array[float]
else:
    Integers = Floats = array


class StateRefused(Exception):
    """The bytes are not a state that a bridge has written. The error's text names what is wrong."""


class Stored(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A class whose objects are stored in the journal."""


def encode(kept: object) -> bytes:
    return _ENVELOPE + _encoded(kept)


def decode(body: bytes, kind: type[_T]) -> _T:
    if body[:1] != _ENVELOPE:
        raise StateRefused(f"it has format {body[0] if body else None}, not {FORMAT}")
    with refusing():
        found: _T = _decoder(cast("Any", kind)).decode(memoryview(body)[1:])
        return found


@contextmanager
def refusing() -> Iterator[None]:
    """Turn any failure into ``StateRefused``: forged bytes may fail in any way.

    Raises:
        StateRefused: The code in the context raised any error.
    """
    try:
        yield
    except StateRefused:
        raise
    except Exception as exc:
        raise StateRefused(f"it cannot be read ({type(exc).__name__}: {exc})") from exc


def compress(raw: bytes) -> bytes:
    """Compress the result of ``encode``, within the bound of ``decompress``."""
    body = zlib.compress(raw, level=1)
    return body if len(raw) <= _most_raw(body) else zlib.compress(raw, level=0)


def decompress(body: bytes) -> bytes:
    """Undo ``compress``. Memory is bounded by the bytes that are stored."""
    raw, rest = _decompress(body, _most_raw(body))
    if rest:
        raise StateRefused("there is more behind its end")
    return raw


def decompress_each(body: bytes) -> Iterator[bytes]:
    """Decompress small compressed parts that were joined, one at a time."""
    while body:
        raw, body = _decompress(body, _MAX_RAW_BYTES)
        yield raw


def check_places(groups: int, *kept: Mapping[int, object]) -> None:
    """Check that the keys are places of groups, of which there are ``groups``."""
    for of_groups in kept:
        if of_groups and max(of_groups) >= groups:
            raise StateRefused(f"it has values of group {max(of_groups)}, of {groups}")


def check_durations(durations_s: Iterable[float]) -> None:
    """Check that durations in s are finite, also when converted to ns."""
    if not all(math.isfinite(one * 1e9) for one in durations_s):
        raise StateRefused("it has a duration that is not finite")


def check_json(kept: object) -> None:
    if isinstance(kept, Mapping):
        for key, one in kept.items():
            if not isinstance(key, str):
                raise StateRefused(f"it has a {type(key).__name__} where a name should be")
            check_json(one)
    elif isinstance(kept, (list, tuple)):
        for one in kept:
            check_json(one)
    elif not (kept is None or isinstance(kept, (bool, int, float, str))):
        raise StateRefused(f"it has a {type(kept).__name__} where a value of JSON should be")


def _encoded(kept: object) -> bytes:
    try:
        return _ENCODER.encode(kept)
    except (OverflowError, UnicodeEncodeError):  # so seldom that no value is looked at before
        plain = msgspec.to_builtins(kept, builtin_types=(bytes,), enc_hook=_plain)
        return _ENCODER.encode(_fitting(plain))


def _plain(kept: object) -> object:
    """Return the stored form of an object of another kind: a 64-bit column is a list of numbers."""
    if isinstance(kept, array):
        if sys.byteorder == "big":
            kept = kept[:]
            kept.byteswap()
        return kept.typecode.encode() + kept.tobytes()
    if isinstance(kept, msgspec.Raw):
        return msgspec.msgpack.decode(kept)
    raise TypeError(f"{type(kept).__name__} cannot be stored")


def _restored(kind: type, kept: object) -> object:
    if kind is not array or not isinstance(kept, bytes) or kept[:1] not in {b"q", b"d"}:
        raise ValueError("it has something else where a column of numbers should be")
    column: array[int] | array[float] = array(kept[:1].decode())
    column.frombytes(memoryview(kept)[1:])
    if sys.byteorder == "big":
        column.byteswap()
    return column


def _fitting(kept: Any) -> Any:
    """Return a value without the integers and texts that MessagePack does not take.

    An integer beyond 64 bits becomes its digits, which are read as an integer where one is
    expected.
    """
    if isinstance(kept, str):
        return kept.encode(errors="replace").decode()
    if isinstance(kept, int):
        return kept if -(1 << 63) <= kept < 1 << 64 else str(kept)
    if isinstance(kept, dict):
        return {_fitting(key): _fitting(one) for key, one in kept.items()}
    if isinstance(kept, (list, tuple)):  # a tuple may be a key
        return type(kept)(map(_fitting, kept))
    return kept


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_plain)


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, strict=False, dec_hook=_restored)


def _most_raw(body: bytes) -> int:
    return max(_MAX_RAW_BYTES, _MAX_RATIO * len(body))


def _decompress(body: bytes, most: int) -> tuple[bytes, bytes]:
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(body, most + 1)
    except zlib.error as exc:
        raise StateRefused(f"it cannot be decompressed ({exc})") from exc
    if len(raw) > most:
        raise StateRefused(f"it is more than {most} bytes when it is decompressed")
    if not stream.eof:
        raise StateRefused("it breaks off")
    return raw, stream.unused_data


# Not orjson, which makes floats of integers that exceed 64 bits.
_DECODER = msgspec.json.Decoder()


def encode_row(row: Row, now_ns: int = 0) -> bytes:
    values = row.values if isinstance(row.values, dict) else dict(row.values)
    fields: list[object] = [row.step, row.time_ns, row.policy_version, values, now_ns]
    if row.tables or row.labels or row.attempt > 1 or row.replaces:
        tables = {key: [table.columns, table.rows] for key, table in row.tables.items()}
        fields.extend([tables, dict(row.labels), row.attempt, row.replaces])
    body = None if row.tables else fast_json(fields, values.values())
    return body or json.dumps(fields, separators=(",", ":")).encode()


def decode_row(number: int, body: bytes) -> Row:
    try:
        fields = _DECODER.decode(body)
    except msgspec.DecodeError:
        fields = json.loads(body)
    step, time_ns, policy_version, values, stored_ns, *more = fields
    tables, labels, attempt, replaces = more or ({}, {}, 1, False)
    tables = {key: Table(*table) for key, table in tables.items()}
    row = Row(
        *(number, step, time_ns, values, policy_version, tables, labels),
        attempt=attempt,
        replaces=replaces,
    )
    for name, value in (("stored_bytes", len(body)), ("stored_ns", stored_ns)):
        object.__setattr__(row, name, value)  # frozen for everyone else
    return row


def fast_json(record: object, numbers: Iterable[float]) -> bytes | None:
    """Return a record as JSON, if a library that has no NaN can write it.

    Args:
        record: Lists and dicts of text and numbers.
        numbers: All the record's numbers that may be NaN or infinite.

    Returns:
        The JSON; None if a number is not finite or the sum of the numbers is too large, and for
        what the library refuses: an integer of more than 64 bits, half of a surrogate pair, a
        subclass of float.
    """
    try:
        # Copied: the library reserves up to eight times the room, and keeps it with its result.
        return bytes(memoryview(orjson.dumps(record))) if math.isfinite(sum(numbers)) else None
    except (OverflowError, TypeError):
        return None


def encode_description(description: Description) -> bytes:
    return json.dumps(dataclasses.asdict(description), separators=(",", ":")).encode()


def read_description(key: ExperimentKey, body: bytes, crc: int) -> Description:
    """Undo ``encode_description``; returns an empty description if the disk has damaged it."""
    if checksum(body, run_id(key.experiment, key.trial)) != crc:
        _log.error("The metadata of %s is damaged in the journal. Check the disk.", key)
        return Description()
    fields = json.loads(body)
    fields["tags"] = tuple(fields["tags"])
    fields["status"] = ExperimentStatus(fields["status"])
    fields["devices"] = {
        prefix: Device(**device | {"workers": tuple(device["workers"])})
        for prefix, device in fields["devices"].items()
    }
    fields["attempts"] = tuple(Attempt(**attempt) for attempt in fields["attempts"])
    fields["failures"] = tuple(WorkerFailure(**failure) for failure in fields["failures"])
    provenance = fields["provenance"]
    if provenance is not None:
        texts = {name: tuple(provenance[name]) for name in ("command", "packages")}
        fields["provenance"] = Provenance(**provenance | texts)
    return Description(**fields)


def encode_keys(keys: Iterable[KeySpec]) -> bytes:
    return compress(encode([*keys]))


def decode_keys(body: bytes) -> Sequence[KeySpec]:
    return decode(decompress(body), list[KeySpec])


def readable_keys(parts: Iterable[bytes]) -> Sequence[KeySpec]:
    """Return the keys of all parts, each once, without those of unreadable parts.

    The bridge that makes the rows counts unreadable parts, and describes their keys again.
    """
    found: dict[str, KeySpec] = {}
    for body in parts:
        try:
            keys = decode_keys(body)
        except StateRefused as exc:
            _log.warning("A part of a run's keys in the journal is refused: %s.", exc)
            continue
        for one in keys:
            found.setdefault(one.key, one)
    return list(found.values())
