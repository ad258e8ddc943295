"""What is known of a run beside its numbers, as W&B shows it: config, notes, tags, texts."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from otel_rl.records import Description, Table, Value

if TYPE_CHECKING:
    import wandb

__all__ = ["as_table", "device_config", "show", "show_config"]

_MAX_TAG_LENGTH = 64  # the server's limit; the SDK raises beyond it

_STATUS = "status"

_DEVICES = "gpus"


def show(run: "wandb.Run", description: Description) -> None:
    """Update the config, notes and tags of a run, and the status in its summary.

    What a person has written in W&B stays: notes are only given to a run that has none, and tags
    are added.
    """
    show_config(run, {**description.config, **device_config(description)})
    if description.notes and not run.notes:
        run.notes = description.notes
    tags = [tag[:_MAX_TAG_LENGTH] for tag in description.tags if tag]
    known = run.tags or ()
    if not set(tags) <= set(known):
        run.tags = tuple(dict.fromkeys((*known, *tags)))
    run.summary[_STATUS] = str(description.status)


def show_config(run: "wandb.Run", values: Mapping[str, Value]) -> None:
    """Add to the config of a run."""
    config = {_key(key): _json(value) for key, value in values.items()}
    if config:
        run.config.update(config, allow_val_change=True)  # type: ignore[no-untyped-call]  # has none


def device_config(description: Description) -> Mapping[str, Value]:
    """Which GPUs the run has, as a part of its config."""
    devices: dict[str, Value] = {
        prefix: {
            "uuid": device.uuid,
            "host": device.host,
            "name": device.name,
            "model": device.model,
            "workers": device.workers,
        }
        for prefix, device in description.devices.items()
    }
    return {_DEVICES: devices} if devices else {}


def as_table(table: Table) -> "wandb.Table":
    """A table of text samples, whose columns may hold anything."""
    import wandb

    data = [[_json(value) for value in line] for line in table.rows]
    return wandb.Table(columns=[*table.columns], data=data, allow_mixed_types=True)


def _key(name: str) -> str:
    """A key that W&B takes: it keeps those that start with an underscore for itself."""
    name = name.encode("utf-8", "backslashreplace").decode()
    return name if name and not name.startswith("_") else f"config{name}"


def _json(value: Value) -> Value:
    """What W&B can write down: JSON has no NaN, and UTF-8 no lone surrogates."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case Mapping():
            return {str(_json(key)): _json(item) for key, item in value.items()}
        case Sequence():
            return [_json(item) for item in value]
    return value
