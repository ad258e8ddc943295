"""Format of a row in the journal: a JSON list of its fields.

Numbers are written and read by fast libraries, of which none knows NaN and infinities. A row with
any of them, with tables, or with what those libraries refuse, goes through the standard library,
which writes the words ``NaN`` and ``Infinity``. Both ways read what either has written.
"""

import json
import math
from collections.abc import Iterable

import msgspec
import orjson

from otel_rl.records import Row, Table

__all__ = ["decode_row", "encode_row", "fast_json"]

# Not orjson, which makes floats of integers that exceed 64 bits.
_DECODER = msgspec.json.Decoder()


def encode_row(row: Row) -> bytes:
    """Encode a row without its number."""
    values = row.values if isinstance(row.values, dict) else dict(row.values)
    fields: list[object] = [row.step, row.time_ns, row.policy_version, values]
    if row.tables or row.labels or row.attempt > 1 or row.replaces:
        tables = {key: [table.columns, table.rows] for key, table in row.tables.items()}
        fields.extend([tables, dict(row.labels), row.attempt, row.replaces])
    body = None if row.tables else fast_json(fields, values.values())
    return body or json.dumps(fields, separators=(",", ":")).encode()


def decode_row(number: int, body: bytes) -> Row:
    """Undo ``encode_row``."""
    try:
        fields = _DECODER.decode(body)
    except msgspec.DecodeError:
        fields = json.loads(body)
    step, time_ns, policy_version, values, *more = fields
    tables, labels, attempt, replaces = more or ({}, {}, 1, False)
    tables = {key: Table(*table) for key, table in tables.items()}
    row = Row(
        *(number, step, time_ns, values, policy_version, tables, labels),
        attempt=attempt,
        replaces=replaces,
    )
    object.__setattr__(row, "stored_bytes", len(body))  # frozen for everyone else
    return row


def fast_json(record: object, numbers: Iterable[float]) -> bytes | None:
    """Return a record as JSON, if it can be written by a library that has no NaN.

    Args:
        record: Lists and dicts of text and numbers.
        numbers: All its numbers that may be NaN or infinite.

    Returns:
        None also for what the library refuses: an integer of more than 64 bits, half of a surrogate
            pair, a subclass of float; and for numbers whose sum is too large.
    """
    try:
        # Copied: the library reserves up to eight times the room, and keeps it with its result.
        return bytes(memoryview(orjson.dumps(record))) if math.isfinite(sum(numbers)) else None
    except (OverflowError, TypeError):
        return None
