"""Converts any value of a program to one that OTLP supports, and encodes it.

Settings are arbitrary objects: paths, enums, dataclasses, configs of other libraries. Unsupported
types become text, and oversized values are dropped: a truncated one could look complete.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    KeyValue,
    KeyValueList,
)

from otel_rl.worker.tensors import NotANumber, hold, number

Plain = None | bool | int | float | str | Sequence["Plain"] | Mapping[str, "Plain"]
"""Values of an ``AnyValue``, without bytes."""

MAX_CONFIG_BYTES: Final = 256 << 10
"""Per config, as protobuf: some thousand settings. A tokenizer's vocabulary is no setting."""

MAX_DEPTH: Final = 8
"""Nested maps and lists; deeper ones become text."""

MAX_VALUES: Final = 10_000
"""Per setting, so that a list of a million values does not cost a second in ``init``."""

MAX_KEY_CHARS: Final = 64
"""At most 256 bytes, the longest key that a bridge accepts."""

BLANK: Final = "_"
"""Replaces an empty or blank name."""

MAX_TEXT_CHARS: Final = 4096
"""Per setting."""


class _TooLargeError(Exception):
    """Setting with more than ``MAX_VALUES`` values."""


def plain_config(config: Mapping[str, object]) -> tuple[dict[str, Plain], list[str]]:
    """Return the settings that fit, and the names of those that are too large.

    The config is read before the call returns, as the program may change it afterwards.
    """
    taken: dict[str, Plain] = {}
    left_out: list[str] = []
    room = MAX_CONFIG_BYTES
    for key, value in _items(config):
        try:
            found = _plain(value, MAX_DEPTH, iter(range(MAX_VALUES)))
            cost = key_value(key, found).ByteSize() + 8
        except (_TooLargeError, RecursionError):
            cost = MAX_CONFIG_BYTES + 1
        if cost > room:
            left_out.append(key)
            continue
        room -= cost
        taken[key] = found
    return taken, left_out


def attributes(pairs: Mapping[str, object]) -> list[KeyValue]:
    """Encode attributes, sorted so that equal sets encode equal.

    Raises:
        Exception: A user's ``__str__`` may raise anything.
    """
    return [key_value(str(key), pairs[key]) for key in sorted(pairs, key=str)]


def key_value(key: str, value: object) -> KeyValue:
    return KeyValue(key=clean(key), value=_any_value(value))


def clean(text: str) -> str:
    """Replace lone surrogates, which protobuf refuses."""
    return text.encode("utf-8", "replace").decode()


def _any_value(value: object) -> AnyValue:
    """Encode a value; unsupported types become text, as in the SDK."""
    match value:
        case None:
            return AnyValue()
        case bool():
            return AnyValue(bool_value=value)
        case str():
            return AnyValue(string_value=clean(value))
        case int() if -(1 << 63) <= value < 1 << 63:
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case Mapping():
            return AnyValue(kvlist_value=KeyValueList(values=attributes(value)))
        case Sequence():
            return AnyValue(array_value=ArrayValue(values=map(_any_value, value)))
        case _:
            return AnyValue(string_value=clean(str(value)))


def text_of(value: object) -> str:
    """Return ``str(value)``, or the name of its type if that fails."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001  # a user's __str__ may raise anything
        return f"<{type(value).__name__}>"


def label(value: object, max_chars: int) -> str:
    """Return a name that all receivers accept: printable, not blank, within ``max_chars``."""
    text = "".join(char if char.isprintable() else " " for char in text_of(value))
    return text.strip()[:max_chars].strip() or BLANK


def cut(text: str, max_chars: int) -> str:
    """Cut ``text`` to ``max_chars``, with a mark."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]} [... {len(text) - max_chars} characters cut]"


def is_array(value: object) -> bool:
    """Return whether a value is an array, a tensor, or a scalar of such a library."""
    return hasattr(value, "shape") and hasattr(value, "item")


def _plain(value: object, depth: int, room: Iterator[int]) -> Plain:
    if next(room, None) is None:
        raise _TooLargeError
    match value:
        case None | bool():
            return value
        case Enum():
            return _plain(value.value, depth, room)
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return cut(value, MAX_TEXT_CHARS)
    if is_array(value):
        found = number(hold(value))
        return found.description if isinstance(found, NotANumber) else found
    if depth > 0:
        mapping = as_mapping(value)
        if mapping is not None:
            return {key: _plain(item, depth - 1, room) for key, item in _items(mapping)}
        if isinstance(value, Sequence | AbstractSet) and not isinstance(value, bytes | bytearray):
            return [_plain(item, depth - 1, room) for item in value]
    return cut(text_of(value), MAX_TEXT_CHARS)


def as_mapping(value: object) -> Mapping[object, object] | None:
    """Return the items of a mapping, a namespace or a dataclass; None for any other object."""
    if isinstance(value, Mapping):
        return value
    argparse = sys.modules.get("argparse")  # a program with a Namespace has loaded it
    if isinstance(value, SimpleNamespace) or (argparse and isinstance(value, argparse.Namespace)):
        return dict(vars(value).items())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return None


def _items(mapping: Mapping[object, object] | Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield keys as text. A value that cannot be read, e.g. an interpolation, becomes its error."""
    for key in tuple(mapping):
        try:
            value = mapping[key]  # type: ignore[index]  # a key of its own
        except Exception as error:  # noqa: BLE001  # another library's mapping may raise anything
            value = f"<{type(error).__name__}>"
        name = text_of(key)[:MAX_KEY_CHARS]
        yield name if name.strip() else BLANK, value
