"""Turns valid requests into requests that nobody should send.

Three depths: bytes that were damaged on the way, protobuf whose fields are wrong one by one, JSON
whose values are. All randomness comes from one ``Random``, so a seed makes the same requests again.
"""

import json
import pickle
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import orjson
from google.protobuf.descriptor import Descriptor

from tests.fuzz.corpus import Json

_INTEGERS = (
    0,
    1,
    -1,
    2**31 - 1,
    2**31,
    -(2**31),
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    2**64,
    1_700_000_000_000_000_000,
)

_DOUBLES = (
    0.0,
    -0.0,
    5e-324,
    1.7976931348623157e308,
    float("inf"),
    float("-inf"),
    float("nan"),
)

_TEXTS = (
    "",
    " ",
    "\x00",
    "a\nb",
    "../../../etc/passwd",
    "..",
    "/",
    "<script>alert(1)</script>",
    "\u202egnp.exe",
    "te\u0430m",
    "\ufeff",
    "x" * 300,
    "\U0001f4a3" * 40,
    "rl.experiment.name",
    "rl.loop.iteration",
    "%s%n{0}{}",
    "nan",
    "9" * 30,
    "1e999",
    "-0",
    "NaN",
    "Infinity",
)


# Bytes


def damaged_bytes(random: Random, body: bytes, other: bytes) -> bytes:
    """``body`` with one to four kinds of damage; ``other`` is what it may be spliced with."""
    damaged = bytearray(body)
    for _ in range(random.randint(1, 4)):
        random.choice(_DAMAGES)(random, damaged, other)
    return bytes(damaged)


def _flip(random: Random, body: bytearray, _other: bytes) -> None:
    for _ in range(random.randint(1, 8)):
        if body:
            body[random.randrange(len(body))] ^= 1 << random.randrange(8)


def _truncate(random: Random, body: bytearray, _other: bytes) -> None:
    del body[random.randint(0, len(body)) :]


def _delete(random: Random, body: bytearray, _other: bytes) -> None:
    start = random.randint(0, len(body))
    del body[start : start + random.randint(1, 16)]


def _insert(random: Random, body: bytearray, _other: bytes) -> None:
    at = random.randint(0, len(body))
    body[at:at] = random.randbytes(random.randint(1, 16))


def _repeat(random: Random, body: bytearray, _other: bytes) -> None:
    start = random.randint(0, len(body))
    end = min(len(body), start + random.randint(1, 200))
    body[end:end] = body[start:end] * random.randint(1, 20)


def _splice(random: Random, body: bytearray, other: bytes) -> None:
    body[random.randint(0, len(body)) :] = other[random.randint(0, len(other)) :]


def _overwrite(random: Random, body: bytearray, _other: bytes) -> None:
    at = random.randint(0, len(body))
    body[at : at + 8] = random.choice((b"\xff" * 8, b"\x00" * 8, b"\x80" * 8, b"\x7f" * 8))


_DAMAGES: Sequence[Callable[[Random, bytearray, bytes], None]] = (
    _flip,
    _truncate,
    _delete,
    _insert,
    _repeat,
    _splice,
    _overwrite,
)


# Protobuf


@dataclass(slots=True)
class _Field:
    """One field of a message on the wire.

    Attributes:
        number: Of the field.
        wire_type: How its value is written.
        value: An integer, raw bytes, or the fields of a message.
    """

    number: int
    wire_type: int
    value: "int | bytes | list[_Field]"


def mutated_protobuf(random: Random, body: bytes, descriptor: Descriptor) -> bytes:
    """A sound message with one to three of its fields wrong."""
    fields: list[_Field] = pickle.loads(_pickled(body, descriptor))
    for _ in range(random.randint(1, 3)):
        places = list(_places(fields))
        if not places:
            fields.append(_random_field(random))
            continue
        siblings, at = random.choice(places)
        random.choice(_FIELD_MUTATIONS)(random, siblings, at)
    return _written(fields)


