"""Log of spans: the spans that are new since the last commit, stored beside a run's state.

Spans are too many to be written again with every commit. So each span is stored once, in the
transaction of the rows, and read again after a restart, as in ``dedup_log.py``. The page and
exports read this log, too; so this module imports neither the rules and settings of rows nor their
libraries.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from otel_rl.bridge.journal.log import Appended
from otel_rl.bridge.journal.state import compress, decode, decompress_each, encode
from otel_rl.records import SpanRecord

_PART: Final = 512
"""Spans in a part of the log, which is read part by part: even large ones take little memory."""

_TEXTS: Final = ("role", "worker", "host", "name", "phase", "phase_class")


def span_log(spans: Sequence[SpanRecord]) -> Appended:
    parts = (spans[at : at + _PART] for at in range(0, len(spans), _PART))
    body = b"".join(compress(encode(part)) for part in parts)
    return Appended(max(span.end_ns for span in spans), body)


def read_spans(body: bytes) -> Iterator[Sequence[SpanRecord]]:
    known: dict[str, str] = {}  # many spans have few different texts
    for raw in decompress_each(body):
        spans = decode(raw, list[SpanRecord])
        for span in spans:
            for name in _TEXTS:
                text = getattr(span, name)
                object.__setattr__(span, name, known.setdefault(text, text))
        yield spans
