"""Generator replicas from the view of the orchestrator: load, failures, recovery.

A replica recovers when it has finished a request again, not when its process is back.
"""

import time
from collections import Counter

from opentelemetry import metrics

from otel_rl.demo.control.messages import Request
from otel_rl.demo.scheduling.router import Router
from otel_rl.semconv import names
from otel_rl.semconv.spec import described

__all__ = ["Replicas"]


class Replicas:
    """Router with metrics. One thread.

    Attributes:
        failures: Number of failed replicas.
        rerouted: Requests repeated by another replica.
        recoveries_s: Time from the detection of each failure until the replica served again.
    """

    def __init__(self, *, queue_limit: int) -> None:
        self.failures = 0
        self.rerouted = 0
        self.recoveries_s: list[float] = []
        self._router = Router(queue_limit=queue_limit)
        self._failed_at_s: dict[int, float] = {}
        self._failed_starts: Counter[int] = Counter()
        meter = metrics.get_meter("otel_rl.demo.processes.orchestrator")
        self._queue_depth = meter.create_up_down_counter(*described(names.RL_REPLICA_QUEUE_DEPTH))
        self._failures = meter.create_counter(*described(names.RL_REPLICA_FAILURES))
        self._recovery = meter.create_histogram(*described(names.RL_REPLICA_RECOVERY_DURATION))

    @property
    def unfinished(self) -> int:
        """Requests in the queue and at the replicas."""
        return self._router.unfinished

    def serving(self, replica: int) -> None:
        """Add a replica that accepts requests."""
        self._router.add_replica(replica)
        self._failures.add(0, _attributes(replica))

    def lost(self, replica: int) -> int:
        """Remove a dead replica.

        Returns:
            The number of its requests that go to others.
        """
        requests = self._router.lose_replica(replica)
        self.failures += 1
        self.rerouted += requests
        self._failed_at_s[replica] = time.monotonic()
        self._failed_starts[replica] += 1
        self._failures.add(1, _attributes(replica))
        self._queue_depth.add(-requests, _attributes(replica))
        return requests

    def failed_starts(self, replica: int) -> int:
        """Return the number of the replica's deaths since it last finished a request."""
        return self._failed_starts[replica]

    def submit(self, request: Request) -> None:
        """Add a request to the queue."""
        self._router.submit(request)

    def next(self) -> tuple[int, Request] | None:
        """Assign a request to the replica with the fewest, if one has room."""
        given = self._router.next()
        if given is not None:
            self._queue_depth.add(1, _attributes(given[0]))
        return given

    def finished(self, replica: int, number: int) -> float | None:
        """Record a finished request.

        Returns:
            Seconds of recovery, if this ends a failure.
        """
        if not self._router.finish(replica, number):
            return None
        self._queue_depth.add(-1, _attributes(replica))
        del self._failed_starts[replica]
        failed_at_s = self._failed_at_s.pop(replica, None)
        if failed_at_s is None:
            return None
        recovery_s = time.monotonic() - failed_at_s
        self.recoveries_s.append(recovery_s)
        self._recovery.record(recovery_s, _attributes(replica))
        return recovery_s


def _attributes(replica: int) -> dict[str, str]:
    return {names.RL_REPLICA: f"generator-{replica}"}
