"""Encodes one measurement as an OTLP exemplar, per ADR 0000.

The stock SDK builds and serialises a protobuf object per measurement; writing the bytes costs a
tenth of that. Most neighbouring measurements share the bytes around the time and the value:

    | tag, length, filtered_attributes, tag | time | tag | value | span_id, trace_id |
    '--------------- before ----------------'                    '------ after ------'

Field numbers are those of opentelemetry/proto/metrics/v1/metrics.proto:

    NumberDataPoint { exemplars = 5 }
    Exemplar { time = 2, as_double = 3, span_id = 4, trace_id = 5, as_int = 6, filtered = 7 }
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import get_current_span

from otel_rl.semconv.names import RL_LOOP_ITERATION
from otel_rl.worker.otlp import protobuf
from otel_rl.worker.tensors import as_step

__all__ = ["AS_DOUBLE", "LOWEST_DIGIT", "AlikeRows", "BadStep", "Framing", "measured", "pack"]

AS_DOUBLE: Final = 0x19  # as_double = 3
_AS_INT: Final = 0x31  # as_int = 6

_TIME: Final = b"\x11"  # time_unix_nano = 2
_MEASURED_BYTES: Final = 18
"""Two tags, a time and a value."""

_FILTERED: Final = 0x3A  # filtered_attributes = 7

_SPAN_BYTES: Final = 28
"""Two tags and lengths, a span id and a trace id."""


def _heads(after_bytes: int) -> list[bytes]:
    """Return an exemplar up to the digits of its step, by the number of digits; 0 for no step.

    Tag and length of ``NumberDataPoint.exemplars``, at most 80, which is one byte; then the step in
    ``filtered_attributes``.
    """
    samples = (0, *(1 << 7 * n for n in range(9)), -1)  # the last has ten digits
    steps = [
        b"" if n == 0 else protobuf.field(7, protobuf.key_value(RL_LOOP_ITERATION, sample))
        for n, sample in enumerate(samples)
    ]
    return [
        bytes((0x2A, len(step) + _MEASURED_BYTES + after_bytes)) + step[: len(step) - n]
        for n, step in enumerate(steps)
    ]


LOWEST_DIGIT: Final = [bytes((n | 128,)) for n in range(128)]
"""Lowest seven bits of a varint with more digits."""

_HEADS: Final = _heads(0)
_HEADS_IN_SPAN: Final = _heads(_SPAN_BYTES)

_BEFORE_LENGTHS: Final = range(max(map(len, _HEADS)) + 10 + len(_TIME) + 1)

# Indexed by the length of the bytes before.
_PACK_DOUBLE: Final = [struct.Struct(f"<{n}sQBd").pack for n in _BEFORE_LENGTHS]
_PACK_INT: Final = [struct.Struct(f"<{n}sQBq").pack for n in _BEFORE_LENGTHS]

_TIME_AND_TAG: Final = struct.Struct("<QB")
_MAX_ALIKE_ROWS: Final = 256
"""Bounds what is kept of the buffer's entries."""

_MEASURED: Final = struct.Struct("<QB8s").unpack_from


class BadStep(ValueError):
    """Step that is not a 64-bit integer."""


class Framing:
    """Makes the bytes before and after a measurement. Caches the last span and step.

    A step's lowest digit comes first, so its neighbours share all bytes around it.

    Attributes:
        before: Bytes before a measurement with the step and context of the last call.
        after: Bytes after it.
        pack_double: ``pack(before, time_ns, AS_DOUBLE, value)``.
        high: The step without its lowest digit; 0 if it has no neighbours.
        head: With ``LOWEST_DIGIT`` and ``tail``, ``before`` of every step with this ``high``.
        tail: See ``head``.
    """

    __slots__ = ("_context", "_heads", "after", "before", "head", "high", "pack_double", "tail")

    def __init__(self) -> None:
        self._context: Context | None = None
        self._heads = _HEADS
        self.high = 0
        self.head = self.tail = self.before = self.after = b""
        self.pack_double = _PACK_DOUBLE[0]
        self(None, None)

    def __call__(self, step: object, context: Context | None) -> None:
        """Change to a step, which may be of any library, and a context.

        Raises:
            BadStep: It is not a 64-bit integer.
        """
        if context is not self._context:
            self._context, self.after = context, _span(context)
            self._heads = _HEADS_IN_SPAN if self.after else _HEADS
        digits = b""
        self.high = 0
        if step is not None:
            number = as_step(step)
            if number is None:
                raise BadStep(f"the step must be an integer of 64 bits (got {str(step)[:80]!r})")
            digits = protobuf.varint(number)
            self.high = number >> 7
        self.head, self.tail = self._heads[len(digits)], digits[1:] + _TIME
        self.before = self._heads[len(digits)] + digits + _TIME
        self.pack_double = _PACK_DOUBLE[len(self.before)]


def pack(before: bytes, time_ns: int, value: float) -> bytes:
    """Pack like ``Framing.pack_double``, and integers as integers."""
    if isinstance(value, int):
        return _PACK_INT[len(before)](before, time_ns, _AS_INT, value)
    return _PACK_DOUBLE[len(before)](before, time_ns, AS_DOUBLE, value)


class AlikeRows:
    """Rows of floats that differ in step, time and numbers only: encoded by column.

    That takes a third of the time by measurement.

    Args:
        exemplars: Get those of each column.
        before_bytes: Length of ``Framing.before``.
        after: ``Framing.after``.
    """

    __slots__ = ("_after", "_exemplars", "_pack", "_rows", "_starts")

    def __init__(self, exemplars: Sequence[list[bytes]], before_bytes: int, after: bytes) -> None:
        self._exemplars = exemplars
        self._after = after
        start_bytes = before_bytes + _TIME_AND_TAG.size
        self._pack = struct.Struct(f"<{start_bytes}sd{len(after)}s").pack
        self._starts: list[bytes] = []
        self._rows: list[tuple[object, ...]] = []

    def add(self, before: bytes, time_ns: int, values: Iterable[object]) -> None:
        """Add a row of as many floats as there are columns."""
        self._starts.append(before + _TIME_AND_TAG.pack(time_ns, AS_DOUBLE))
        self._rows.append((*values,))
        if len(self._rows) == _MAX_ALIKE_ROWS:
            self.encode()

    def encode(self) -> None:
        """Append the exemplars of the rows since the last call."""
        for exemplars, column in zip(self._exemplars, zip(*self._rows, strict=True), strict=False):
            exemplars.extend(map(self._pack, self._starts, column, repeat(self._after)))
        self._starts.clear()
        self._rows.clear()


def measured(exemplar: bytes) -> tuple[int, bool, bytes]:
    """Return an exemplar's (time in ns, True if an integer, the value's eight bytes)."""
    time_at = 3 if exemplar[2] != _FILTERED else 5 + exemplar[3]
    time_ns, tag, value = _MEASURED(exemplar, time_at)
    return time_ns, tag == _AS_INT, value


def _span(context: Context | None) -> bytes:
    """Encode the ids of the span in ``context`` for an exemplar."""
    if not context:
        return b""
    span = get_current_span(context).get_span_context()
    if not span.is_valid:
        return b""
    # span_id = 4, 8 bytes; trace_id = 5, 16 bytes
    return b"\x22\x08%b\x2a\x10%b" % (
        span.span_id.to_bytes(8, "big"),
        span.trace_id.to_bytes(16, "big"),
    )
