"""Reads files that hold secrets, and insists that not everybody can."""

import os
import stat
from pathlib import Path

from otel_rl.errors import ConfigError

__all__ = ["read_secret", "unreadable"]


def read_secret(setting: str, path: Path) -> bytes:
    """The content of a file that only its owner and group can read or change.

    The group may read, because that is how orchestrators hand a secret to a process that does not
    run as root.

    Args:
        setting: What asks for it, for the error.
        path: The file.

    Raises:
        ConfigError: It cannot be read, or everybody on the machine could do so. Never says what
            is in it.
    """
    try:
        with path.open("rb") as file:
            # Of the open file, so that nobody puts another one in between.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read()
    except (OSError, ValueError) as exc:  # of a path that is none
        raise unreadable(setting, path, exc) from exc
    if mode & stat.S_IRWXO:
        raise ConfigError(
            f"{setting}: {path} is open to every user of this machine (mode {mode:o}).",
            hint=f"Run: chmod o= {path}",
        )
    return content


def unreadable(setting: str, path: Path, error: OSError | ValueError) -> ConfigError:
    """The error of a file that cannot be read.

    Does not name the file unless its directory exists: where the path of a secret should be, the
    secret itself may stand.
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
