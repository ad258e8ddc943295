"""One known shape of a body: recognised by its fixed bytes, read by column."""

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple, cast

from otel_rl.bridge.otlp.shapes.fields import Slot
from otel_rl.bridge.otlp.shapes.layout import Layout

__all__ = ["BodyNumbers", "BodyShape", "Columns", "ShareColumns", "SumColumns"]

_CONTINUES = 0x80  # bit of each byte of a varint but the last

# Of a slot: its format in ``struct``, its place in a column, its number.
_SLOT_BYTES = 120

_EDGE_BYTES = 100

_numbers = itertools.count()

_Pick = Callable[[tuple[Any, ...]], Sequence[Any]]


class Columns(NamedTuple):
    """Numbers of the points that have a value, in their order. All columns have one length.

    Attributes:
        starts_ns: Starts of the points; 0 for none.
        ends_ns: Times of the points; 0 for none.
        times_ns: Times of the measurements; 0 for none.
        values: Of the measurements. Integers stay integers.
        steps: None for a measurement without a step.
    """

    starts_ns: Sequence[int]
    ends_ns: Sequence[int]
    times_ns: Sequence[int]
    values: Sequence[float]
    steps: Sequence[int | None]


class SumColumns(NamedTuple):
    """Numbers of the points of sums, in their order, as in ``Columns``."""

    starts_ns: Sequence[int]
    times_ns: Sequence[int]
    values: Sequence[float]


class ShareColumns(NamedTuple):
    """Numbers of the steps' shares of counters, in their order, as in ``Columns``.

    Attributes:
        befores_ns: Times of the series' shares before; 0 for none.
        starts_ns: Begins of their steps; 0 for none.
        times_ns: Times of the points; 0 for none.
        values: Growth of the counters.
        steps: Of the shares.
    """

    befores_ns: Sequence[int]
    starts_ns: Sequence[int]
    times_ns: Sequence[int]
    values: Sequence[float]
    steps: Sequence[int]


class BodyNumbers(NamedTuple):
    """All numbers of a body.

    Attributes:
        gauges: Of the gauge points with a value.
        shares: Of the steps' shares of counters.
        sums: Of the points of sums.
        beats_ns: Times of the gauge points without a value.
    """

    gauges: Columns
    shares: ShareColumns
    sums: SumColumns
    beats_ns: Sequence[int]


class BodyShape:
    """Bodies that differ in times, values and steps only.

    Args:
        body: One of them.
        layout: Of it.

    Attributes:
        number: Unique in this process.
        points: Number of data points, those without a value included.
        measurements: Number of gauge points with one.
        shares: Number of steps' shares of counters.
        sums: Number of the points of sums.
        memory_bytes: Upper bound of the memory of the shape, in bytes.
    """

    def __init__(self, body: bytes, layout: Layout) -> None:
        slots = layout.slots
        self.number = next(_numbers)
        self.points = len(layout.points) + len(layout.sums)
        shares, sums = layout.shares, layout.sums
        self.shares, self.sums = len(shares), len(sums)
        with_value = [point for point in layout.points if point.has_value]
        self.measurements = len(with_value)
        self._edges = frozenset(layout.edges)
        self._scopes = {tag: body[start:end] for tag, (start, end) in layout.scopes.items()}
        self.memory_bytes = 512 + 4 * len(body) + _SLOT_BYTES * len(slots)
        self.memory_bytes += _EDGE_BYTES * (len(self._edges) + len(self._scopes))
        self._mask = _mask(len(body), slots)
        self._fixed = int.from_bytes(body, "little") & self._mask
        self._struct = Struct(_format(len(body), slots))
        places = {slot: n for n, slot in enumerate(s for s in slots if s.kind != "x")}
        # An absent number is read from behind the slots: 0, and no step.
        zero, none = len(places), len(places) + 1
        self._starts = _pick(places, [point.start for point in with_value], zero)
        self._ends = _pick(places, [point.time for point in with_value], zero)
        self._times = _pick(places, [point.measured for point in with_value], zero)
        self._values = _pick(places, [point.value for point in with_value], zero)
        self._steps = _pick(places, [point.step for point in with_value], none)
        self._beats = _pick(places, [p.time for p in layout.points if not p.has_value], zero)
        # Times, values, steps, times since the share before, and durations of each.
        self._of_shares = [
            _pick(places, [one.time for one in shares], zero),
            _pick(places, [one.value for one in shares], zero),
            _pick(places, [one.step for one in shares], none),
            _pick(places, [one.share for one in shares], none),
            _pick(places, [one.duration for one in shares], none),
        ]
        # Starts, times and values of each.
        self._of_sums = [
            _pick(places, [one.start for one in sums], zero),
            _pick(places, [one.time for one in sums], zero),
            _pick(places, [one.value for one in sums], zero),
        ]
        self._all_times = Struct(_format(len(body), slots, _times_of(layout)))

    def matches(self, body: bytes, cuts: Sequence[int] = ()) -> bool:
        """Return whether a body of the same length has this shape.

        Args:
            body: It.
            cuts: Places that must be between fields of its scopes, see ``CutBody``.
        """
        is_same = int.from_bytes(body, "little") & self._mask == self._fixed
        return is_same and (not cuts or self._edges.issuperset(cuts))

    def scope(self, place: int) -> bytes:
        """Return the serialized ``InstrumentationScope`` of the scope that begins there."""
        return self._scopes.get(place, b"")

    def time_range_ns(self, body: bytes) -> tuple[int, int]:
        """Return the earliest and the latest time of the points and measurements of a body."""
        times_ns = self._all_times.unpack(body)
        return (min(times_ns), max(times_ns)) if times_ns else (0, 0)

    def read(self, body: bytes) -> BodyNumbers:
        """Read a body of this shape."""
        numbers = (*self._struct.unpack(body), 0, None)
        gauges = Columns(
            self._starts(numbers),
            self._ends(numbers),
            self._times(numbers),
            self._values(numbers),
            _integers(self._steps(numbers)),
        )
        shares = _NO_SHARES
        if self.shares:
            times_ns, values, steps, since_ns, durations_ns = [
                of(numbers) for of in self._of_shares
            ]
            shares = ShareColumns(
                _before(times_ns, since_ns),
                _before(times_ns, durations_ns),
                times_ns,
                values,
                cast("Sequence[int]", _integers(steps)),  # each share has a step
            )
        sums = SumColumns(*[of(numbers) for of in self._of_sums]) if self.sums else _NO_SUMS
        return BodyNumbers(gauges, shares, sums, self._beats(numbers))


