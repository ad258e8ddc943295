"""Process: serves the replay buffer to the reward workers that write and the trainers that read.

Reading takes two calls. The first returns when enough groups are there and reserves them, the
second transfers them; so a reader measures waiting and transfer separately.

A group of samples is drawn once. It is evicted when it is the oldest of a full buffer ("capacity")
or its policy is too many versions old ("stale").
"""

import threading
from collections import deque

import numpy as np
from opentelemetry import metrics

import otel_rl
from otel_rl.demo.faults import Kind
from otel_rl.demo.generator_metrics import observe_process
from otel_rl.demo.messages import (
    Fetch,
    Group,
    Groups,
    Level,
    Reserve,
    Reserved,
)
from otel_rl.demo.rpc import ControlClient, listen, serve
from otel_rl.semconv import names
from otel_rl.semconv.spec import described


class BufferService:
    """Replay buffer behind a lock. Thread-safe. It holds groups; its metrics are in samples."""

    def __init__(self, control: ControlClient) -> None:
        settings = control.start.settings
        self._control = control
        self._limit = settings.buffer_groups
        self._max_staleness = settings.max_staleness
        self._group_size = settings.group_size
        self._rng = np.random.default_rng([settings.seed, 1])
        # _changed guards everything below, and wakes readers when a group was written.
        self._changed = threading.Condition()
        self._groups: deque[Group] = deque()
        self._reserved: dict[int, tuple[Group, ...]] = {}
        self._tickets = self._evicted = self._told_size = 0
        meter = metrics.get_meter("otel_rl.demo.processes.replay_buffer")
        self._size = meter.create_up_down_counter(*described(names.RL_REPLAY_BUFFER_SIZE))
        self._depth = meter.create_up_down_counter(*described(names.RL_REPLAY_BUFFER_QUEUE_DEPTH))
        self._writes = meter.create_counter(*described(names.RL_REPLAY_BUFFER_WRITES))
        self._reads = meter.create_counter(*described(names.RL_REPLAY_BUFFER_READS))
        self._evictions = meter.create_counter(*described(names.RL_REPLAY_BUFFER_EVICTIONS))
        self._dropped = meter.create_counter(*described(names.RL_SAMPLE_DROPPED))
        limit = meter.create_up_down_counter(*described(names.RL_REPLAY_BUFFER_LIMIT))
        limit.add(self._limit * self._group_size)
        for reason in ("capacity", "stale"):
            self._evict(0, reason)

    def answer(self, message: object) -> object:
        """Store a :class:`Group`, or answer :class:`Reserve` and :class:`Fetch`."""
        self._depth.add(1)
        try:
            with self._changed:
                match message:
                    case Group():
                        self._write(message)
                        return None
                    case Reserve(groups, policy_version):
                        return self._reserve(groups, policy_version)
                    case Fetch(ticket):
                        return self._fetch(ticket)
        finally:
            self._depth.add(-1)
        raise TypeError(f"not a message of the replay buffer: {message!r}")

    def _write(self, group: Group) -> None:
        for _ in range(int(self._control.faults.size(Kind.EVICTION) or 1)):
            if len(self._groups) == self._limit:
                self._groups.popleft()
                self._evict(1, "capacity")
            self._groups.append(group)
            self._writes.add(self._group_size)
        self._changed.notify_all()
        self._report()

    def _reserve(self, count: int, policy_version: int) -> Reserved:
        while (groups := self._draw(count, policy_version)) is None:
            self._report()  # stale groups may be gone: more are needed
            self._changed.wait()
        self._tickets += 1
        self._reserved[self._tickets] = groups
        self._report()
        return Reserved(self._tickets)

    def _draw(self, count: int, policy_version: int) -> tuple[Group, ...] | None:
        """Remove and return random groups; None if there are too few without the stale ones."""
        oldest = policy_version - self._max_staleness
        fresh = [one for one in self._groups if one.completions.policy_version >= oldest]
        self._evict(len(self._groups) - len(fresh), "stale")
        places = set[int]()
        if len(fresh) >= count:
            places = set(self._rng.choice(len(fresh), count, replace=False).tolist())
        self._groups = deque(one for place, one in enumerate(fresh) if place not in places)
        return tuple(fresh[place] for place in places) if places else None

    def _fetch(self, ticket: int) -> Groups:
        groups = self._reserved.pop(ticket)
        self._reads.add(len(groups) * self._group_size)
        return Groups(groups)

    def _evict(self, groups: int, reason: str) -> None:
        self._evicted += groups
        for counter in (self._evictions, self._dropped):
            counter.add(groups * self._group_size, {names.RL_REASON: reason})

    def _report(self) -> None:
        self._size.add((len(self._groups) - self._told_size) * self._group_size)
        self._told_size = len(self._groups)
        self._control.send(Level(len(self._groups), self._evicted))


def main() -> None:
    listener, address = listen()
    control = ControlClient("replay_buffer", address)
    otel_rl.init()
    observe_process()
    serve(listener, BufferService(control).answer, name="replay-buffer")
    control.wait_for_stop()


if __name__ == "__main__":
    main()
