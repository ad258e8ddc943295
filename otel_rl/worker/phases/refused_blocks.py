"""Blocks of phases and steps that were refused, and have not ended yet."""

from weakref import WeakKeyDictionary

__all__ = ["RefusedBlocks"]


class RefusedBlocks:
    """Number of refused, unclosed blocks of each opener, which are its innermost ones."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    def add(self, opener: object) -> None:
        """Record that a block of ``opener`` was refused, so that its end closes nothing."""
        self._blocks[opener] = self._blocks.get(opener, 0) + 1

    def ends(self, opener: object) -> bool:
        """Return whether the ending block of ``opener`` was refused."""
        left = self._blocks.pop(opener, 0)
        if left > 1:
            self._blocks[opener] = left - 1
        return left > 0
