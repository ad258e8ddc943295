"""Errors of a tracker's files: a full disk is waited for, a refused file is not."""

import errno
from pathlib import Path
from typing import Final

from otel_rl.errors import TrackerError, TrackerRejected, TrackerUnavailable

__all__ = ["not_opened", "unavailable"]

_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def unavailable(place: Path, exc: OSError, directory: Path) -> TrackerUnavailable:
    """Return the error of a file that cannot be written now.

    Args:
        place: What is named.
        exc: As it came.
        directory: Where there may be no room.
    """
    hint = f"Free space in {directory}." if exc.errno in _NO_ROOM else ""
    return TrackerUnavailable(f"{place}: {exc.strerror}.", hint=hint)


def not_opened(place: Path, exc: OSError, directory: Path) -> TrackerError:
    """Return the error of a file that cannot be opened; see ``unavailable``."""
    if exc.errno in _NO_ROOM:
        return unavailable(place, exc, directory)
    return TrackerRejected(
        f"{place}: cannot be opened ({exc.strerror}).",
        hint="Give the bridge a directory that it may write to.",
    )