def _drop_field(_random: Random, siblings: list[_Field], at: int) -> None:
    del siblings[at]


def _double_field(random: Random, siblings: list[_Field], at: int) -> None:
    siblings[at:at] = [siblings[at]] * random.choice((1, 1, 2, 50))


def _swap_fields(random: Random, siblings: list[_Field], at: int) -> None:
    other = random.randrange(len(siblings))
    siblings[at], siblings[other] = siblings[other], siblings[at]


def _renumber_field(random: Random, siblings: list[_Field], at: int) -> None:
    field = siblings[at]
    number = random.choice((random.randint(1, 15), 1, 2, 3, 999, 2**29 - 1))
    siblings[at] = _Field(number, field.wire_type, field.value)


def _retype_field(random: Random, siblings: list[_Field], at: int) -> None:
    siblings[at] = _random_field(random, siblings[at].number)


def _revalue_field(random: Random, siblings: list[_Field], at: int) -> None:
    field = siblings[at]
    siblings[at] = _Field(field.number, field.wire_type, _value(random, field.wire_type))


def _insert_field(random: Random, siblings: list[_Field], at: int) -> None:
    siblings.insert(at, _random_field(random))


def _nest_field(random: Random, siblings: list[_Field], at: int) -> None:
    """Wrap a field in fields of its own number."""
    number, written = siblings[at].number, _written([siblings[at]])
    for _ in range(random.choice((1, 3, 40, 120))):
        written = _written([_Field(number, 2, written)])
    siblings[at] = _Field(number, 2, written)


def _deepen_value(random: Random, siblings: list[_Field], at: int) -> None:
    """An attribute of arrays in arrays: AnyValue{array_value=5{values=1{...}}}."""
    value = _written([_Field(1, 2, b"leaf")])
    for _ in range(random.choice((1, 5, 45, 60, 200))):
        value = _written([_Field(5, 2, _written([_Field(1, 2, value)]))])
    siblings[at] = _Field(siblings[at].number, 2, value)


_FIELD_MUTATIONS: Sequence[Callable[[Random, list[_Field], int], None]] = (
    _drop_field,
    _double_field,
    _swap_fields,
    _renumber_field,
    _retype_field,
    _revalue_field,
    _revalue_field,
    _revalue_field,
    _insert_field,
    _nest_field,
    _deepen_value,
)


def _random_field(random: Random, number: int | None = None) -> _Field:
    wire_type = random.choice((0, 1, 2, 2, 5))
    return _Field(number or random.randint(1, 20), wire_type, _value(random, wire_type))


def _value(random: Random, wire_type: int) -> int | bytes:
    match wire_type:
        case 0:
            return random.choice(_INTEGERS) % 2**64
        case 1:
            packed: bytes = random.choice(
                (
                    struct.pack("<Q", random.choice(_INTEGERS) % 2**64),
                    struct.pack("<d", random.choice(_DOUBLES)),
                    random.randbytes(8),
                )
            )
            return packed
        case 5:
            return random.randbytes(4)
    return random.choice(
        (
            random.choice(_TEXTS).encode(),
            random.randbytes(random.randint(0, 40)),
            b"",
            struct.pack("<dd", *random.choices(_DOUBLES, k=2)),
        )
    )


def _places(fields: list[_Field]) -> Iterator[tuple[list[_Field], int]]:
    for at, field in enumerate(fields):
        yield fields, at
        if isinstance(field.value, list):
            yield from _places(field.value)


@lru_cache(maxsize=16)
def _pickled(body: bytes, descriptor: Descriptor) -> bytes:
    """The fields of a seed, to be copied: it is mutated a hundred times."""
    return pickle.dumps(_parsed(body, descriptor))


