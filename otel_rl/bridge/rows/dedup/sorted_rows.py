"""Sorted rows of 64-bit integers, as dense in memory as arrays. Pure.

One array would move all later rows for an insertion, at quadratic cost if the newest arrive first.
These are many short ones: an insertion moves only its own block.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

__all__ = ["BLOCK", "Place", "SortedRows"]

BLOCK: Final = 1_024
"""Rows of a block. A block of twice as many is split."""

Place = tuple[int, int]
"""A block, and a row in it."""

Key = tuple[float, ...]
"""Integers; infinity is larger than any."""


class SortedRows:
    """Rows sorted by ``keys`` integers each, with an optional number beside them.

    Args:
        keys: Number of keys.
        with_value: Whether each row has a number of type float beside its keys.

    Attributes:
        blocks: The rows, each block by column. None is empty.
    """

    __slots__ = ("_firsts", "_keys", "_typecodes", "blocks")

    def __init__(self, keys: int, *, with_value: bool = False) -> None:
        self._keys = keys
        self._typecodes = "q" * keys + "d" * with_value
        self._clear()

    def _clear(self) -> None:
        self.blocks: list[list[array[Any]]] = []
        # The first row of each block.
        self._firsts: list[Key] = []

    def __len__(self) -> int:
        return sum(len(block[0]) for block in self.blocks)

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def __iter__(self) -> Iterator[Sequence[float]]:
        for block in self.blocks:
            yield from zip(*block, strict=True)

    def column(self, number: int) -> Iterator[float]:
        """Yield one of the keys of all rows, or their values, in the order of the rows."""
        for block in self.blocks:
            yield from block[number]

    def sample(self, number: int, every: int) -> Iterator[int]:
        """Yield the key of every n-th row."""
        return islice((int(key) for key in self.column(number)), 0, None, every)

    def last(self, number: int) -> int:
        """Return the key of the last row. There must be one."""
        return int(self.blocks[-1][number][-1])

    def after(self, key: Key) -> Place:
        """Return the place after all rows up to ``key``: where a row of this key is inserted."""
        number = bisect_right(self._firsts, key) - 1
        if number < 0:
            return 0, 0
        block = self.blocks[number]
        low, high = 0, len(block[0])
        for column, wanted in zip(block, key[:-1], strict=False):
            first = bisect_left(column, wanted, low, high)
            high = bisect_right(column, wanted, first, high)
            low = first
            if low == high:
                return number, low
        return number, bisect_right(block[len(key) - 1], key[-1], low, high)

    def backward(self, place: Place) -> Iterator[Sequence[float]]:
        """Yield the rows before a place, the last first."""
        number, row = place
        while number >= 0:
            if number < len(self.blocks):
                for one in range(row - 1, -1, -1):
                    yield self._row(number, one)
            number -= 1
            row = len(self.blocks[number][0]) if number >= 0 else 0

    def forward(self, place: Place) -> Iterator[Sequence[float]]:
        """Yield the rows from a place on."""
        number, row = place
        while number < len(self.blocks):
            for one in range(row, len(self.blocks[number][0])):
                yield self._row(number, one)
            number, row = number + 1, 0

    def put(self, place: Place, row: Sequence[float]) -> None:
        """Insert a row at the place that ``after`` its key returned."""
        number, at = place
        if not self.blocks:
            self.append(row)
            return
        block = self.blocks[number]
        for column, value in zip(block, row, strict=True):
            column.insert(at, value)
        if not at:
            self._firsts[number] = self._key(number)
        if len(block[0]) >= 2 * BLOCK:
            self.blocks.insert(number + 1, [column[BLOCK:] for column in block])
            for column in block:
                del column[BLOCK:]
            self._firsts.insert(number + 1, self._key(number + 1))

    def append(self, row: Sequence[float]) -> None:
        """Append a row that is after all others."""
        if not self.blocks or len(self.blocks[-1][0]) >= 2 * BLOCK:
            self.blocks.append([array(code) for code in self._typecodes])
            self._firsts.append(tuple(int(key) for key in row[: self._keys]))
        for column, value in zip(self.blocks[-1], row):  # noqa: B905  # for every sample
            column.append(value)

    def forget_through(self, key: int) -> None:
        """Forget the rows whose first key is ``key`` or less."""
        number, row = self.after((key, *(math.inf,) * (self._keys - 1)))
        del self.blocks[:number], self._firsts[:number]
        if row:
            for column in self.blocks[0]:
                del column[:row]
            if self.blocks[0][0]:
                self._firsts[0] = self._key(0)
            else:
                del self.blocks[0], self._firsts[0]

    def keep(self, rows: Sequence[Sequence[float]]) -> None:
        """Replace all rows by these sorted ones."""
        self._clear()
        for row in rows:
            self.append(row)

    def _row(self, number: int, row: int) -> Sequence[float]:
        return [column[row] for column in self.blocks[number]]

    def _key(self, number: int) -> Key:
        return tuple(int(column[0]) for column in self.blocks[number][: self._keys])
