"""Trackers of other packages, which register a ``TrackerKind`` as an entry point.

[project.entry-points."otel_rl.trackers"]
mine = "my_package.tracker:KIND"
"""

from typing import TYPE_CHECKING, Final

from otel_rl.bridge.delivery.tracker_interface import TrackerKind
from otel_rl.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "installed", "load"]

GROUP: Final = "otel_rl.trackers"
"""Name of the entry-point group."""


def installed() -> list[str]:
    """Return the names of the trackers of other packages, sorted."""
    return sorted({point.name for point in _points()})


def load(name: str) -> TrackerKind | None:
    """Return the tracker of this name; None if no package has registered one.

    Raises:
        ConfigError: Its package cannot be loaded, or has something else there.
    """
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

    return tuple(entry_points(group=GROUP))
