"""A row as W&B shows it: its line of the history, the definitions of its keys, and its alert.

A key is defined once in each opening of a run: W&B replaces the definitions of an earlier opening.
All keys are drawn over the training step, which every row has, so that any two can be laid over
each other; once an attempt has repeated some steps, over the axis of the newest attempt, see ADR
17. The number of living workers is drawn over time, and so is everything while the run has no step.
"""

import json
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from otel_rl.bridge.delivery.texts import storable_text
from otel_rl.bridge.delivery.wandb.metadata import as_table
from otel_rl.bridge.keys import DIAGNOSIS_CAUSE, alert_text
from otel_rl.dashboard.arrange import is_over_time
from otel_rl.records import CONSOLE, KeySpec, Row
from otel_rl.redaction import printable
from otel_rl.semconv import names

if TYPE_CHECKING:
    import wandb

_log = logging.getLogger(__name__)

STEP = "step"
"""Key of the axis of charts over training steps."""

HOURS = "hours"
"""Key of the axis of charts over time: hours since the first row."""

PREFIX = "otel_rl/"
"""Begins all keys in a run that another process has begun."""

ATTEMPT = "attempt"
"""Key of the attempt of a row."""

MAX_AXES = 100
"""Attempts with an axis of their own; later ones go on with the last."""

POLICY_VERSION = "policy_version"
"""Key of the policy version of a row."""

LEFT_OUT = "otel_rl/bridge/values/left_out"
"""Key of the number of values of a row that exceed W&B's limit."""

# wandb-core's own limit for a line, less what the SDK and we add to a row.
_MAX_LINE_BYTES = (10 << 20) - (100 << 10) - 1024
_MAX_CHARACTER_BYTES = 6  # \u003c
_VALUE_BYTES = 32  # a double has at most 24 digits and signs; quotes, colon and comma

_NO_CHARTS: Final = frozenset({"table", "text"})

_MAX_TITLE_LENGTH = 100  # of an alert


def payload(row: Row, hours: float) -> dict[str, object]:
    payload: dict[str, object] = {**_numbers(row), HOURS: hours}
    payload.update((wandb_key(name), text) for name, text in row.labels.items())
    tables = ((name, table) for name, table in row.tables.items() if name != CONSOLE)
    payload.update((wandb_key(name), as_table(table)) for name, table in tables)
    return payload


def _numbers(row: Row) -> dict[str, float]:
    payload = {wandb_key(name): value for name, value in row.values.items()}
    characters = sum(map(len, payload))
    if characters * _MAX_CHARACTER_BYTES + len(payload) * _VALUE_BYTES > _MAX_LINE_BYTES:
        payload = _fitting(row.number, payload)
    payload[STEP] = payload[attempt_axis(row.attempt)] = row.step
    payload[ATTEMPT] = row.attempt
    if row.policy_version is not None:
        payload[POLICY_VERSION] = row.policy_version
    payload["_timestamp"] = row.time_ns / 1e9
    return payload


def _fitting(number: int, payload: dict[str, float]) -> dict[str, float]:
    """Return the values of a row that fit into a line, and the number of values left out.

    W&B drops a longer line without an error, and every line after it would then take the place of
    the line before.
    """
    fitting: dict[str, float] = {}
    room = _MAX_LINE_BYTES
    for key, value in payload.items():
        room -= len(json.dumps(key)) + 5 * sum(map(key.count, "<>&")) + _VALUE_BYTES
        if room < 0:
            break
        fitting[key] = value
    left_out = len(payload) - len(fitting)
    if left_out:
        _log.error("Row %d is too long for W&B: %d values are left out.", number, left_out)
        fitting[LEFT_OUT] = left_out
    return fitting


class KeyDisplay:
    """Definitions of the keys of an opened run.

    Args:
        attempt: Attempt of the last row in the run.
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
        self._has_steps = False
        self._specs: dict[str, KeySpec] = {}
        for axis in (HOURS, STEP, ATTEMPT):
            run.define_metric(prefix + axis, hidden=True)
        self._begin(attempt)

    def take(self, row: Row) -> None:
        """Define the new keys of a row, before it is logged."""
        if row.attempt > self._attempt:
            self._begin(row.attempt)
        if row.step > 0 and not self._has_steps:
            self._has_steps = True
            self._define_again()
        for spec in row.new_keys:
            self._define(spec)

    def _begin(self, attempt: int) -> None:
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
        self._define_again()

    def _define_again(self) -> None:
        for spec in self._specs.values():
            self._define(spec)

    def _define(self, spec: KeySpec) -> None:
        """Define one key, but none of tables or texts, or with an asterisk, which W&B refuses."""
        key = wandb_key(spec.key)
        if spec.statistic in _NO_CHARTS or "*" in key:
            return
        is_over_steps = not is_over_time(spec)
        if is_over_steps:
            self._specs[spec.key] = spec
            is_over_steps = self._has_steps or spec.axis == "step"
        self._run.define_metric(
            prefixed(key, self._prefix),
            step_metric=self._prefix + (self._axis if is_over_steps else HOURS),
            step_sync=False,
            hidden=_is_hidden(spec) or None,
        )


def prefixed(key: str, prefix: str) -> str:
    return key if key.startswith(prefix) else prefix + key


def _is_hidden(spec: KeySpec) -> bool:
    """Return whether a key has no chart by default: single workers, and otel_rl itself."""
    metric = names.METRICS.get(spec.name)
    return bool(spec.worker) or (metric is not None and metric.group == "otel_rl")


def alert(run: "wandb.Run", row: Row) -> None:
    """Send an alert if the row has a fault. W&B sends at most one a minute for each title."""
    words = alert_text(row.labels)
    if words is not None:
        title = f"{row.labels.get(DIAGNOSIS_CAUSE, 'diagnosis')} at step {row.step}"
        run.alert(title=title[:_MAX_TITLE_LENGTH], text=printable(words), level="WARN")


def attempt_axis(attempt: int) -> str:
    """Return the key of the x-axis of an attempt; the first attempt has the common ``STEP``."""
    return STEP if attempt == 1 else f"{STEP}/attempt_{min(attempt, MAX_AXES)}"


@lru_cache(maxsize=16_384)
def wandb_key(name: str) -> str:
    """Return a key that W&B accepts. A refused row would be a gap in the run.

    W&B raises on a lone surrogate, and overwrites or ignores empty keys and those that start with
    an underscore.
    """
    name = storable_text(name)
    return name if name and not name.startswith("_") else f"metric{name}"
