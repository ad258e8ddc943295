"""Files and directories that only their owner can read: they hold prompts, settings and output."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["UMASK", "make_private_directory", "open_private", "sync"]

UMASK: Final = 0o077
"""Umask of the bridge's processes, for all that a tracker's library creates in them."""


def make_private_directory(directory: Path) -> Sequence[Path]:
    """Make a directory and its parents. Existing ones keep their mode.

    Returns:
        Those that were made, the deepest first.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o777 & ~UMASK, exist_ok=True)
    return missing


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
