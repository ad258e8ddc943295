"""What a program logs: numbers, ``wandb.Histogram`` and ``wandb.Table``."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from otel_rl.integrations.wandb._absent import Absent, attribute, warn_once
from otel_rl.worker.tensors import PLAIN, NotANumber, hold

__all__ = ["Histogram", "Row", "Table", "Tables", "flat_row"]

_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

_MAX_DEPTH: Final = 32
"""Deeper nesting indicates an object graph, possibly circular, instead of metrics."""

_OWN: Final = frozenset({"_runtime", "_step", "_timestamp"})
"""W&B's columns. Of these a program may set the time, in seconds."""

Samples = Sequence[Mapping[str, object]]
Skip = Callable[[str, str], object]


class Histogram:
    """Numbers of one step, reduced at once to their mean, extremes and quantiles. Never raises.

    Invalid input has no statistics. It is no OpenTelemetry histogram: those are merged over time.

    Args:
        sequence: Numbers, an array or a tensor of any shape.
        np_histogram: Instead: counts and bin edges, as from ``numpy.histogram``. The error of a
            statistic is at most the width of a bin.
        num_bins: Ignored: statistics of a sequence are exact.
    """

    def __init__(
        self,
        sequence: object = None,
        np_histogram: "tuple[Iterable[float], Iterable[float]] | None" = None,
        num_bins: int = 64,
    ) -> None:
        del num_bins
        self.statistics: dict[str, float] = {}
        try:
            if np_histogram is not None:
                counts, edges = np_histogram
                self.statistics = _of_bins(list(map(float, counts)), list(map(float, edges)))
            elif sequence is not None:
                self.statistics = _of_ordered(*_ordered(sequence))
        except Exception:  # noqa: BLE001  # any library's array; counted when logged
            return

    def __getattr__(self, name: str) -> Any:
        if name == "statistics":  # while it is copied
            raise AttributeError(name)
        return attribute("Histogram", name)


def _ordered(sequence: object) -> tuple[Sequence[float], float]:
    """Return the elements in ascending order with NaN last, and their mean."""
    for name in ("detach", "float", "cpu"):  # a tensor of any type and device
        convert = getattr(sequence, name, None)
        if callable(convert):
            sequence = convert()
    if not hasattr(sequence, "__array__"):
        values = list(_flat(sequence))
        mean = sum(values) / len(values) if values else math.nan
        return sorted(values, key=lambda value: (math.isnan(value), value)), mean
    import numpy as np  # array input implies that numpy is loaded

    flat = np.sort(np.asarray(sequence, dtype=float), axis=None)
    return cast("Sequence[float]", flat), float(flat.mean()) if flat.size else math.nan


def _flat(sequence: object) -> Iterator[float]:
    if isinstance(sequence, str | bytes) or not isinstance(sequence, Iterable):
        raise TypeError("no sequence of numbers")
    for item in sequence:
        if isinstance(item, Iterable):
            yield from _flat(item)
        else:
            yield float(item)


def _of_ordered(ordered: Sequence[float], mean: float) -> dict[str, float]:
    last = len(ordered) - 1
    if last < 0:
        return {}
    if math.isnan(ordered[last]):  # NaN has no place in an order
        return dict.fromkeys(("mean", "min", "max", *_QUANTILES), math.nan)
    found = {"mean": mean, "min": float(ordered[0]), "max": float(ordered[last])}
    for name, quantile in _QUANTILES.items():
        below = math.floor(quantile * last)
        above = min(below + 1, last)
        found[name] = _between(ordered[below], ordered[above], quantile * last - below)
    return found


def _of_bins(counts: Sequence[float], edges: Sequence[float]) -> dict[str, float]:
    bins = [bin_ for bin_ in zip(edges, edges[1:], counts, strict=False) if bin_[2] > 0]
    if not bins or len(edges) != len(counts) + 1:
        return {}
    total = math.fsum(count for _, _, count in bins)
    weighted = math.fsum((low + high) / 2 * count for low, high, count in bins)
    found = {"mean": weighted / total, "min": bins[0][0], "max": bins[-1][1]}
    for name, quantile in _QUANTILES.items():
        rank, found[name] = quantile * total, bins[-1][1]
        for low, high, count in bins:
            if count >= rank:
                found[name] = _between(low, high, rank / count)
                break
            rank -= count
    return found


def _between(low: float, high: float, share: float) -> float:
    # Equal ends may be infinite, and inf - inf is NaN.
    return float(low if low == high or share <= 0 else low + (high - low) * share)


