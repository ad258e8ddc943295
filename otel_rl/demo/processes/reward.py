"""Process: verifies completions and writes them to the replay buffer with their rewards.

Verifying is this run's environment: the completion is the action, the verdict is the reward.
"""

import random
import statistics
import threading
import time
from collections.abc import Sequence

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.trace import SpanKind

import otel_rl
from otel_rl import lineage
from otel_rl.demo import task
from otel_rl.demo.faults import FaultInjection, Kind
from otel_rl.demo.generator_metrics import observe_process
from otel_rl.demo.messages import Completions, Group
from otel_rl.demo.rpc import ControlClient, Remote, listen, serve
from otel_rl.semconv import names
from otel_rl.semconv.outcomes import Outcome
from otel_rl.semconv.spec import described

TURNED_AROUND = -1


def rewards_of(completions: Completions) -> tuple[float, ...]:
    """Return the reward of each sample, from 0 to 1."""
    return tuple(
        task.score(
            completions.prompt,
            task.decode(tokens),
            ended=tokens[-1] == task.END,
        )
        for tokens in completions.tokens
    )


class Verifier:
    """Scores one group per call. Several threads at once, one per generator."""

    def __init__(self, buffer: Remote, faults: FaultInjection) -> None:
        self._buffer = buffer
        self._faults = faults
        self._rollouts = _Rollouts()
        self._tracer = trace.get_tracer("otel_rl.demo.processes.reward")
        meter = metrics.get_meter("otel_rl.demo.processes.reward")
        self._duration = meter.create_histogram(*described(names.RL_REWARD_DURATION))
        self._step_duration = meter.create_histogram(*described(names.RL_ENV_STEP_DURATION))
        self._episodes = meter.create_counter(*described(names.RL_SAMPLE_EPISODES))
        self._deviation = meter.create_gauge(*described(names.RL_REWARD_STD))
        self._iteration = meter.create_gauge(*described(names.RL_ITERATION_DURATION))

    def answer(self, message: object) -> None:
        """Verify :class:`Completions`; answers once they are in the replay buffer."""
        if not isinstance(message, Completions):
            raise TypeError(f"not a message of a reward worker: {message!r}")
        begun_s = time.perf_counter()
        parent = propagate.extract(message.context)
        version = {names.RL_POLICY_VERSION: message.policy_version}
        with self._tracer.start_as_current_span(
            "rl.reward", parent, SpanKind.CONSUMER, attributes=version
        ):
            with otel_rl.phase("env_step"):
                rewards = self._with_faults(rewards_of(message))
                broken = self._broken_sandboxes(len(rewards))
                rewards = tuple(0.0 if bad else r for r, bad in zip(rewards, broken, strict=True))
            scored_s = time.perf_counter() - begun_s
            group = Group(message, rewards, _stamps(message, rewards, broken))
            with otel_rl.phase("replay"):
                self._buffer.call(group)
            self._rollouts.show(group)
        self._duration.record(scored_s)
        self._step_duration.record(scored_s / len(rewards))
        self._episodes.add(len(rewards))
        self._deviation.set(statistics.pstdev(rewards))
        self._iteration.set(time.perf_counter() - begun_s)

    def _with_faults(self, rewards: tuple[float, ...]) -> tuple[float, ...]:
        self._faults.delay(Kind.SLOW_REWARD)
        if random.random() < (self._faults.size(Kind.DEAD_GROUPS) or 0.0):  # a fault
            return (statistics.fmean(rewards),) * len(rewards)
        lie = self._faults.size(Kind.REWARD_BUG)
        if lie is None:
            return rewards
        return tuple(1 - reward if lie == TURNED_AROUND else lie for reward in rewards)

    def _broken_sandboxes(self, samples: int) -> Sequence[bool]:
        share = self._faults.size(Kind.POISONED_REWARDS) or 0.0
        return [random.random() < share for _ in range(samples)]  # a fault


class _Rollouts:
    """Logs the best and the worst sample of each policy version's first group. Thread-safe."""

    def __init__(self) -> None:
        # _lock guards _shown, which holds versions: they arrive in any order.
        self._lock = threading.Lock()
        self._shown: set[int] = set()

    def show(self, group: Group) -> None:
        """Log the group's best and worst sample, once per version."""
        version = group.completions.policy_version
        with self._lock:
            if version in self._shown:
                return
            self._shown.add(version)
        scored = sorted(zip(group.rewards, group.completions.tokens, strict=True))
        otel_rl.log_samples(
            [
                {
                    "prompt": group.completions.prompt,
                    "completion": task.decode(tokens),
                    "reward": reward,
                }
                for reward, tokens in (scored[-1], scored[0])
            ],
            step=version,  # the step that produced the policy
            name="rollouts",
        )


def _stamps(
    completions: Completions, rewards: Sequence[float], broken: Sequence[bool]
) -> tuple[str, ...]:
    """Return the stamps that a generator with otel_rl would write, with how each sample ended."""
    token = context.attach(propagate.extract(completions.origin))
    try:
        version = completions.policy_version
        stamp = lineage.stamp(policy_version=version, step=version + 1)
    finally:
        context.detach(token)
    group = lineage.read(stamp)
    ends = [
        (Outcome.ENVIRONMENT_FAILED, "session_reset")
        if bad
        else (Outcome.TRAINED, None)
        if tokens[-1] == task.END
        else (Outcome.TRUNCATED, "max_tokens")
        for tokens, bad in zip(completions.tokens, broken, strict=True)
    ]
    return tuple(
        lineage.score(
            stamp,
            reward=reward,
            tokens=tokens,
            outcome=outcome,
            reason=reason,
            environment=task.ENVIRONMENT,
            group=None if group is None or group.span is None else f"{group.span[1]:016x}",
        )
        for reward, tokens, (outcome, reason) in zip(rewards, completions.tokens, ends, strict=True)
    )


def main() -> None:
    listener, address = listen()
    control = ControlClient("reward", address)
    otel_rl.init()
    observe_process()
    buffer = Remote(control.address("replay_buffer"), control.faults.message_travels)
    verifier = Verifier(buffer, control.faults)
    serve(listener, verifier.answer, name="reward")
    control.wait_for_stop()


if __name__ == "__main__":
    main()
