"""Files that only their owner can read, for prompts, settings and output."""

import os
import stat
from pathlib import Path
from typing import Final

from otel_rl.errors import ConfigError

UMASK: Final = 0o077
"""Umask of the bridge's processes, for all that a tracker's library creates in them."""


def open_private(path: str, flags: int) -> int:
    """Open a file, for ``open(..., opener=...)``; a new one is private."""
    return os.open(path, flags, 0o666 & ~UMASK)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_secret(setting: str, path: Path) -> bytes:
    """Read a file that only its owner and group can read or change.

    The group may read it: orchestrators hand secrets to non-root processes that way.

    Args:
        setting: Name of the setting, for the error.

    Raises:
        ConfigError: The file cannot be read, or all users of the machine can read it. The error
            never quotes its content.
    """
    try:
        with path.open("rb") as file:
            # Mode of the open file, so that it cannot be replaced in between.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read()
    except (OSError, ValueError) as exc:  # an invalid path
        raise unreadable(setting, path, exc) from exc
    if mode & stat.S_IRWXO:
        raise ConfigError(
            f"{setting}: {path} is open to every user of this machine (mode {mode:o}).",
            hint=f"Run: chmod o= {path}",
        )
    return content


def unreadable(setting: str, path: Path, error: OSError | ValueError) -> ConfigError:
    """Build the error for a file that cannot be read.

    The error names the file only if its directory exists: a secret may stand where its path should.
    """
    try:
        is_path = path.parent != Path() and path.parent.is_dir()
    except (OSError, ValueError):
        is_path = False
    reason = getattr(error, "strerror", None) or "no path"
    what = f"{path} cannot be read" if is_path else "there is no file of the name that it has"
    return ConfigError(
        f"{setting}: {what}: {reason}.",
        hint="" if is_path else "Give the path of the file, with its directory.",
    )
