"""Directories where the bridges of these settings write their archives."""

from collections.abc import Sequence
from pathlib import Path

from otel_rl.bridge.config import BridgeSettings
from otel_rl.cli.find_run import journals

__all__ = ["archive_place", "archive_places"]


def archive_place(settings: BridgeSettings, data: Path) -> Path:
    """Return that of the bridge with this data directory."""
    return settings.archive.directory or data / "archive"


def archive_places(settings: BridgeSettings) -> Sequence[Path]:
    """Return the archive directories of all bridges, sorted."""
    found = {archive_place(settings, data) for data in (settings.data, *journals(settings))}
    return sorted(found)
