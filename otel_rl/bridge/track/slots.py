"""Limits how many runs are live at a time."""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

__all__ = ["Slots"]

_HolderT = TypeVar("_HolderT", bound=Hashable)

_LOOK_AGAIN_S = 0.2  # how late a waiter notices that it was cancelled


class Slots(Generic[_HolderT]):
    """At most ``limit`` holders. Whoever waits asks the one that was used longest ago to leave.

    A holder leaves when it has nothing to do, so nobody is interrupted. Any thread may call any
    method. ``make_room`` callbacks are called without a lock held.
    """

    def __init__(self, limit: int) -> None:
        # _freed guards everything below, and is notified when a slot is given back.
        self._freed = threading.Condition()
        self._limit = limit
        # In order of last use, longest ago first.
        self._holders: dict[_HolderT, Callable[[], None]] = {}

    @contextmanager
    def hold(
        self, holder: _HolderT, make_room: Callable[[], None], cancelled: Callable[[], bool]
    ) -> Iterator[bool]:
        """Hold a slot for the length of the context.

        Args:
            holder: Whose slot.
            make_room: Called, perhaps more than once, when another waits for a slot.
            cancelled: Looked at several times a second while waiting.

        Yields:
            Whether there is a slot: False if ``cancelled`` said yes first.
        """
        if not self._take(holder, make_room, cancelled):
            yield False
            return
        try:
            yield True
        finally:
            with self._freed:
                del self._holders[holder]
                self._freed.notify()

    def used(self, holder: _HolderT) -> None:
        """The holder has just been busy: it is the last one to be asked to leave."""
        with self._freed:
            self._holders[holder] = self._holders.pop(holder)

    def _take(
        self, holder: _HolderT, make_room: Callable[[], None], cancelled: Callable[[], bool]
    ) -> bool:
        while not cancelled():
            with self._freed:
                if len(self._holders) < self._limit:
                    self._holders[holder] = make_room
                    return True
                ask = list(self._holders.values())
            # The first may be busy for long, so the next one is asked as well after a while: each
            # round asks all, in this order, until one has gone.
            for make_others_room in ask:
                make_others_room()
                with self._freed:
                    if self._freed.wait(_LOOK_AGAIN_S) or len(self._holders) < self._limit:
                        break
        return False
