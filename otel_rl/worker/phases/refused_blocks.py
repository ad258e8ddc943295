"""Blocks of phases and steps that were refused, and have not ended yet."""

from collections.abc import Callable
from weakref import WeakKeyDictionary

__all__ = ["RefusedBlocks"]


class RefusedBlocks:
    """Refused, unclosed blocks of each opener, which are its innermost ones."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: WeakKeyDictionary[object, list[Callable[[], None] | None]] = (
            WeakKeyDictionary()
        )

    def add(self, opener: object, leave: Callable[[], None] | None = None) -> None:
        """Record that a block of ``opener`` was refused, so that its end closes nothing.

        Args:
            opener: The block.
            leave: Called at its end.
        """
        self._blocks.setdefault(opener, []).append(leave)

    def ends(self, opener: object) -> bool:
        """Return whether the ending block of ``opener`` was refused."""
        blocks = self._blocks.get(opener)
        if blocks is None:
            return False
        leave = blocks.pop()
        if not blocks:
            del self._blocks[opener]
        if leave is not None:
            leave()
        return True
