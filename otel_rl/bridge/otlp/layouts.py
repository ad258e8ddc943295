"""Reads serialized messages by column: the fields of many of them in a few calls.

Messages of one sort nearly always have the same layout: the same fields in the same order with the
same lengths. One message is walked to find the layout; then ``struct`` reads the whole run of
messages, and every tag and length is compared with those of the first, a column at a time. Messages
that do not fit are left to protobuf. SDKs, collectors and otel_rl order the fields differently;
both ways give the same result for any sender.
"""

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

FIRST_TAGS: Final = slice(0, 19, 9)
"""Of a message: its first tags, if it begins with numbers, as most do. Those of one length mostly
have one layout if these are the same."""

_MAX_KNOWN_BYTES: Final = 512
_MAX_KNOWN: Final = 1 << 10
"""Bounds of the cache of layouts; longer messages are walked each time."""

_MAX_FLAG: Final = 0x7F


@dataclass(frozen=True, slots=True)
class Layout:
    """Memory layout of messages of one length.

    Attributes:
        structure: Format that reads one message without tags and lengths.
        fixed: Place and byte of each tag, length and flag.
        places: Columns of each tag that is read.
        flags: Value of the field of flags; 0 without that field.
    """

    structure: struct.Struct
    fixed: Sequence[tuple[int, bytes]]
    places: Mapping[int, Sequence[int]]
    flags: int

    def columns(self, run: Sequence[bytes]) -> Sequence[tuple[object, ...]] | None:
        """Read a run of messages by column; None if one of them has another layout."""
        joined, length = b"".join(run), self.structure.size
        for place, expected in self.fixed:
            if joined[place::length].count(expected) != len(run):
                return None
        return list(zip(*self.structure.iter_unpack(joined)))  # noqa: B905  # equal


class Run(NamedTuple):
    """Columns of messages of one layout."""

    layout: Layout
    columns: Sequence[tuple[object, ...]]


class Layouts:
    """Layouts of one type of message. Any thread may use it.

    Args:
        numbers: Tags of eight-byte numbers, with their formats of ``struct``. Tags of one name are
            alternatives: a message has at most one of them.
        names: Name of each number's tag.
        required: Names without which a message is left to protobuf.
        texts: Tags of the fields with a length that are read.
        skipped: Tags of the fields with a length that are skipped.
        flags: Tag of a field whose value is the same in all messages of a run; 0 for none.
    """

    def __init__(
        self,
        numbers: Mapping[int, str],
        names: Mapping[int, str],
        *,
        required: Collection[str],
        texts: Collection[int],
        skipped: Collection[int] = (),
        flags: int = 0,
    ) -> None:
        self._numbers = numbers
        self._names = names
        self._required = frozenset(required)
        self._texts = frozenset(texts)
        self._skipped = frozenset(skipped)
        self._flags = flags
        # The last layout seen of each length and first tags. Any thread may replace an entry.
        self._known: dict[tuple[int, bytes], Layout] = {}

    def read(self, run: Sequence[bytes]) -> Run | None:
        """Read messages of one length, at least one; None if layouts differ or are unusual.

        Fields that are read as text are not parsed: they may not be valid messages.
        """
        length = len(run[0])
        alike = length, run[0][FIRST_TAGS]
        layout = self._known.get(alike)
        columns = None if layout is None else layout.columns(run)
        if layout is None or columns is None:
            layout = self._layout(run[0])
            columns = None if layout is None else layout.columns(run)
            if layout is None or columns is None:
                return None
            if length <= _MAX_KNOWN_BYTES:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[alike] = layout
        return Run(layout, columns)

    def _layout(self, message: bytes) -> Layout | None:
        """Find the layout of a message; None if anything in it is unusual."""
        form, fixed, places = ["<"], list[tuple[int, bytes]](), dict[int, list[int]]()
        named: set[str] = set()
        column = place = flags = 0
        for tag, head, length in self._fields(message):
            fixed.extend((place + n, head[n : n + 1]) for n in range(len(head)))
            form.append(f"{len(head)}x")
            place += len(head) + length
            if tag in self._numbers:
                if self._names[tag] in named:
                    return None
                named.add(self._names[tag])
                form.append(self._numbers[tag])
            elif tag in self._texts:
                form.append(f"{length}s")
            elif tag in self._skipped:
                form.append(f"{length}x")
                continue
            elif tag == self._flags != 0 and len(head) == 2 and head[1] <= _MAX_FLAG and not flags:
                flags = head[1]
                continue
            else:
                return None
            places.setdefault(tag, []).append(column)
            column += 1
        structure = struct.Struct("".join(form))
        if not self._required <= named or structure.size != len(message):
            return None
        return Layout(structure, fixed, places, flags)

    def _fields(self, message: bytes) -> Iterator[tuple[int, bytes, int]]:
        """Yield each field's tag, the bytes before its content, and the content's length."""
        position = 0
        while position < len(message):
            tag = message[position]
            length, end_of_head = 8, position + 1
            if tag == self._flags:
                length, end_of_head = 0, position + 2  # the value is compared as the head is
            elif tag not in self._numbers:
                # A length has one or two bytes; a longer one exceeds the message and is refused.
                lengths = message[position + 1 : position + 3]
                if len(lengths) == 2 and lengths[0] >= 0x80:
                    length, end_of_head = lengths[0] & 0x7F | lengths[1] << 7, position + 3
                else:
                    length, end_of_head = (lengths[0] if lengths else 0), position + 2
            yield tag, message[position:end_of_head], length
            position = end_of_head + length
