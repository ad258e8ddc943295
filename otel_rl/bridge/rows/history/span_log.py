"""Log of spans: those that are new since the last commit, stored beside the state of a run.

Spans are too many to be written again with every commit. So each is stored once, in the transaction
of the rows, and read again after a restart, as in ``dedup_log.py``.
"""

from collections.abc import Iterable, Iterator, Sequence
from sys import getsizeof
from typing import Final, NamedTuple

from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.records import SpanRecord

__all__ = ["SpanLog", "read_spans", "span_log"]

# Bytes of spans in one part of a log, which is read part by part.
_PART_BYTES: Final = 1 << 20
_ENCODED_BYTES: Final = 100
_ENCODED_LINK_BYTES: Final = 26


class SpanLog(NamedTuple):
    """Spans, to be stored beside the state and passed to ``RecentSpans.restore``.

    Attributes:
        newest_ns: The latest of their ends.
        body: Opaque.
    """

    newest_ns: int
    body: bytes


def span_log(spans: Sequence[SpanRecord]) -> SpanLog:
    """Return the log of these spans, at least one."""
    body = b"".join(wire.compress(wire.encode(part)) for part in _parts(spans))
    return SpanLog(max(span.end_ns for span in spans), body)


def _parts(spans: Iterable[SpanRecord]) -> Iterator[wire.SpanPart]:
    """Yield the spans for the journal, in parts that take little memory each."""
    part = _Part()
    for span in spans:
        part.add(span)
        if part.size_bytes >= _PART_BYTES:
            yield part.to_wire()
            part = _Part()
    if part.size_bytes:
        yield part.to_wire()


class _Part:
    """Part of a log of spans, with each text once.

    Attributes:
        size_bytes: Approximate encoded size.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._places: dict[str, int] = {}
        self._spans: list[wire.Span] = []

    def add(self, span: SpanRecord) -> None:
        """Add a span."""
        place = self._place
        self._spans.append(
            wire.Span(
                span.span_id,
                span.parent_id,
                span.links,
                place(span.role),
                place(span.worker),
                place(span.host),
                span.start_ns,
                span.end_ns,
                place(span.name),
                place(span.phase),
                place(span.phase_class),
                span.step,
                span.failed,
            )
        )
        self.size_bytes += _ENCODED_BYTES + _ENCODED_LINK_BYTES * len(span.links)

    def to_wire(self) -> wire.SpanPart:
        """Return the part for the journal."""
        return wire.SpanPart(wire.VERSION, [*self._places], self._spans)

    def _place(self, text: str) -> int:
        place = self._places.get(text)
        if place is None:
            place = self._places[text] = len(self._places)
            self.size_bytes += getsizeof(text)
        return place


def read_spans(body: bytes) -> Iterator[Sequence[SpanRecord]]:
    """Yield the spans of ``SpanLog.body``, part by part.

    Raises:
        StateRefused: It is something else.
    """
    for raw in wire.decompress_each(body):
        part = wire.decode(raw, wire.SpanPart)
        texts = part.texts
        with wire.refusing():
            spans = [
                SpanRecord(
                    span.span_id,
                    span.parent_id,
                    span.links,
                    texts[span.role],
                    texts[span.worker],
                    texts[span.host],
                    span.start_ns,
                    span.end_ns,
                    texts[span.name],
                    texts[span.phase],
                    texts[span.phase_class],
                    span.step,
                    span.failed,
                )
                for span in part.spans
            ]
        yield spans
