"""Fair queue: round-robin between senders, so that one long backlog does not delay others."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["FairQueue"]

_T = TypeVar("_T", bound=Hashable)


class FairQueue(Generic[_T]):
    """FIFO per sender, round-robin between senders. Not safe for threads.

    A sender is a path, such as (token, address, connection). Turns rotate between the first parts,
    then between the second parts of one first part, and so on: a thousand connections of one
    address take as many turns as the one connection of another. Every item is in the queue at most
    once.
    """

    def __init__(self) -> None:
        self._root: _Level[_T] = _Level()

    def __len__(self) -> int:
        return self._root.size

    def push(self, path: tuple[str, ...], item: _T) -> None:
        """Append an item to its sender's line. All paths have the same length."""
        level = self._root
        level.size += 1
        for part in path:
            level = level.parts.setdefault(part, _Level())
            level.size += 1
        level.items[item] = None

    def pop(self) -> _T:
        """Remove and return the first item of the sender whose turn it is.

        Raises:
            IndexError: The queue is empty.
        """
        if not self._root.size:
            raise IndexError("pop from an empty queue")
        path: list[str] = []
        level = self._root
        while level.parts:
            part = next(iter(level.parts))
            level.parts.move_to_end(part)
            path.append(part)
            level = level.parts[part]
        item = next(iter(level.items))
        self.remove(tuple(path), item)
        return item

    def pop_largest(self) -> _T:
        """Remove and return the last item of the longest line, by the largest part at every level.

        Raises:
            IndexError: The queue is empty.
        """
        if not self._root.size:
            raise IndexError("pop from an empty queue")
        path: list[str] = []
        level = self._root
        while level.parts:
            part, level = max(level.parts.items(), key=lambda entry: entry[1].size)
            path.append(part)
        item = next(reversed(level.items))
        self.remove(tuple(path), item)
        return item

    def remove(self, path: tuple[str, ...], item: _T) -> None:
        """Remove an item from its sender's line.

        Raises:
            KeyError: The item is not in the queue.
        """
        level, way = self._root, [self._root]
        for part in path:
            level = level.parts[part]
            way.append(level)
        del level.items[item]
        for above in way:
            above.size -= 1
        for above, part in zip(way, path, strict=False):
            if not above.parts[part].size:
                del above.parts[part]
                return


class _Level(Generic[_T]):
    """One level of the paths: the levels below it, or the items at the lowest one."""

    __slots__ = ("items", "parts", "size")

    def __init__(self) -> None:
        self.parts: OrderedDict[str, _Level[_T]] = OrderedDict()
        self.items: dict[_T, None] = {}
        self.size = 0
