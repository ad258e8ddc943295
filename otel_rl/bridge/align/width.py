"""A row that a tracker might not take is several rows, before any of them has a number.

W&B leaves out a line of more than about 10 MiB without an error. A run of twenty thousand keys with
their statistics can come to that.
"""

from collections.abc import Iterator

from otel_rl.bridge.keys import MAX_KEY_LENGTH

__all__ = ["MAX_ROW_BYTES", "parts"]

MAX_ROW_BYTES = 4 << 20
"""Of a row in JSON, about: a small part of what W&B takes, and of what its pages show well."""

_VALUE_BYTES = 32  # a double, its quotes, colon and comma

_MAX_PAIR_BYTES = MAX_KEY_LENGTH + 64  # with a worker's own prefix, or a statistic


def parts(values: dict[str, float], max_bytes: int = MAX_ROW_BYTES) -> Iterator[dict[str, float]]:
    """The values in as few rows as there must be, in their order; at least one."""
    if len(values) * _MAX_PAIR_BYTES <= max_bytes:  # nearly always
        yield values
        return
    part: dict[str, float] = {}
    size = 0
    for key, value in values.items():
        size += len(key) + _VALUE_BYTES  # keys are ASCII
        if part and size > max_bytes:
            yield part
            part, size = {}, len(key) + _VALUE_BYTES
        part[key] = value
    yield part
