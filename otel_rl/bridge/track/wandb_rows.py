"""A row as one line of W&B's history."""

import json
import logging
from functools import lru_cache

from otel_rl.bridge.track.wandb_about import as_table
from otel_rl.records import Row

__all__ = ["LEFT_OUT", "STEP", "payload"]

LEFT_OUT = "otel_rl/bridge/values/left_out"
"""Key of the number of values of a row that W&B has no room for."""

STEP = "step"
"""Key of the axis of every chart."""

_log = logging.getLogger(__name__)

_POLICY_VERSION = "policy_version"

# wandb-core's own limit for a line, less what the SDK and we add to a row.
_MAX_LINE_BYTES = (10 << 20) - (100 << 10) - 1024
_MAX_CHARACTER_BYTES = 6  # \u003c
_VALUE_BYTES = 32  # a double has at most 24 digits and signs; quotes, colon and comma


def payload(row: Row) -> dict[str, object]:
    """What is logged for a row, in one call."""
    payload: dict[str, object] = {**_numbers(row)}
    payload.update((_key(name), text) for name, text in row.labels.items())
    payload.update((_key(name), as_table(table)) for name, table in row.tables.items())
    return payload


def _numbers(row: Row) -> dict[str, float]:
    payload = {_key(name): value for name, value in row.values.items()}
    characters = sum(map(len, payload))
    if characters * _MAX_CHARACTER_BYTES + len(payload) * _VALUE_BYTES > _MAX_LINE_BYTES:
        payload = _fitting(row.number, payload)
    payload[STEP] = row.step
    if row.policy_version is not None:
        payload[_POLICY_VERSION] = row.policy_version
    payload["_timestamp"] = row.time_ns / 1e9
    return payload


def _fitting(number: int, payload: dict[str, float]) -> dict[str, float]:
    """As much of a row as W&B takes, and how much that is not.

    W&B leaves out a longer line without an error, and every line after it would take the place of
    the one before.
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


@lru_cache(maxsize=16_384)
def _key(name: str) -> str:
    """A key that W&B takes. A row that it refuses would be a hole in the run.

    W&B raises on a lone surrogate, and overwrites or ignores empty keys and those that start with
    an underscore.
    """
    name = name.encode("utf-8", "backslashreplace").decode()
    return name if name and not name.startswith("_") else f"metric{name}"
