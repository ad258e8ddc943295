"""Connections that the event loop does not read: it would wake up for each that has sent something.

Needs epoll, which only Linux has; elsewhere there are none.
"""

import select
from collections.abc import Sequence
from typing import Generic, TypeVar

__all__ = ["UnreadConnections"]

_T = TypeVar("_T")


class UnreadConnections(Generic[_T]):
    """Connections by their descriptor: of senders that have paused, and of those just answered.

    Only the latter are expected to send nothing for a while; see ``early``.
    """

    def __init__(self) -> None:
        has_epoll = hasattr(select, "epoll")
        self._paused = select.epoll() if has_epoll else None
        self._answered = select.epoll() if has_epoll else None
        self._all: dict[int, _T] = {}
        self._just_answered: set[int] = set()

    @property
    def is_possible(self) -> bool:
        """Return whether there may be any."""
        return self._paused is not None

    def __contains__(self, number: int) -> bool:
        return number in self._all

    def __len__(self) -> int:
        return len(self._all)

    def numbers(self) -> Sequence[int]:
        """Return the descriptors of all."""
        return [*self._all]

    def get(self, number: int) -> _T | None:
        """Return a connection; None if it is read."""
        return self._all.get(number)

    def add(self, number: int, connection: _T) -> None:
        """Add a connection of a sender that has paused."""
        self._all[number] = connection
        _of(self._paused).register(number, select.EPOLLIN)

    def answered(self, number: int) -> None:
        """A connection was answered, and is to send nothing for a while."""
        if number in self._just_answered:  # twice, by turns that were put off
            return
        self._just_answered.add(number)
        _of(self._paused).unregister(number)
        _of(self._answered).register(number, select.EPOLLIN)

    def paused(self, number: int) -> None:
        """A connection has sent nothing for a while since it was answered."""
        self._just_answered.discard(number)
        _of(self._answered).unregister(number)
        _of(self._paused).register(number, select.EPOLLIN)

    def pop(self, number: int) -> _T | None:
        """Remove and return a connection; None if it is read."""
        connection = self._all.pop(number, None)
        if connection is not None:
            is_answered = number in self._just_answered
            self._just_answered.discard(number)
            _of(self._answered if is_answered else self._paused).unregister(number)
        return connection

    def ready(self) -> Sequence[int]:
        """Return the descriptors of those that have something to be read, of paused senders."""
        if not self._all:
            return []
        return [number for number, _ in _of(self._paused).poll(0, len(self._all))]

    def early(self) -> Sequence[int]:
        """Return the same of those that were answered a moment ago."""
        return [number for number, _ in _of(self._answered).poll(0)]

    def early_number(self) -> int:
        """Return a descriptor that can be read whenever ``early`` returns any."""
        return _of(self._answered).fileno()

    def close(self) -> None:
        """Free what the operating system holds."""
        for one in (self._paused, self._answered):
            if one is not None:
                one.close()


def _of(one: "select.epoll | None") -> "select.epoll":
    assert one is not None  # there are connections
    return one
