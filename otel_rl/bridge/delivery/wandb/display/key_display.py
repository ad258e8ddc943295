"""Tells W&B how to show each key: on which axis, and whether by itself.

A key is defined once in each opening of a run: W&B replaces the definitions of an earlier one. Keys
of steps are drawn over the training step, and once an attempt has repeated some, over the axis of
the newest attempt, see ADR 17. All others come once a window, many in a long step, and
are drawn over time.
"""

from typing import TYPE_CHECKING, Final

from otel_rl.bridge.delivery.wandb.display.wandb_keys import (
    ATTEMPT,
    HOURS,
    STEP,
    attempt_axis,
    wandb_key,
)
from otel_rl.records import KeySpec, Row
from otel_rl.semconv import names

if TYPE_CHECKING:
    import wandb

__all__ = ["KeyDisplay"]

_NO_CHARTS: Final = frozenset({"table", "text"})


class KeyDisplay:
    """Definitions of the keys of an opened run.

    Args:
        run: Opened.
        attempt: Of the rows that it has.
        prefix: Of all keys.
        has_axes: Whether charts move to the axis of each attempt.
    """

    def __init__(
        self, run: "wandb.Run", attempt: int = 1, prefix: str = "", *, has_axes: bool = True
    ) -> None:
        self._run = run
        self._prefix = prefix
        self._has_axes = has_axes
        self._attempt = 0
        self._axis = ""
        self._specs: dict[str, KeySpec] = {}
        for axis in (HOURS, STEP, ATTEMPT):
            run.define_metric(prefix + axis, hidden=True)
        self._begin(attempt)

    def knows(self, row: Row) -> bool:
        """Return whether nothing is new with a row."""
        return not row.new_keys and row.attempt <= self._attempt

    def take(self, row: Row) -> None:
        """Define the new keys of a row, before it is logged."""
        if row.attempt > self._attempt:
            self._begin(row.attempt)
        for spec in row.new_keys:
            self._define(spec)

    def _begin(self, attempt: int) -> None:
        """Draw all keys of steps over the axis of an attempt from now on."""
        self._attempt = attempt
        own = attempt_axis(attempt)
        if own != STEP:
            self._run.define_metric(self._prefix + own, hidden=True)
        axis = own if self._has_axes else STEP
        if axis == self._axis:
            return
        self._axis = axis
        # A late row of a former attempt lacks the axis: `step_sync` would give it the last value.
        self._run.define_metric(
            f"{self._prefix}*", step_metric=self._prefix + axis, step_sync=False
        )
        for spec in self._specs.values():
            self._define(spec)

    def _define(self, spec: KeySpec) -> None:
        """Define one key, but none of tables or texts, or with an asterisk, which W&B refuses."""
        key = wandb_key(spec.key)
        if spec.statistic in _NO_CHARTS or "*" in key:
            return
        if spec.axis == "step":
            self._specs[spec.key] = spec
        self._run.define_metric(
            key if key.startswith(self._prefix) else self._prefix + key,
            step_metric=self._prefix + (self._axis if spec.axis == "step" else HOURS),
            step_sync=False,
            hidden=_is_hidden(spec) or None,
        )


def _is_hidden(spec: KeySpec) -> bool:
    """Return whether a key gets no chart by itself: single workers, and otel_rl itself."""
    metric = names.METRICS.get(spec.name)
    return bool(spec.worker) or (metric is not None and metric.group == "otel_rl")
