"""Assigns requests to the replica with the fewest unfinished ones. Pure.

A request stays with its replica until the replica reports it as finished. Unfinished requests of a
lost replica return to the front of the queue.
"""

from collections import deque

from otel_rl.demo.control.messages import Request

__all__ = ["Router"]


class Router:
    """Queue of requests, and the assigned requests of each replica."""

    def __init__(self, *, queue_limit: int) -> None:
        self._queue_limit = queue_limit
        self._line: deque[Request] = deque()
        self._given: dict[int, dict[int, Request]] = {}

    @property
    def unfinished(self) -> int:
        """Requests in the queue and at the replicas."""
        return len(self._line) + sum(map(len, self._given.values()))

    def add_replica(self, replica: int) -> None:
        """Add a replica."""
        self._given[replica] = {}

    def lose_replica(self, replica: int) -> int:
        """Remove a replica and queue its requests again.

        Returns:
            The number of its requests.
        """
        lost = self._given.pop(replica, {})
        self._line.extendleft(reversed(lost.values()))
        return len(lost)

    def submit(self, request: Request) -> None:
        """Add a request to the end of the queue."""
        self._line.append(request)

    def next(self) -> tuple[int, Request] | None:
        """Assign the oldest request in the queue, if a replica has room."""
        if not self._line or not self._given:
            return None
        replica = min(self._given, key=lambda each: len(self._given[each]))
        if len(self._given[replica]) >= self._queue_limit:
            return None
        request = self._line.popleft()
        self._given[replica][request.number] = request
        return replica, request

    def finish(self, replica: int, number: int) -> bool:
        """Record a finished request.

        Returns:
            False if the request is no longer the replica's: a late message of a lost replica, whose
            request another one repeats.
        """
        return self._given.get(replica, {}).pop(number, None) is not None
