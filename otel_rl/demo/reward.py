"""Process: verifies completions and writes them to the replay buffer with their rewards.

Verifying is this run's environment: the completion is the action, the reward is what comes back.
"""

import statistics
import time

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.trace import SpanKind

import otel_rl
from otel_rl import carrier
from otel_rl.demo import task, tokenizer
from otel_rl.demo.faults import Kind
from otel_rl.demo.messages import Completions, Done, Group
from otel_rl.demo.rollouts import Rollouts
from otel_rl.demo.seat import Seat
from otel_rl.demo.telemetry import report_as
from otel_rl.demo.troubles import Troubles
from otel_rl.demo.wire import Remote, listen, serve
from otel_rl.semconv import instruments, names

__all__ = ["main", "rewards_of"]

TURNED_AROUND = -1


def rewards_of(completions: Completions) -> tuple[float, ...]:
    """The reward of each sample, from 0 to 1."""
    return tuple(
        task.score(
            completions.prompt,
            tokenizer.decode(tokens),
            ended=tokens[-1] == tokenizer.END,
        )
        for tokens in completions.tokens
    )


class Verifier:
    """Scores one group per call. Several threads at once, one per generator."""

    def __init__(self, buffer: Remote, troubles: Troubles) -> None:
        self._buffer = buffer
        self._troubles = troubles
        self._rollouts = Rollouts()
        self._tracer = trace.get_tracer("otel_rl.demo.reward")
        meter = metrics.get_meter("otel_rl.demo.reward")
        self._duration = instruments.create_rl_reward_duration(meter)
        self._step_duration = instruments.create_rl_env_step_duration(meter)
        self._episodes = instruments.create_rl_sample_episodes(meter)
        self._mean = instruments.create_rl_reward_mean(meter)
        self._deviation = instruments.create_rl_reward_std(meter)
        self._iteration = instruments.create_rl_iteration_duration(meter)

    def answer(self, message: object) -> object:
        """Take :class:`Completions`; the answer comes when they are in the replay buffer."""
        if not isinstance(message, Completions):
            raise TypeError(f"not a message of a reward worker: {message!r}")
        begun_s = time.perf_counter()
        parent = propagate.extract(message.context)
        version = {names.RL_POLICY_VERSION: message.policy_version}
        with self._tracer.start_as_current_span(
            "rl.reward", parent, SpanKind.CONSUMER, attributes=version
        ):
            with otel_rl.phase("env_step"):
                rewards = self._troubled(rewards_of(message))
            scored_s = time.perf_counter() - begun_s
            group = Group(message, rewards, _stamp(message))
            with otel_rl.phase("replay"):
                self._buffer.call(group)
            self._rollouts.show(group)
        self._duration.record(scored_s)
        self._step_duration.record(scored_s / len(rewards))
        self._episodes.add(len(rewards))
        self._mean.set(statistics.fmean(rewards))
        self._deviation.set(statistics.pstdev(rewards))
        self._iteration.set(time.perf_counter() - begun_s)
        return Done()

    def _troubled(self, rewards: tuple[float, ...]) -> tuple[float, ...]:
        self._troubles.delay(Kind.SLOW_REWARD)
        lie = self._troubles.size(Kind.REWARD_BUG)
        if lie is None:
            return rewards
        return tuple(1 - reward if lie == TURNED_AROUND else lie for reward in rewards)


def _stamp(completions: Completions) -> str:
    """What the generator would say of its samples if it knew otel_rl."""
    token = context.attach(propagate.extract(completions.origin))
    try:
        version = completions.policy_version
        return carrier.stamp(policy_version=version, step=version + 1)
    finally:
        context.detach(token)


def main() -> None:
    """Serve until told to stop."""
    listener, address = listen()
    seat = Seat("reward", address)
    report_as("reward", index=seat.index, count=seat.count)
    buffer = Remote(seat.address("replay_buffer"), seat.troubles.message_travels)
    verifier = Verifier(buffer, seat.troubles)
    serve(listener, verifier.answer, name="reward")
    seat.wait_for_stop()


if __name__ == "__main__":
    main()
