"""Reads files that hold secrets, and refuses those that all users can read."""

import os
import stat
from pathlib import Path

from otel_rl.errors import ConfigError

__all__ = ["read_secret", "unreadable"]


def read_secret(setting: str, path: Path) -> bytes:
    """Read a file that only its owner and group can read or change.

    The group may read it: orchestrators hand secrets to non-root processes that way.

    Args:
        setting: Name of the setting, for the error.
        path: The file.

    Raises:
        ConfigError: It cannot be read, or all users of the machine can. Never quotes its content.
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

    Names the file only if its directory exists: the secret itself may stand where its path should.
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
