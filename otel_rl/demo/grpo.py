"""Group-relative policy optimisation, on data-parallel ranks.

Every token of a sample gets the sample's advantage within its group. The objective is PPO's clipped
ratio to the policy that sampled it, plus a KL penalty against a frozen reference policy.

There is no accelerator here. What would be a copy to the device is a copy of the same size, from
memory to memory.

Ranks average and agree through rank 0. All make the same calls in the same order; that is the
whole protocol.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from otel_rl.demo import task
from otel_rl.demo.messages import Group
from otel_rl.demo.settings import DemoSettings
from otel_rl.demo.transformer import Adam, Floats, Parameters, forward, softmax

DEVIATION_FLOOR = 1e-4  # a group with equal rewards has no signal: its advantages are 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples as rectangles, padded on the right. All but ``tokens`` are (rows, length - 1).

    Attributes:
        tokens: (rows, length) prompt and completion.
        mask: 1 where the next token was sampled, 0 for prompt and padding.
        behaviour: Log-probability of the next token under the policy that sampled it.
        advantages: Advantage of the position's sample.
    """

    tokens: npt.NDArray[np.int64]
    mask: Floats
    behaviour: Floats
    advantages: Floats

    def copied(self) -> "Batch":
        return Batch(
            self.tokens.copy(), self.mask.copy(), self.behaviour.copy(), self.advantages.copy()
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measurements of one evaluation of the loss. Means are over sampled tokens.

    Attributes:
        loss: The minimised objective.
        kl: Estimated KL(policy || reference), never negative.
        entropy: Of the policy's next-token distribution, in nats.
        clipped: Share of tokens whose gradient is clipped.
        ratio: Mean importance ratio, policy over the policy that sampled the token.
    """

    loss: float
    kl: float
    entropy: float
    clipped: float
    ratio: float


def group_advantages(rewards: Floats) -> Floats:
    """Normalise the rewards of one group to mean 0 and deviation 1."""
    centred: Floats = rewards - rewards.mean()
    deviation = float(rewards.std())
    return centred / deviation if deviation > DEVIATION_FLOOR else np.zeros_like(centred)


def loss_and_gradient(
    logits: Floats, reference_logits: Floats, batch: Batch, *, clip: float, kl_weight: float
) -> tuple[Outcome, Floats]:
    """Return the loss, and its gradient with respect to the logits.

    Args:
        logits: Of the policy, (rows, length, vocabulary).
        reference_logits: Of the frozen policy, same shape.
        batch: The samples.
        clip: The ratio is clipped to [1 - clip, 1 + clip].
        kl_weight: Of the KL penalty against the reference policy.
    """
    taken = batch.tokens[:, 1:, None]
    probabilities = softmax(logits[:, :-1])
    logs = np.log(probabilities + 1e-20)
    log_probability = np.take_along_axis(logs, taken, axis=-1)[..., 0]
    reference = np.take_along_axis(softmax(reference_logits[:, :-1]), taken, axis=-1)[..., 0]
    weight = batch.mask / max(1.0, float(batch.mask.sum()))

    # An extreme ratio would overflow; beyond the clip its size does not matter.
    ratio = np.exp(np.clip(log_probability - batch.behaviour, -20.0, 20.0))
    free = ratio * batch.advantages
    held = np.clip(ratio, 1 - clip, 1 + clip) * batch.advantages
    active = free <= held

    # Schulman's low-variance estimate: exp(d) - d - 1 with d = log reference - log policy.
    distance = np.clip(np.log(reference + 1e-20) - log_probability, -20.0, 20.0)
    kl = np.exp(distance) - distance - 1
    entropy = -(probabilities * logs).sum(axis=-1)
    pointwise = -np.minimum(free, held) + kl_weight * kl

    by_log_probability = weight * (
        -np.where(active, free, 0.0) + kl_weight * (1 - np.exp(distance))
    )
    gradient = np.zeros_like(logits)
    inner = -by_log_probability[..., None] * probabilities
    chosen = np.take_along_axis(inner, taken, axis=-1) + by_log_probability[..., None]
    np.put_along_axis(inner, taken, chosen, axis=-1)
    gradient[:, :-1] = inner
    outcome = Outcome(
        loss=float((weight * pointwise).sum()),
        kl=float((weight * kl).sum()),
        entropy=float((weight * entropy).sum()),
        clipped=float((weight * ~active).sum()),
        ratio=float((weight * ratio).sum()),
    )
    return outcome, gradient


def pack(groups: Sequence[Group], *, length: int) -> Batch:
    """Lay samples out as rows of a length, padded on the right, with each token's advantage."""
    rows = sum(len(group.rewards) for group in groups)
    batch = Batch(
        tokens=np.full((rows, length), task.PAD, np.int64),
        mask=np.zeros((rows, length - 1), np.float32),
        behaviour=np.zeros((rows, length - 1), np.float32),
        advantages=np.zeros((rows, length - 1), np.float32),
    )
    row = 0
    for group in groups:
        prompt = group.completions.prompt_tokens
        for tokens, log_probabilities, advantage in zip(
            group.completions.tokens,
            group.completions.log_probabilities,
            group_advantages(np.array(group.rewards, np.float32)),
            strict=True,
        ):
            end = len(prompt) + len(tokens)
            batch.tokens[row, :end] = (*prompt, *tokens)
            # Position i of the rectangles refers to the choice of token i + 1.
            chosen = slice(len(prompt) - 1, end - 1)
            batch.mask[row, chosen] = 1.0
            batch.behaviour[row, chosen] = log_probabilities
            batch.advantages[row, chosen] = advantage
            row += 1
    return batch


WARMUP_SHARE = 0.04
LAST_SHARE = 0.2


def learning_rate(step: int, *, steps: int, peak: float) -> float:
    """Return the rate: linear warm-up to ``peak``, then linear decay to a fifth of it."""
    warmup = max(1, round(steps * WARMUP_SHARE))
    if step <= warmup:
        return peak * step / warmup
    left = (steps - step) / max(1, steps - warmup)
    return peak * (LAST_SHARE + (1 - LAST_SHARE) * left)


class Learner:
    """Policy in training, with its frozen reference and its optimiser."""

    def __init__(self, settings: DemoSettings, checkpoint: bytes) -> None:
        self.policy = Parameters.from_bytes(settings.shape, checkpoint)
        self._reference = Parameters.from_bytes(settings.shape, checkpoint)
        self._adam = Adam(len(self.policy.flat))
        self._settings = settings

    def reference_logits(self, batch: Batch) -> Floats:
        return forward(self._reference, batch.tokens)[0]

    def gradient(self, batch: Batch, reference_logits: Floats) -> tuple[Outcome, Floats]:
        """Return the loss of a batch, and its gradient as one flat vector."""
        settings = self._settings
        logits, backward = forward(self.policy, batch.tokens)
        outcome, by_logits = loss_and_gradient(
            logits, reference_logits, batch, clip=settings.clip, kl_weight=settings.kl_weight
        )
        return outcome, backward(by_logits).flat

    def update(self, gradient: Floats, *, step: int) -> tuple[float, float]:
        """Update the policy. Returns the learning rate of the step, and the norm of the change."""
        settings = self._settings
        rate = learning_rate(step, steps=settings.steps, peak=settings.learning_rate)
        norm = self._adam.step(
            self.policy.flat, gradient, rate=rate, max_norm=settings.max_gradient_norm
        )
        return rate, norm


class Ranks:
    """Connections of one rank: on rank 0 those to the others, on the others that to rank 0."""

    def __init__(
        self, *, first: Connection | None = None, others: Sequence[Connection] = ()
    ) -> None:
        self._first = first
        self._others = others

    def average(self, values: Floats) -> Floats:
        """Return the mean of all ranks' values, bitwise equal on every rank."""
        total = values.astype(np.float32)
        if self._first is not None:
            self._first.send_bytes(total.tobytes())
            return np.frombuffer(self._first.recv_bytes(), np.float32)
        for other in self._others:
            total += np.frombuffer(other.recv_bytes(), np.float32)
        total /= 1 + len(self._others)
        for other in self._others:
            other.send_bytes(total.tobytes())
        return total

    def barrier(self) -> None:
        self.agree(go_on=True)

    def agree(self, *, go_on: bool) -> bool:
        """Wait for all ranks; every rank returns the value of rank 0."""
        if self._first is not None:
            self._first.send_bytes(b"\x01")
            return self._first.recv_bytes() == b"\x01"
        for other in self._others:
            other.recv_bytes()
        for other in self._others:
            other.send_bytes(b"\x01" if go_on else b"\x00")
        return go_on
