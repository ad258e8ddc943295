"""Histories kept in bounded memory, which threads may share: the longest unused one goes first.

```
thread 1    [ grpo ][ sft ]
thread 2    [ ppo ]              one bound for grpo, sft and ppo
```
"""

import threading
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

__all__ = ["Kept", "MemoryBound"]

K = TypeVar("K")
V = TypeVar("V")


class MemoryBound:
    """Memory of all that is kept under one bound. Any thread.

    Args:
        max_bytes: Bound. A history in use counts from its next return.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # lock guards everything below, as ``Kept`` uses it.
        self.lock = threading.Lock()
        # By owner and key, each with its size; the one that was used last is the last.
        self.entries: dict[tuple[object, Any], tuple[Any, int]] = {}

    @property
    def used_bytes(self) -> int:
        """Return the size of all that is kept."""
        return sum(size for _, size in self.entries.values())

    def forget(self, least: int) -> None:
        """Let go of what was not used for longest until the others have room.

        Args:
            least: Number of entries that stay, used last, at whatever size.
        """
        while len(self.entries) > least and self.used_bytes > self._max_bytes:
            del self.entries[next(iter(self.entries))]


class Kept(Generic[K, V]):
    """Histories of one owner. One thread.

    Args:
        bound: Of the memory, perhaps with other owners.
    """

    def __init__(self, bound: MemoryBound) -> None:
        self._bound = bound

    def known(self) -> Collection[K]:
        """Return the keys of what is kept."""
        with self._bound.lock:
            return [key for owner, key in self._bound.entries if owner is self]

    def take(self, key: K) -> V | None:
        """Return a history, which is its caller's until it is put back; None if there is none."""
        with self._bound.lock:
            taken: tuple[V, int] | None = self._bound.entries.pop((self, key), None)
        return None if taken is None else taken[0]

    def put(self, key: K, value: V, size: int, *, stays: bool) -> None:
        """Keep a history, the first to stay.

        Args:
            key: Its key.
            value: The history.
            size: Bytes of memory.
            stays: Whether it is kept even if it is larger than the bound.
        """
        with self._bound.lock:
            self._bound.entries[self, key] = value, size
            self._bound.forget(1 if stays else 0)

    def keep_only(self, wanted: Callable[[K], bool]) -> None:
        """Let go of others than the wanted ones."""
        with self._bound.lock:
            for owner, key in [*self._bound.entries]:
                if owner is self and not wanted(key):
                    del self._bound.entries[owner, key]
