"""What the orchestrator decides: which prompts, where, and how far ahead.

A request goes to the replica with the fewest unfinished ones, and stays there until the replica
reports it as finished. Unfinished requests of a lost replica return to the front of the queue. A
replica has recovered when it has finished a request again, not when its process is back.
"""

import itertools
import time
from collections import Counter, deque

import numpy as np
from opentelemetry import metrics, propagate, trace
from opentelemetry.trace import SpanKind

from otel_rl import lineage
from otel_rl.demo import task
from otel_rl.demo.messages import Carrier, Request
from otel_rl.demo.settings import DemoSettings
from otel_rl.semconv import names
from otel_rl.semconv.outcomes import Outcome
from otel_rl.semconv.spec import described

TEMPERATURES = (0.8, 1.2)
TOP_PS = (0.95, 1.0)


class Prompts:
    """Endless source of requests."""

    def __init__(self, settings: DemoSettings) -> None:
        self._settings = settings
        self._rng = np.random.default_rng([settings.seed, 2])
        self._numbers = itertools.count()
        self._tracer = trace.get_tracer("otel_rl.demo.processes.orchestrator")

    def next(self, *, policy_version: int) -> Request:
        """Return the next request, with the context of its dispatch span.

        Args:
            policy_version: The newest; determines the steps that may use the samples.
        """
        settings, rng = self._settings, self._rng
        context: Carrier = {}
        version = {"rl.policy.version": policy_version}
        with self._tracer.start_as_current_span(
            "rl.dispatch", kind=SpanKind.PRODUCER, attributes=version
        ):
            propagate.inject(context)
        return Request(
            number=next(self._numbers),
            prompt=task.prompt(rng, min_digits=settings.min_digits, max_digits=settings.max_digits),
            samples=settings.group_size,
            max_tokens=settings.max_completion,
            temperature=float(rng.uniform(*TEMPERATURES)),
            top_p=float(rng.uniform(*TOP_PS)),
            context=context,
        )


class Admission:
    """Decides about single prompts. One thread."""

    def __init__(self, settings: DemoSettings) -> None:
        self._wanted = settings.inventory_groups
        self._line_limit = settings.generators * settings.queue_limit
        self._begun_s = time.monotonic()
        self._admitted = 0
        self._interval_s = 0.0
        self._next_s = 0.0
        self._floods = False

    def begin(self) -> None:
        self._begun_s = time.monotonic()

    def admits(self, *, buffered: int, unfinished: int) -> bool:
        """Report whether one more prompt is admitted, and count it.

        Args:
            buffered: Groups in the replay buffer.
            unfinished: Prompts that wait or run.
        """
        if self._floods:
            enough = unfinished >= self._line_limit
        else:
            enough = buffered + unfinished >= self._wanted
        now_s = time.monotonic()
        if enough or now_s < self._next_s:
            return False
        if self._interval_s:
            # Relative to the schedule, so that a late call does not lower the rate.
            self._next_s = max(self._next_s, now_s - self._interval_s) + self._interval_s
        self._admitted += 1
        return True

    def throttle(self, factor: float) -> None:
        """Slow down the prompts by this factor, relative to their rate until now."""
        self._interval_s = factor * (time.monotonic() - self._begun_s) / max(1, self._admitted)

    def flood(self) -> None:
        """Admit prompts whenever a replica has room, independent of the inventory."""
        self._floods = True


class Replicas:
    """Queue of requests, the requests of each replica, and what is reported of them. One thread.

    Attributes:
        failures: Number of failed replicas.
        rerouted: Requests repeated by another replica.
        recoveries_s: Time from the detection of each failure until the replica served again.
    """

    def __init__(self, *, queue_limit: int) -> None:
        self.failures = 0
        self.rerouted = 0
        self.recoveries_s: list[float] = []
        self._queue_limit = queue_limit
        self._line: deque[Request] = deque()
        self._given: dict[int, dict[int, Request]] = {}
        # Of the requests of replicas, by number; and how often each was lost.
        self._rollouts: dict[int, lineage.rollout] = {}
        self._losses: Counter[int] = Counter()
        self._failed_at_s: dict[int, float] = {}
        self._failed_starts: Counter[int] = Counter()
        meter = metrics.get_meter("otel_rl.demo.processes.orchestrator")
        self._queue_depth = meter.create_up_down_counter(*described(names.RL_REPLICA_QUEUE_DEPTH))
        self._failures = meter.create_counter(*described(names.RL_REPLICA_FAILURES))
        self._recovery = meter.create_histogram(*described(names.RL_REPLICA_RECOVERY_DURATION))

    @property
    def unfinished(self) -> int:
        return len(self._line) + sum(map(len, self._given.values()))

    def serving(self, replica: int) -> None:
        self._given[replica] = {}
        self._failures.add(0, _attributes(replica))

    def lost(self, replica: int) -> int:
        """Remove a dead replica and queue its requests again, first of all.

        Returns:
            The number of its requests.
        """
        lost = self._given.pop(replica, {})
        for number in lost:
            self._losses[number] += 1
            reason = f"generator-{replica} was lost"
            self._rollouts.pop(number).end(outcome=Outcome.CANCELLED, reason=reason)
        self._line.extendleft(reversed(lost.values()))
        self.failures += 1
        self.rerouted += len(lost)
        self._failed_at_s[replica] = time.monotonic()
        self._failed_starts[replica] += 1
        self._failures.add(1, _attributes(replica))
        self._queue_depth.add(-len(lost), _attributes(replica))
        return len(lost)

    def failed_starts(self, replica: int) -> int:
        """Return the number of the replica's deaths since it last finished a request."""
        return self._failed_starts[replica]

    def submit(self, request: Request) -> None:
        self._line.append(request)

    def next(self) -> tuple[int, Request] | None:
        """Assign the oldest request to the replica with the fewest, if one has room."""
        if not self._line or not self._given:
            return None
        replica = min(self._given, key=lambda each: len(self._given[each]))
        if len(self._given[replica]) >= self._queue_limit:
            return None
        request = self._line.popleft()
        self._given[replica][request.number] = request
        rollout = lineage.rollout(
            request.number,
            self._losses[request.number] + 1,
            prompt=request.prompt,
            environment=task.ENVIRONMENT,
        )
        self._rollouts[request.number] = rollout.begin()
        rollout.stage(f"generator-{replica}")
        self._queue_depth.add(1, _attributes(replica))
        return replica, request

    def finished(self, replica: int, number: int) -> float | None:
        """Record a finished request.

        A late message of a lost replica finishes nothing: another one repeats the request.

        Returns:
            Seconds of recovery, if this ends a failure.
        """
        if self._given.get(replica, {}).pop(number, None) is None:
            return None
        self._queue_depth.add(-1, _attributes(replica))
        self._rollouts.pop(number).end()
        del self._losses[number]
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
