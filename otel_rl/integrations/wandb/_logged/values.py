"""Converts a logged dict to a flat row of the present numbers."""

import math
from collections.abc import Mapping
from typing import Final

from otel_rl.integrations.wandb._logged.histogram import Histogram
from otel_rl.integrations.wandb._logged.rows import Row
from otel_rl.integrations.wandb._logged.table import Table
from otel_rl.integrations.wandb._stand_ins.media import Media
from otel_rl.integrations.wandb._stand_ins.stand_in import StandIn
from otel_rl.worker.tensors import PLAIN, NotANumber, hold

__all__ = ["Skipped", "flat_row"]

_MAX_DEPTH: Final = 32
"""Deeper nesting indicates an object graph, possibly circular, instead of metrics."""

_OWN: Final = frozenset({"_runtime", "_step", "_timestamp"})
"""W&B's columns. Of these a program may set the time, in seconds."""

Skipped = dict[str, str]
"""Unsupported values: flat name to kind."""


def flat_row(data: Mapping[str, object], time_ns: int) -> tuple[Row, Skipped]:
    """Return the numbers in ``data``, with nested dicts as dotted names.

    None is skipped silently. Tensors are copied on their device without waiting for it. A histogram
    becomes its mean under its name, and its other statistics below.

    Args:
        data: As given to ``log``.
        time_ns: Time of the call.
    """
    row, skipped = Row(0, time_ns), Skipped()
    _put(row, skipped, "", data, 0)
    for name in _OWN.intersection(row.values):
        value = row.values.pop(name)
        if name == "_timestamp" and isinstance(value, int | float) and math.isfinite(value):
            row.time_ns = int(value * 1e9)
    return row, skipped


def _put(row: Row, skipped: Skipped, prefix: str, data: Mapping[str, object], depth: int) -> None:
    values = row.values
    for key, value in data.items():
        name = f"{prefix}{key}"
        if type(value) in PLAIN:
            values[name] = value
        elif value is None:
            continue
        elif hasattr(value, "__float__"):  # most other values
            _put_number(row, skipped, name, value)
        elif isinstance(value, Mapping):
            if depth < _MAX_DEPTH:
                _put(row, skipped, f"{name}.", value, depth + 1)
            else:
                skipped[name] = "dict nested too deep"
        elif isinstance(value, Histogram):
            _put_histogram(row, skipped, name, value)
        elif isinstance(value, Table):
            row.tables[name] = value.samples()
        elif (kind := _without_numbers(value)) is not None:
            skipped[name] = kind
        elif hasattr(value, "item"):
            _put_number(row, skipped, name, value)
        else:
            skipped[name] = type(value).__name__


def _put_number(row: Row, skipped: Skipped, name: str, value: object) -> None:
    held = hold(value)
    if isinstance(held, NotANumber):
        skipped[name] = held.description
    else:
        row.values[name] = held


def _without_numbers(value: object) -> str | None:
    """Return the kind of a value that cannot hold a number; None for all others."""
    if isinstance(value, Media):
        return value.kind
    if isinstance(value, str | bytes):
        return "text"
    if isinstance(value, StandIn) or (isinstance(value, type) and issubclass(value, StandIn)):
        return repr(value)
    return None


def _put_histogram(row: Row, skipped: Skipped, name: str, histogram: Histogram) -> None:
    if not histogram.statistics:
        skipped[name] = "Histogram without numbers"
    for statistic, value in histogram.statistics.items():
        if statistic in ("min", "max"):
            row.extremes.setdefault(statistic, {})[f"{name}/{statistic}"] = value
        else:
            row.values[name if statistic == "mean" else f"{name}/{statistic}"] = value
