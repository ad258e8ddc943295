"""Which replica gets the next request: the one with the fewest unfinished. Pure.

A request stays with its replica until the replica says that it is finished. What a lost replica had
not finished goes back to the front of the line.
"""

from collections import deque

from otel_rl.demo.messages import Request

__all__ = ["Router"]


class Router:
    """The line of requests, and who works on which."""

    def __init__(self, *, queue_limit: int) -> None:
        self._queue_limit = queue_limit
        self._line: deque[Request] = deque()
        self._given: dict[int, dict[int, Request]] = {}

    @property
    def unfinished(self) -> int:
        """Requests in the line and at the replicas."""
        return len(self._line) + sum(map(len, self._given.values()))

    def add_replica(self, replica: int) -> None:
        """A replica serves from now on."""
        self._given[replica] = {}

    def lose_replica(self, replica: int) -> int:
        """A replica is gone; its requests will be given to others.

        Returns:
            How many those are.
        """
        lost = self._given.pop(replica, {})
        self._line.extendleft(reversed(lost.values()))
        return len(lost)

    def submit(self, request: Request) -> None:
        """Put a request at the end of the line."""
        self._line.append(request)

    def next(self) -> tuple[int, Request] | None:
        """Give the oldest request in the line away, if some replica has room for it."""
        if not self._line or not self._given:
            return None
        replica = min(self._given, key=lambda each: len(self._given[each]))
        if len(self._given[replica]) >= self._queue_limit:
            return None
        request = self._line.popleft()
        self._given[replica][request.number] = request
        return replica, request

    def finish(self, replica: int, number: int) -> bool:
        """A replica has finished a request.

        Returns:
            False if it is not the replica's any more: a last word of one that was lost already,
            whose request somebody else does again.
        """
        return self._given.get(replica, {}).pop(number, None) is not None