class Table:
    """Writable part of W&B's table: each row becomes a sample of the run's table. Never raises.

    Args:
        columns: Names of the fields; default W&B's own three.
        data: Rows of values, or a pandas ``DataFrame``.
        rows: An old name of ``data``.
        dataframe: A pandas ``DataFrame``, instead of all of them.
        dtype: Ignored, like the rest: values are written as they are.
        optional: Ignored.
        allow_mixed_types: Ignored.
        log_mode: Ignored: a table that is logged again adds its new rows.
    """

    def __init__(
        self,
        columns: Iterable[object] | None = None,
        data: Any = None,
        rows: Any = None,
        dataframe: Any = None,
        dtype: object = None,
        optional: object = True,
        allow_mixed_types: bool = False,
        log_mode: object = None,
    ) -> None:
        del dtype, optional, allow_mixed_types, log_mode
        given = data if data is not None else rows
        frame = dataframe if dataframe is not None else given if hasattr(given, "columns") else None
        if frame is not None:
            columns, given = list(frame.columns), frame.to_numpy().tolist()
        self.columns = [str(name) for name in columns or ("Input", "Output", "Expected")]
        self.data: list[list[object]] = [list(row) for row in (given if given is not None else ())]

    def add_data(self, *data: object) -> None:
        """Append a row."""
        if len(data) == len(self.columns):
            self.data.append(list(data))
        else:
            warn_once(f"a row of {len(data)} values for {len(self.columns)} columns is dropped.")

    add_row = add_data

    def add_column(self, name: object, data: Iterable[object], optional: bool = False) -> None:
        """Append a column."""
        del optional
        values = list(data)
        if self.data and len(values) != len(self.data):
            warn_once(f"a column of {len(values)} values for {len(self.data)} rows is dropped.")
            return
        self.columns.append(str(name))
        rows = self.data or [[] for _ in values]
        self.data = [[*row, value] for row, value in zip(rows, values, strict=True)]

    def get_column(self, name: str, convert_to: str | None = None) -> list[object]:
        """Return the values of a column."""
        del convert_to
        place = self.columns.index(name)
        return [row[place] for row in self.data]

    def samples(self) -> Samples:
        """Return its present rows."""
        return [dict(zip(self.columns, row, strict=False)) for row in self.data]

    def __getattr__(self, name: str) -> Any:
        if name in ("columns", "data"):  # while it is copied
            raise AttributeError(name)
        return attribute("Table", name)

    def __repr__(self) -> str:
        return f"<wandb.Table of {len(self.data)} rows>"


class Tables:
    """Written rows of each table: programs log a table again with additional rows.

    W&B keeps the last table of a name. A run of otel_rl keeps every row once, with its step.
    """

    def __init__(self) -> None:
        self._written: dict[str, list[int]] = {}

    def news(self, name: str, samples: Samples) -> Samples:
        """Return the samples that the previous table of this name did not contain."""
        known = [hash(str(sample)) for sample in samples]
        before = self._written.get(name, [])
        self._written[name] = known
        return samples[len(before) :] if known[: len(before)] == before else samples


@dataclass(slots=True)
class Row:
    """Values logged at one step.

    Attributes:
        step: The run's step.
        time_ns: Time of the last update, in ns since the Unix epoch.
        values: Flat name to value.
        extremes: The same for values that are reduced to the smallest (``min``) or the largest
            (``max``) over the workers.
        tables: Name to the samples of a table.
    """

    step: int
    time_ns: int = 0
    values: dict[str, object] = field(default_factory=dict)
    extremes: dict[str, dict[str, object]] = field(default_factory=dict)
    tables: dict[str, Samples] = field(default_factory=dict)

    def update(self, other: "Row") -> None:
        """Merge the content of ``other``, which replaces earlier values."""
        self.values |= other.values
        for reduction, values in other.extremes.items():
            self.extremes.setdefault(reduction, {}).update(values)
        self.tables |= other.tables
        self.time_ns = other.time_ns

    def __bool__(self) -> bool:
        return bool(self.values or self.extremes or self.tables)


def flat_row(data: Mapping[str, object], time_ns: int, skip: Skip) -> Row:
    """Return the numbers in ``data``, with nested dicts as dotted names.

    None is skipped silently. Tensors are copied on their device without waiting for it. A histogram
    becomes its mean under its name, and its other statistics below.

    Args:
        data: As given to ``log``.
        time_ns: Time of the call.
        skip: Receives name and kind of each value that a run cannot take.
    """
    row = Row(0, time_ns)
    _put(row, skip, "", data, 0)
    for name in _OWN.intersection(row.values):
        value = row.values.pop(name)
        if name == "_timestamp" and isinstance(value, int | float) and math.isfinite(value):
            row.time_ns = int(value * 1e9)
    return row


def _put(row: Row, skip: Skip, prefix: str, data: Mapping[str, object], depth: int) -> None:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if type(value) in PLAIN:
            row.values[name] = value
        elif value is None:
            continue
        elif hasattr(value, "__float__"):  # most other values
            _put_number(row, skip, name, value)
        elif isinstance(value, Mapping):
            if depth < _MAX_DEPTH:
                _put(row, skip, f"{name}.", value, depth + 1)
            else:
                skip(name, "dict nested too deep")
        elif isinstance(value, Histogram):
            _put_histogram(row, skip, name, value)
        elif isinstance(value, Table):
            row.tables[name] = value.samples()
        elif (kind := _without_numbers(value)) is not None:
            skip(name, kind)
        else:
            _put_number(row, skip, name, value)


def _without_numbers(value: object) -> str | None:
    """Return the kind of a value that cannot hold a number; None for all others."""
    if isinstance(value, str | bytes):
        return "text"
    if isinstance(value, Absent) or (isinstance(value, type) and issubclass(value, Absent)):
        return value.path
    return None if hasattr(value, "item") else type(value).__name__


def _put_number(row: Row, skip: Skip, name: str, value: object) -> None:
    held = hold(value)
    if isinstance(held, NotANumber):
        skip(name, held.description)
    else:
        row.values[name] = held


def _put_histogram(row: Row, skip: Skip, name: str, histogram: Histogram) -> None:
    if not histogram.statistics:
        skip(name, "Histogram without numbers")
    for statistic, number in histogram.statistics.items():
        if statistic in ("min", "max"):
            row.extremes.setdefault(statistic, {})[f"{name}/{statistic}"] = number
        else:
            row.values[name if statistic == "mean" else f"{name}/{statistic}"] = number
