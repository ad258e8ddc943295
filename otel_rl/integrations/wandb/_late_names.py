"""Names of the drop-in that depend on the run in progress, and those that do nothing."""

from collections.abc import Callable, Mapping
from typing import Any

from otel_rl.integrations.wandb._api import current
from otel_rl.integrations.wandb._config import Config
from otel_rl.integrations.wandb._log_once import warn_once
from otel_rl.integrations.wandb._stand_ins.media import MEDIA, READS
from otel_rl.integrations.wandb._stand_ins.stand_in import CARRIED, is_optional, stand_in
from otel_rl.integrations.wandb._summary import Summary

__all__ = ["carry", "found"]


def carry(names: Mapping[str, object], generate_id: Callable[..., str]) -> None:
    """Make the drop-in's types stand for those of the same name in every module below ``wandb``."""
    types = {**names, **MEDIA, **READS}
    CARRIED.update({name: kind for name, kind in types.items() if name[0].isupper()})
    CARRIED["generate_id"] = generate_id


def found(name: str) -> Any:  # the type depends on the name
    """Return what the drop-in has by a name that is none of its own.

    Raises:
        AttributeError: Libraries ask for it and do without.
    """
    run = current()
    if name == "run":
        return run
    if name in ("config", "summary"):
        if run is not None:
            return getattr(run, name)
        warn_once(f"{name} has no run before init(): writes to it are lost.")
        return Config() if name == "config" else Summary(lambda _values: None)
    inert = MEDIA.get(name) or READS.get(name)
    if inert is not None:
        return inert
    if is_optional(name):
        raise AttributeError(name)
    return stand_in(name)
