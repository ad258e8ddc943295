"""Table of trackers: those of this package, and those that another package registers.

[project.entry-points."otel_rl.trackers"]
mine = "my_package.tracker:KIND"
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from otel_rl.bridge.delivery.jsonl import JSONL
from otel_rl.bridge.delivery.mlflow import MLFLOW
from otel_rl.bridge.delivery.tensorboard import TENSORBOARD
from otel_rl.bridge.delivery.tracker_interface import TrackerKind
from otel_rl.bridge.delivery.trackio import TRACKIO
from otel_rl.bridge.delivery.wandb.kind import WANDB
from otel_rl.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["BACKENDS", "backend"]

BACKENDS: Final[Mapping[str, TrackerKind]] = {
    kind.name: kind for kind in (WANDB, JSONL, MLFLOW, TRACKIO, TENSORBOARD)
}
"""Those of this package, by name."""

_GROUP: Final = "otel_rl.trackers"  # of entry points


def backend(name: str) -> TrackerKind:
    """Look up a backend: one of ours, else one of another package.

    Raises:
        ConfigError: The name is unknown, or its package cannot be loaded.
    """
    if name in BACKENDS:
        return BACKENDS[name]
    kind = _load(name)
    if kind is None:
        known = ", ".join((*BACKENDS, *sorted({point.name for point in _points()})))
        raise ConfigError(
            f'tracker: unknown name (got "{name}").', hint=f"Known trackers: {known}."
        )
    return kind


def _load(name: str) -> TrackerKind | None:
    point = next((point for point in _points() if point.name == name), None)
    if point is None:
        return None
    try:
        kind = point.load()
    except Exception as exc:
        raise ConfigError(
            f"tracker: {name} cannot be loaded from {point.value} ({type(exc).__name__}: {exc}).",
            hint="Install or repair the package that registers it.",
        ) from exc
    if not isinstance(kind, TrackerKind):
        raise ConfigError(
            f"tracker: {name} at {point.value} is no TrackerKind (got {type(kind).__name__}).",
            hint="See `otel-rl help write-a-tracker`.",
        )
    return kind


def _points() -> "tuple[EntryPoint, ...]":
    from importlib.metadata import entry_points  # 3 MB that a writer of ours saves

    return tuple(entry_points(group=_GROUP))