_NO_SUMS = SumColumns((), (), ())
_NO_SHARES = ShareColumns((), (), (), (), ())


def _mask(size_bytes: int, slots: Sequence[Slot]) -> int:
    mask = bytearray(b"\xff" * size_bytes)
    for slot in slots:
        # How long a varint is belongs to the shape.
        kept = bytes([_CONTINUES if slot.kind == "s" else 0])
        mask[slot.start : slot.start + slot.length] = kept * slot.length
    return int.from_bytes(mask, "little")


def _format(size_bytes: int, slots: Sequence[Slot], read: frozenset[Slot] | None = None) -> str:
    """Return the format of the whole body that reads all slots, or some."""
    form, position = ["<"], 0
    for slot in slots:
        form.append(f"{slot.start - position}x")
        is_read = slot.kind != "x" and (read is None or slot in read)
        if not is_read:
            form.append(f"{slot.length}x")
        else:
            form.append(f"{slot.length}s" if slot.kind == "s" else slot.kind)
        position = slot.start + slot.length
    form.append(f"{size_bytes - position}x")
    return "".join(form)


def _times_of(layout: Layout) -> frozenset[Slot]:
    of_points = [place for one in layout.points for place in (one.time, one.measured)]
    of_sums = [place for one in layout.sums for place in (one.time, *one.exemplar_times)]
    return frozenset(place for place in (*of_points, *of_sums) if place is not None)


def _pick(places: dict[Slot, int], slots: Sequence[Slot | None], absent: int) -> _Pick:
    """Return a function that picks a column out of all numbers."""
    indexes = [absent if slot is None else places[slot] for slot in slots]
    if len(indexes) > 1:
        return itemgetter(*indexes)
    return lambda numbers: tuple([numbers[index] for index in indexes])


def _before(times_ns: Sequence[int], encoded: Sequence[bytes | None]) -> Sequence[int]:
    """Return the times that are a duration, a varint, earlier; 0 where that is no time."""
    return [
        time_ns - duration_ns if 0 < (duration_ns := since_ns or 0) < time_ns else 0
        for time_ns, since_ns in zip(times_ns, _integers(encoded), strict=True)
    ]


def _integers(encoded: Sequence[bytes | None]) -> Sequence[int | None]:
    """Decode varints, nearly all of which are equal: one step in an export."""
    first = encoded[0] if encoded else None
    if encoded.count(first) == len(encoded):
        return [_integer(first)] * len(encoded)
    return list(map(_integer, encoded))


@lru_cache(maxsize=1 << 12)
def _integer(encoded: bytes | None) -> int | None:
    """Decode a varint as a 64-bit integer, as protobuf does."""
    if encoded is None:
        return None
    value = 0
    for place, byte in enumerate(encoded):
        value |= (byte & 0x7F) << 7 * place
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
