"""Process: serves the replay buffer to the reward workers that write and the trainers that read.

Reading takes two calls. The first returns when enough groups are there and reserves them, the
second transfers them; so a reader measures waiting and transfer separately.
"""

import threading

import numpy as np
from opentelemetry import metrics

from otel_rl.demo.faults import Kind
from otel_rl.demo.messages import (
    Done,
    Fetch,
    Group,
    Groups,
    Level,
    Reserve,
    Reserved,
)
from otel_rl.demo.metrics import report_as
from otel_rl.demo.rpc import ControlClient, listen, serve
from otel_rl.demo.scheduling import ReplayBuffer
from otel_rl.semconv import names
from otel_rl.semconv.spec import described

__all__ = ["main"]


class BufferService:
    """Replay buffer behind a lock. Thread-safe."""

    def __init__(self, control: ControlClient, buffer: ReplayBuffer) -> None:
        self._control = control
        # _changed guards everything below, and wakes readers when a group was written.
        self._changed = threading.Condition()
        self._buffer = buffer
        self._reserved: dict[int, tuple[Group, ...]] = {}
        self._tickets = 0
        self._size = 0
        self._metrics = _BufferMetrics()
        group_size = control.start.settings.group_size
        self._metrics.limit.add(buffer.limit * group_size)

    def answer(self, message: object) -> object:
        """Store a :class:`Group`, or answer :class:`Reserve` and :class:`Fetch`."""
        self._metrics.queue_depth.add(1)
        try:
            with self._changed:
                match message:
                    case Group():
                        return self._write(message)
                    case Reserve(groups, policy_version):
                        return self._reserve(groups, policy_version)
                    case Fetch(ticket):
                        return self._fetch(ticket)
        finally:
            self._metrics.queue_depth.add(-1)
        raise TypeError(f"not a message of the replay buffer: {message!r}")

    def _write(self, group: Group) -> Done:
        for _ in range(int(self._control.faults.size(Kind.EVICTION) or 1)):
            self._buffer.write(group)
            self._metrics.writes.add(len(group.rewards))
        self._changed.notify_all()
        self._report(group_size=len(group.rewards))
        return Done()

    def _reserve(self, count: int, policy_version: int) -> Reserved:
        while True:
            groups = self._buffer.draw(count, policy_version=policy_version)
            if groups is not None:
                break
            # An early draw may have evicted stale groups: more are needed.
            self._send_level()
            self._changed.wait()
        self._tickets += 1
        self._reserved[self._tickets] = groups
        self._report(group_size=len(groups[0].rewards))
        return Reserved(self._tickets)

    def _fetch(self, ticket: int) -> Groups:
        groups = self._reserved.pop(ticket)
        self._metrics.reads.add(sum(len(group.rewards) for group in groups))
        return Groups(groups)

    def _report(self, *, group_size: int) -> None:
        self._metrics.size.add((len(self._buffer) - self._size) * group_size)
        self._size = len(self._buffer)
        self._metrics.evicted(self._buffer.evicted, group_size=group_size)
        self._send_level()

    def _send_level(self) -> None:
        self._control.send(Level(len(self._buffer), sum(self._buffer.evicted.values())))


class _BufferMetrics:
    """Metrics in samples, as in the conventions; the buffer itself holds groups."""

    def __init__(self) -> None:
        meter = metrics.get_meter("otel_rl.demo.processes.replay_buffer")
        self.size = meter.create_up_down_counter(*described(names.RL_REPLAY_BUFFER_SIZE))
        self.limit = meter.create_up_down_counter(*described(names.RL_REPLAY_BUFFER_LIMIT))
        self.queue_depth = meter.create_up_down_counter(
            *described(names.RL_REPLAY_BUFFER_QUEUE_DEPTH)
        )
        self.writes = meter.create_counter(*described(names.RL_REPLAY_BUFFER_WRITES))
        self.reads = meter.create_counter(*described(names.RL_REPLAY_BUFFER_READS))
        self._evictions = meter.create_counter(*described(names.RL_REPLAY_BUFFER_EVICTIONS))
        self._dropped = meter.create_counter(*described(names.RL_SAMPLE_DROPPED))
        self._evicted_before = dict[str, int]()

    def evicted(self, by_reason: dict[str, int], *, group_size: int) -> None:
        """Count the evictions since the last call."""
        for reason, groups in by_reason.items():
            more = (groups - self._evicted_before.get(reason, 0)) * group_size
            self._evictions.add(more, {names.RL_REASON: reason})
            self._dropped.add(more, {names.RL_REASON: reason})
        self._evicted_before = dict(by_reason)


def main() -> None:
    """Serve until stopped."""
    listener, address = listen()
    control = ControlClient("replay_buffer", address)
    settings = control.start.settings
    buffer = ReplayBuffer(
        limit=settings.buffer_groups,
        max_staleness=settings.max_staleness,
        rng=np.random.default_rng([settings.seed, 1]),
    )
    report_as("replay_buffer", index=control.index, count=control.count)
    serve(listener, BufferService(control, buffer).answer, name="replay-buffer")
    control.wait_for_stop()


if __name__ == "__main__":
    main()
