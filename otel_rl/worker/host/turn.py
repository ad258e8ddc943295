"""Decides which of a host's processes reports the host.

It holds a lock on one byte of a file, which the kernel gives back when the process ends, however it
ends; a forked child does not inherit it. The byte stands for the run and the host, so a file is
enough for all runs.

Where there is no such lock, each process reports: the bridge counts a host once.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from otel_rl.sha256 import sha256

try:
    import fcntl
except ImportError:  # Windows has other locks
    fcntl = None  # type: ignore[assignment]

__all__ = ["HostTurn"]

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
"""A shared folder for temporary files may lock between machines."""


class HostTurn:
    """Turn of this process. One thread."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._is_held = False

    def take(self, host: str, run_id: str) -> bool:
        """Return whether this process reports the host; it does until ``give_back``."""
        if self._is_held or fcntl is None:
            return True
        try:
            if self._file is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
                self._file = os.open(_path(), flags, 0o600)
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(host, run_id))
        except (BlockingIOError, PermissionError):
            if self._file is not None:
                return False  # another process has it
        except OSError:
            pass  # a file system without locks
        self._is_held = True
        return True

    def give_back(self) -> None:
        """Let another process report. In a forked child the parent keeps its turn."""
        file, self._file, self._is_held = self._file, None, False
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)


def _path() -> Path:
    named = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    # As the module tempfile, which loads three compressors.
    folders = filter(Path.is_dir, map(Path, (*filter(None, named), "/tmp", "/var/tmp")))  # noqa: S108  # opened with O_NOFOLLOW
    return next(folders, Path()) / f"otel_rl-{os.getuid()}.lock"


def _byte(host: str, run_id: str) -> int:
    boot = _BOOT.read_bytes() if _BOOT.exists() else b""
    digest = sha256(b"\0".join((boot, host.encode(), run_id.encode()))).digest()
    return int.from_bytes(digest[:7])
