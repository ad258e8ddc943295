"""Reads files that hold secrets, and insists that not everybody can."""

import os
import stat
from pathlib import Path

from otel_rl.errors import ConfigError

__all__ = ["read_secret"]


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
    except OSError as exc:
        raise ConfigError(f"{setting}: {path} cannot be read: {exc.strerror}.") from exc
    if mode & stat.S_IRWXO:
        raise ConfigError(
            f"{setting}: {path} is open to every user of this machine (mode {mode:o}).",
            hint=f"Run: chmod o= {path}",
        )
    return content
