"""A small file system of a scenario's own, which can be filled to the last byte."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

_SIZE_MIB = 64
_BLOCK = bytes(1 << 20)
_GRAIN = bytes(1 << 12)


class SmallDisk:
    """A directory on it.

    Args:
        path: Where it is mounted, None if this user may not mount.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @property
    def is_ours(self) -> bool:
        """Whether it is a file system of its own."""
        return self._path is not None

    def fill(self) -> bool:
        """Leave no byte. Returns False if the file system is not ours to fill."""
        if self._path is None:
            return False
        with contextlib.suppress(OSError), (self._path / "ballast").open("ab", 0) as ballast:
            for piece in (_BLOCK, _GRAIN):
                with contextlib.suppress(OSError):
                    while ballast.write(piece) == len(piece):
                        pass
        return True

    def free(self) -> None:
        """Give all of it back."""
        if self._path is not None:
            (self._path / "ballast").unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Mount a small file system at ``path`` if this user may, for the length of the context."""
    path.mkdir(parents=True, exist_ok=True)
    if not _ran("mount", "-t", "tmpfs", "-o", f"size={_SIZE_MIB}m", "faults", str(path)):
        yield SmallDisk(None)
        return
    try:
        yield SmallDisk(path)
    finally:
        _ran("umount", "--lazy", str(path))


def _ran(*command: str) -> bool:
    try:
        return not subprocess.run(command, capture_output=True, check=False).returncode
    except OSError:
        return False
