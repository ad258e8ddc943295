"""Converts a row to a line of W&B's history."""

import json
import logging

from otel_rl.bridge.delivery.wandb.display.run_metadata import as_table
from otel_rl.bridge.delivery.wandb.display.wandb_keys import (
    ATTEMPT,
    HOURS,
    STEP,
    attempt_axis,
    wandb_key,
)
from otel_rl.records import CONSOLE, Row

__all__ = ["LEFT_OUT", "POLICY_VERSION", "payload"]

LEFT_OUT = "otel_rl/bridge/values/left_out"
"""Key of the number of values of a row that exceed W&B's limit."""

_log = logging.getLogger(__name__)

POLICY_VERSION = "policy_version"

# wandb-core's own limit for a line, less what the SDK and we add to a row.
_MAX_LINE_BYTES = (10 << 20) - (100 << 10) - 1024
_MAX_CHARACTER_BYTES = 6  # \u003c
_VALUE_BYTES = 32  # a double has at most 24 digits and signs; quotes, colon and comma


def payload(row: Row, hours: float) -> dict[str, object]:
    """Return the payload of a row for one call.

    Args:
        row: Of the run.
        hours: Its time since the first row.
    """
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
    """Return the values of a row that fit into a line, and the number of those left out.

    W&B drops a longer line without an error, and every line after it would take the place of the
    one before.
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
