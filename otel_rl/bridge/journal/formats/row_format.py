"""Format of a row in the journal: a JSON list of its fields."""

import json

from otel_rl.records import Row, Table

__all__ = ["decode_row", "encode_row"]


def encode_row(row: Row) -> bytes:
    """Encode a row without its number."""
    # The standard library's JSON writes NaN and infinities as words and reads them back.
    fields: list[object] = [row.step, row.time_ns, row.policy_version, dict(row.values)]
    if row.tables or row.labels or row.attempt > 1:
        tables = {key: [table.columns, table.rows] for key, table in row.tables.items()}
        fields.extend([tables, dict(row.labels), row.attempt])
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_row(number: int, body: bytes) -> Row:
    """Undo ``encode_row``."""
    step, time_ns, policy_version, values, *more = json.loads(body)
    tables, labels, attempt = more or ({}, {}, 1)
    tables = {key: Table(*table) for key, table in tables.items()}
    return Row(number, step, time_ns, values, policy_version, tables, labels, attempt=attempt)
