"""Takes the step of a row from metrics that the program has declared as axes."""

from typing import Final

from otel_rl.integrations.wandb._log_once import warn_once
from otel_rl.integrations.wandb._logged.rows import Row
from otel_rl.worker.tensors import as_step

__all__ = ["Axes"]

_OF_ALL: Final = "*"


class Axes:
    """Metrics whose values are steps. Not thread-safe.

    The axis of ``*`` is one, and that of other metrics if it is called a step: programs declare one
    for each group of their metrics, ``train/*`` over ``train/step``.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._of_all: str | None = None
        self._last: int | None = None
        self._ahead = 0

    def declare(self, pattern: str, axis: str) -> bool:
        """Use ``axis`` if it holds steps. Returns whether it does.

        Args:
            pattern: Metrics that have this axis.
            axis: Name of a metric.
        """
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
