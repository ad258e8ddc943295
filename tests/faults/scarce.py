"""A directory in which room can be short: on a disk of its own, or because no file may grow."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from tests.faults.disk import small_disk

_SHIM = Path(__file__).with_name("shim")
_REPOSITORY = Path(__file__).parents[2]


class Scarce(Protocol):
    """A directory in which room can be short."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Of the bridge."""
        ...

    def leave(self, n_bytes: int) -> None:
        """From now on there is room for so many more bytes, but for what was begun before."""
        ...

    def free(self) -> None:
        """There is room for everything."""
        ...


class _SmallDisk:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.environment: Mapping[str, str] = {}

    def leave(self, n_bytes: int) -> None:
        about = os.statvfs(self._directory)
        spare = about.f_bavail * about.f_frsize - n_bytes
        with (self._directory / "ballast").open("ab") as ballast:
            ballast.write(bytes(max(0, spare)))

    def free(self) -> None:
        (self._directory / "ballast").unlink(missing_ok=True)


class _ShortFiles:
    """Each file that a writer appends to may grow by so much beyond the longest that is there."""

    def __init__(self, directory: Path, limit: Path, *, appends: bool) -> None:
        self._directory = directory
        self._limit = limit
        self._appends = appends
        path = os.pathsep.join([str(_SHIM), str(_REPOSITORY)])
        self.environment: Mapping[str, str] = {"FAULTS_FILE_LIMIT": str(limit), "PYTHONPATH": path}

    def leave(self, n_bytes: int) -> None:
        longest = 0
        if self._appends:
            sizes = [path.stat().st_size for path in self._directory.rglob("*.jsonl")]
            longest = max(sizes, default=0)
        self._limit.write_text(str(longest + n_bytes))

    def free(self) -> None:
        self._limit.unlink(missing_ok=True)


SCARCE = ("short files", "small disk")
"""The kinds."""


@contextlib.contextmanager
def scarce(kind: str, scratch: Path, *, appends: bool) -> Iterator[tuple[Path, Scarce] | None]:
    """Make a directory under ``scratch``.

    Args:
        kind: One of SCARCE.
        scratch: Of the caller.
        appends: Whether what is written there goes on with a file, or begins new ones.

    Returns:
        The directory; None if this user may not mount.
    """
    directory = scratch / "disk"
    directory.mkdir()
    if kind == "short files":
        yield directory, _ShortFiles(directory, scratch / "limit", appends=appends)
        return
    with small_disk(directory) as disk:
        yield (directory, _SmallDisk(directory)) if disk.is_ours else None
