"""W&B's step rules: assigns calls of ``log`` to rows and rows to steps. Pure.

    log({...})                  one row; the step advances
    log({...}, commit=False)    into the pending row
    log({...}, step=7)          into the pending row of step 7; an earlier pending row is complete
    log({...}, step=7, commit=True)    ... and that row is complete
    log({...}, step=3)          refused: the step is past

A call without ``step`` in an ``otel_rl.step`` block goes into the pending row of the block's step.
A call after the block begins another row, and a block of a past step has rows of its own.

Within a row the last value of a key wins.
"""

from dataclasses import dataclass, field

from otel_rl.integrations.wandb._logged.table import Samples

__all__ = ["Row", "Rows"]


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


class Rows:
    """Step of a run and its pending row.

    Args:
        step: The first step.
    """

    def __init__(self, step: int = 0) -> None:
        self._pending = Row(step)
        self._is_of_block = False

    @property
    def step(self) -> int:
        """Step of the next value without one."""
        return self._pending.step

    def add(
        self, logged: Row, step: int | None, *, commit: bool | None, block: int | None = None
    ) -> list[Row] | None:
        """Add one call of ``log``.

        Args:
            logged: Its values; its own step is ignored.
            step: As given.
            commit: As given; None commits exactly if no step was given, outside of blocks.
            block: Step of the block around the call.

        Returns:
            The completed rows, in order; None if the step is below the current one.
        """
        done: list[Row] = []
        if step is None and block is not None:
            if block < self.step:
                logged.step = block
                return [logged]
            step = block
        elif step is None and self._is_of_block:
            done = self._complete(self.step + 1)
        self._is_of_block = step is not None and step == block
        if step is not None:
            if step < self.step:
                return None
            if step > self.step:
                done = self._complete(step)
        self._pending.update(logged)
        if step is None if commit is None else commit:
            done += self._complete(self.step + 1)
        return done

    def finish(self) -> list[Row]:
        """Complete the pending row."""
        return self._complete(self.step)

    def forget(self) -> None:
        """Drop the pending row."""
        self._pending = Row(self.step)

    def _complete(self, next_step: int) -> list[Row]:
        done, self._pending = self._pending, Row(next_step)
        return [done] if done else []
