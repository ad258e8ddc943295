"""Tells W&B how to show each key: on which axis, and whether by itself.

A key is defined once in each opening of a run: W&B replaces the definitions of an earlier one. Keys
of steps are drawn over the training step. All others come once a window, many in a long step, and
are drawn over time.
"""

from typing import TYPE_CHECKING, Final

from otel_rl.bridge.delivery.wandb.display.history_rows import HOURS, STEP, wandb_key
from otel_rl.records import KeySpec
from otel_rl.semconv import names

if TYPE_CHECKING:
    import wandb

__all__ = ["define_axes", "define_key"]

_NO_CHARTS: Final = frozenset({"table", "text"})


def define_axes(run: "wandb.Run", prefix: str = "") -> None:
    """Define the axes, which need no charts, and the one of keys whose meaning is unknown.

    Args:
        run: Opened.
        prefix: Of all keys.
    """
    run.define_metric(f"{prefix}*", step_metric=prefix + STEP)
    run.define_metric(prefix + HOURS, hidden=True)
    run.define_metric(prefix + STEP, hidden=True)


def define_key(run: "wandb.Run", spec: KeySpec, prefix: str = "") -> None:
    """Define one key, unless it is of tables or texts, or has an asterisk, which W&B refuses."""
    key = wandb_key(spec.key)
    if spec.statistic in _NO_CHARTS or "*" in key:
        return
    run.define_metric(
        key if key.startswith(prefix) else prefix + key,
        step_metric=prefix + (STEP if spec.axis == "step" else HOURS),
        hidden=_is_hidden(spec) or None,
    )


def _is_hidden(spec: KeySpec) -> bool:
    """Return whether a key gets no chart by itself: single workers, and otel_rl itself."""
    metric = names.METRICS.get(spec.name)
    return bool(spec.worker) or (metric is not None and metric.group == "otel_rl")
