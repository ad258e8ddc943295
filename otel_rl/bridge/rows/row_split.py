"""Splits rows wider than the tracker accepts, before they get a number.

W&B drops a line of more than about 10 MiB without an error. A run of twenty thousand keys with
their statistics can reach that.
"""

from collections.abc import Iterator

from otel_rl.bridge.tracker_keys import MAX_KEY_BYTES

__all__ = ["MAX_ROW_BYTES", "parts"]

MAX_ROW_BYTES = 4 << 20
"""Approximate size of a row in JSON: a small part of W&B's limit, and of what its pages show well.
"""

_VALUE_BYTES = 32  # a double, its quotes, colon and comma

_MAX_PAIR_BYTES = MAX_KEY_BYTES + 64  # with a worker's own prefix, or a statistic


def parts(values: dict[str, float], max_bytes: int = MAX_ROW_BYTES) -> Iterator[dict[str, float]]:
    """Yield the values in as few rows as needed, in their order; at least one."""
    if len(values) * _MAX_PAIR_BYTES <= max_bytes:  # nearly always
        yield values
        return
    part: dict[str, float] = {}
    size = 0
    for key, value in values.items():
        size += len(key.encode()) + _VALUE_BYTES
        if part and size > max_bytes:
            yield part
            part, size = {}, len(key.encode()) + _VALUE_BYTES
        part[key] = value
    yield part