def _parsed(body: bytes, descriptor: Descriptor) -> list[_Field]:
    messages = {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None
    }
    fields = []
    position = 0
    while position < len(body):
        tag, position = _varint(body, position)
        number, wire_type = tag >> 3, tag & 7
        value: int | bytes | list[_Field]
        if wire_type == 0:
            value, position = _varint(body, position)
        else:
            length = {1: 8, 5: 4}.get(wire_type)
            if length is None:
                length, position = _varint(body, position)
            value = body[position : position + length]
            position += length
            if number in messages:
                value = _parsed(value, messages[number])
        fields.append(_Field(number, wire_type, value))
    return fields


def _varint(body: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def _written(fields: Sequence[_Field]) -> bytes:
    parts = []
    for field in fields:
        parts.append(_written_varint(field.number << 3 | field.wire_type))
        if isinstance(field.value, int):
            parts.append(_written_varint(field.value))
            continue
        value = field.value if isinstance(field.value, bytes) else _written(field.value)
        if field.wire_type == 2:
            parts.append(_written_varint(len(value)))
        parts.append(value)
    return b"".join(parts)


def _written_varint(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


# JSON


def mutated_json(random: Random, sound: bytes) -> bytes:
    """A sound request with one to three of its values wrong."""
    changed: Json = orjson.loads(sound)
    for _ in range(random.randint(1, 3)):
        places = list(_json_places(changed))
        if not places:
            changed = _random_json(random, 3)
            continue
        container, at = random.choice(places)
        _mutate_member(random, container, at)
    # Python writes NaN and Infinity, which JSON does not have.
    text = json.dumps(changed, ensure_ascii=random.random() < 0.5)
    if random.random() < 0.05:
        depth = random.choice((1, 10, 32, 33, 50, 400, 5000))
        text = _LEAF.sub(lambda leaf: _NEST * depth + leaf[0] + _UNNEST * depth, text, count=1)
    return text.encode(errors="surrogatepass")


_LEAF = re.compile(r'\{"stringValue": "[^"]*"\}')
_NEST, _UNNEST = '{"arrayValue":{"values":[', "]}}"


Container = dict[str, Json] | list[Json]


def _mutate_member(random: Random, container: Container, at: str | int) -> None:
    kind = random.randrange(6)
    if isinstance(container, dict) and isinstance(at, str):
        member = container[at]
        if kind == 0:
            del container[at]
        elif kind == 1:
            container[random.choice((*_TEXTS, "asInt", "asDouble", "gauge", "sum"))] = member
        elif kind == 2:
            container[_snake_case(at)] = container.pop(at)
        else:
            container[at] = _random_json(random, 2)
    elif isinstance(container, list) and isinstance(at, int):
        if kind == 0:
            del container[at]
        elif kind == 1:
            container[at:at] = [container[at]] * random.choice((1, 2, 50))
        elif kind == 2:
            container.append(_random_json(random, 2))
        else:
            container[at] = _random_json(random, 2)


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _random_json(random: Random, depth: int) -> Json:
    kind = random.randrange(8 if depth else 6)
    match kind:
        case 0:
            return random.choice(_INTEGERS)
        case 1:
            return random.choice(_DOUBLES)
        case 2:
            return random.choice((*_TEXTS, "\ud800"))
        case 3:
            return random.choice((True, False, None))
        case 4:
            return str(random.choice(_INTEGERS))
        case 5:
            return random.choice((1e400, 10**400, 1.5, -1))
        case 6:
            return [_random_json(random, depth - 1) for _ in range(random.randint(0, 3))]
    keys = (*_TEXTS, "key", "value", "stringValue", "intValue", "dataPoints", "attributes")
    return {
        random.choice(keys): _random_json(random, depth - 1) for _ in range(random.randint(0, 3))
    }


def _json_places(value: Json) -> Iterator[tuple[Container, str | int]]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield value, key
            yield from _json_places(member)
    elif isinstance(value, list):
        for at, element in enumerate(value):
            yield value, at
            yield from _json_places(element)
