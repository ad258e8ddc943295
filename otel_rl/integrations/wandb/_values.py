"""Values that a program logs, and W&B's rules for the row and step of each call. No I/O.

    log({...})                  one row; the step advances
    log({...}, commit=False)    into the pending row
    log({...}, step=7)          into the pending row of step 7; an earlier pending row is complete
    log({...}, step=7, commit=True)    ... and that row is complete
    log({...}, step=3)          refused: the step is past

A call without ``step`` in an ``otel_rl.step`` block goes into the pending row of the block's step.
A call after the block begins another row, and a block of a past step has rows of its own.

Within a row the last value of a key wins.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from otel_rl.integrations.adapter import flat, may_be_number
from otel_rl.integrations.wandb._absent import Skipped, attribute, warn_once
from otel_rl.worker.tensors import NotANumber, as_step, hold

__all__ = ["Row", "Rows", "Table", "flat_row"]

_OWN: Final = frozenset({"_runtime", "_step", "_timestamp"})
"""W&B's columns. Of these a program may set the time, in seconds."""

Samples = Sequence[Mapping[str, object]]
Skip = Callable[[str, str], object]


class Table:
    """Writable part of W&B's table: each row becomes a sample of the run's table.

    Args:
        columns: Names of the fields; default W&B's own three.
        data: Rows of values, or a pandas ``DataFrame``.
        rows: An old name of ``data``.
        dataframe: A pandas ``DataFrame``, instead of the three above.
        dtype: Ignored, as are ``optional``, ``allow_mixed_types`` and ``log_mode``: values are
            written as they are, and a table that is logged again adds its new rows.
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
        if len(data) == len(self.columns):
            self.data.append(list(data))
        else:
            warn_once(f"a row of {len(data)} values for {len(self.columns)} columns is dropped.")

    def add_column(self, name: object, data: Iterable[object], optional: bool = False) -> None:
        del optional
        values = list(data)
        if self.data and len(values) != len(self.data):
            warn_once(f"a column of {len(values)} values for {len(self.data)} rows is dropped.")
            return
        self.columns.append(str(name))
        rows = self.data or [[] for _ in values]
        self.data = [[*row, value] for row, value in zip(rows, values, strict=True)]

    def get_column(self, name: str, convert_to: str | None = None) -> list[object]:
        del convert_to
        place = self.columns.index(name)
        return [row[place] for row in self.data]

    def samples(self) -> Samples:
        return [dict(zip(self.columns, row, strict=False)) for row in self.data]

    def __getattr__(self, name: str) -> Any:
        return attribute("Table", name)


@dataclass(slots=True)
class Row:
    """Values logged at one step.

    Attributes:
        time_ns: Time of the last update, in ns since the Unix epoch.
        values: Flat name to value.
        tables: Name to the samples of a table.
    """

    step: int
    time_ns: int = 0
    values: dict[str, object] = field(default_factory=dict)
    tables: dict[str, Samples] = field(default_factory=dict)

    def update(self, other: "Row") -> None:
        """Merge the content of ``other``, which replaces earlier values."""
        self.values |= other.values
        self.tables |= other.tables
        self.time_ns = other.time_ns

    @property
    def size(self) -> int:
        return len(self.values) + sum(map(len, self.tables.values()))

    def __bool__(self) -> bool:
        return bool(self.values or self.tables)


def flat_row(data: Mapping[str, object], time_ns: int, skip: Skip) -> Row:
    """Return the numbers in ``data``, with nested dicts as dotted names.

    None is skipped silently. Tensors are copied on their device without waiting for it.
    """
    row = Row(0, time_ns)
    for name, value in flat(data, "."):
        if value is None:
            continue
        if isinstance(value, Table):
            row.tables[name] = value.samples()
        elif isinstance(value, Mapping):
            skip(name, "dict nested too deep")
        elif isinstance(value, str | bytes):
            skip(name, "text")
        elif isinstance(value, Skipped) or not may_be_number(value):
            skip(name, type(value).__name__)
        elif isinstance(held := hold(value), NotANumber):
            skip(name, held.description)
        else:
            row.values[name] = held
    for name in _OWN.intersection(row.values):
        value = row.values.pop(name)
        if name == "_timestamp" and isinstance(value, int | float) and math.isfinite(value):
            row.time_ns = int(value * 1e9)
    return row


class Rows:
    """The pending row of a run, its step, and which metrics hold steps. Not thread-safe.

    The axis that ``define_metric`` gives ``*`` holds steps; that of other metrics does if its name
    says step: programs declare one for each group of their metrics, ``train/*`` over
    ``train/step``.
    """

    def __init__(self) -> None:
        self._pending = Row(0)
        self._is_of_block = False
        self._written: dict[str, list[int]] = {}  # hashes of the rows of each table
        self._axes: list[str] = []
        self._axis_of_all: str | None = None
        self._last: int | None = None  # step by an axis
        self._ahead = 0

    @property
    def step(self) -> int:
        """Return the step of the next value without one."""
        return self._pending.step

    def add(
        self, logged: Row, step: int | None, *, commit: bool | None, block: int | None = None
    ) -> list[Row] | None:
        """Add one call of ``log``, with the step of the block around it.

        Returns:
            The completed rows, in order; None if the step is below the current one.
        """
        done: list[Row] = []
        if step is None and block is not None:
            if block < self.step:
                logged.step = block
                return [self._at_its_step(logged)]
            step = block
        elif step is None and self._is_of_block:
            done = self.complete(self.step + 1)
        self._is_of_block = step is not None and step == block
        if step is not None:
            if step < self.step:
                return None
            if step > self.step:
                done = self.complete(step)
        self._pending.update(logged)
        if step is None if commit is None else commit:
            done += self.complete(self.step + 1)
        return done

    def complete(self, next_step: int | None = None) -> list[Row]:
        """Complete the pending row, if it has values; the next one is at ``next_step``."""
        done = self._pending
        self._pending = Row(self.step if next_step is None else next_step)
        return [self._at_its_step(done)] if done else []

    def forget(self) -> None:
        self._pending = Row(self.step)

    def declare(self, pattern: str, axis: str) -> bool:
        """Use ``axis`` for metrics of ``pattern`` if it holds steps. Returns whether it does."""
        if pattern == "*":
            self._give_up(self._axis_of_all)
            self._axis_of_all = axis
        elif not axis.endswith("step"):
            return False
        if axis not in self._axes:
            self._axes.append(axis)
        return True

    def _give_up(self, axis: str | None) -> None:
        self._axes = [other for other in self._axes if other != axis]
        if axis == self._axis_of_all:
            self._axis_of_all = None

    def _at_its_step(self, row: Row) -> Row:
        """Set the step of a complete row to the row's axis, of several the first declared.

        A row without an axis has the last step, if all metrics have an axis. An axis with a value
        that is not integral is given up.
        """
        row.tables = {name: self._news(name, samples) for name, samples in row.tables.items()}
        for axis in tuple(self._axes):
            given = row.values.get(axis)
            if given is None:
                continue
            step = as_step(given)
            if step is not None:
                row.step = self._last = step
                return row
            warn_once(
                f"The step metric {axis!r} has {str(given)[:80]!r}, and steps are integers. From "
                "here the rows have W&B's own steps, and it is written as a metric like any other. "
                "Choose it as the x-axis in W&B's workspace."
            )
            self._give_up(axis)
            if self._last is not None:
                self._ahead = max(0, self._last + 1 - row.step)  # never back
        if self._axis_of_all is not None and self._last is not None:
            row.step = self._last
        else:
            row.step += self._ahead
        return row

    def _news(self, name: str, samples: Samples) -> Samples:
        """Return the samples that the previous table of this name did not contain.

        Programs log a table again with additional rows, and W&B keeps the last one. A run of
        otel_rl keeps every row once, with its step.
        """
        known = [hash(str(sample)) for sample in samples]
        before = self._written.get(name, [])
        self._written[name] = known
        return samples[len(before) :] if known[: len(before)] == before else samples
