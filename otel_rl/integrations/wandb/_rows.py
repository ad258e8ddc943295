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

from typing import Final

from otel_rl.integrations.wandb._absent import warn_once
from otel_rl.integrations.wandb._values import Row
from otel_rl.worker.tensors import as_step

__all__ = ["Axes", "Rows"]

_OF_ALL: Final = "*"


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


class Axes:
    """Metrics that the program has declared as an axis, and whose values are steps.

    The axis of ``*`` is one, and that of other metrics if it is called a step: programs declare one
    for each group of their metrics, ``train/*`` over ``train/step``. Not thread-safe.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._of_all: str | None = None
        self._last: int | None = None
        self._ahead = 0

    def declare(self, pattern: str, axis: str) -> bool:
        """Use ``axis`` for metrics of ``pattern`` if it holds steps. Returns whether it does."""
        if pattern == _OF_ALL:
            self._forget(self._of_all)
            self._of_all = axis
        elif not axis.endswith("step"):
            return False
        if axis not in self._names:
            self._names.append(axis)
        return True

    def set_step(self, row: Row) -> None:
        """Set the step of ``row`` to that of the axis in it, the first declared of several.

        Without one it has the last step, if all metrics have an axis. A value between steps is no
        step: its axis is given up.
        """
        for name in tuple(self._names):
            given = row.values.get(name)
            if given is None:
                continue
            step = as_step(given)
            if step is not None:
                row.step = self._last = step
                return
            self._give_up(name, given, row.step)
        if self._of_all is not None and self._last is not None:
            row.step = self._last
        else:
            row.step += self._ahead

    def _give_up(self, name: str, given: object, own_step: int) -> None:
        warn_once(
            f"The step metric {name!r} has {str(given)[:80]!r}, and steps are integers. From here "
            "the rows have W&B's own steps, and it is written as a metric like any other. Choose "
            "it as the x-axis in W&B's workspace."
        )
        self._forget(name)
        last = -1 if self._last is None else self._last
        self._ahead = max(0, last + 1 - own_step)  # never back

    def _forget(self, name: str | None) -> None:
        self._names = [other for other in self._names if other != name]
        if name == self._of_all:
            self._of_all = None
