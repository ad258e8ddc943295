"""Replay buffer: bounded, random access, fresh groups only. Pure: no clock, no threads.

A group is drawn once. It is evicted when it is the oldest of a full buffer ("capacity") or its
policy is too many versions old ("stale").
"""

from collections import deque

import numpy as np

from otel_rl.demo.control.messages import Group

__all__ = ["ReplayBuffer"]


class ReplayBuffer:
    """Groups of samples between the reward workers and the trainers.

    Attributes:
        limit: Capacity in groups.
        evicted: Number of groups that left without being drawn, by reason.
    """

    def __init__(self, *, limit: int, max_staleness: int, rng: np.random.Generator) -> None:
        self.limit = limit
        self.evicted = {"capacity": 0, "stale": 0}
        self._max_staleness = max_staleness
        self._rng = rng
        self._groups: deque[Group] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def write(self, group: Group) -> None:
        """Add a group; evicts the oldest if the buffer is full."""
        if len(self._groups) == self.limit:
            self._groups.popleft()
            self.evicted["capacity"] += 1
        self._groups.append(group)

    def draw(self, count: int, *, policy_version: int) -> tuple[Group, ...] | None:
        """Draw random groups and remove them.

        Args:
            count: Number of groups.
            policy_version: Of the reader, to detect stale groups.

        Returns:
            The groups, or None if there are too few. Stale ones are evicted either way.
        """
        oldest = policy_version - self._max_staleness
        fresh = deque(g for g in self._groups if g.completions.policy_version >= oldest)
        self.evicted["stale"] += len(self._groups) - len(fresh)
        self._groups = fresh
        if len(fresh) < count:
            return None
        places = self._rng.choice(len(fresh), count, replace=False)
        drawn = tuple(fresh[place] for place in places)
        taken = set(places.tolist())
        self._groups = deque(g for place, g in enumerate(fresh) if place not in taken)
        return drawn
