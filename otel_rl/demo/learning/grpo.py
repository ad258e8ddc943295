"""Group-relative policy optimisation: the advantages and the loss with its gradient.

Every token of a sample gets the sample's advantage within its group. The objective is PPO's clipped
ratio to the policy that sampled it, plus a KL penalty against a frozen reference policy.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otel_rl.demo.model import Floats
from otel_rl.demo.model.transformer import softmax

__all__ = ["Batch", "Objective", "Outcome", "group_advantages", "loss_and_gradient"]

DEVIATION_FLOOR = 1e-4  # a group with equal rewards has no signal: its advantages are 0


@dataclass(frozen=True, slots=True)
class Objective:
    """Weights of the loss.

    Attributes:
        clip: The ratio is clipped to [1 - clip, 1 + clip].
        kl_weight: Of the KL penalty against the reference policy.
        entropy_weight: Of the entropy bonus.
    """

    clip: float
    kl_weight: float
    entropy_weight: float


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
    logits: Floats, reference_logits: Floats, batch: Batch, objective: Objective
) -> tuple[Outcome, Floats]:
    """Return the loss, and its gradient with respect to the logits.

    Args:
        logits: Of the policy, (rows, length, vocabulary).
        reference_logits: Of the frozen policy, same shape.
        batch: The samples.
        objective: Weights of the loss.
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
    held = np.clip(ratio, 1 - objective.clip, 1 + objective.clip) * batch.advantages
    active = free <= held

    # Schulman's low-variance estimate: exp(d) - d - 1 with d = log reference - log policy.
    distance = np.clip(np.log(reference + 1e-20) - log_probability, -20.0, 20.0)
    kl = np.exp(distance) - distance - 1
    entropy = -(probabilities * logs).sum(axis=-1)
    pointwise = (
        -np.minimum(free, held) + objective.kl_weight * kl - objective.entropy_weight * entropy
    )

    by_log_probability = weight * (
        -np.where(active, free, 0.0) + objective.kl_weight * (1 - np.exp(distance))
    )
    gradient = np.zeros_like(logits)
    inner = -by_log_probability[..., None] * probabilities
    chosen = np.take_along_axis(inner, taken, axis=-1) + by_log_probability[..., None]
    np.put_along_axis(inner, taken, chosen, axis=-1)
    spread = probabilities * (logs + entropy[..., None])
    inner += objective.entropy_weight * weight[..., None] * spread
    gradient[:, :-1] = inner
    outcome = Outcome(
        loss=float((weight * pointwise).sum()),
        kl=float((weight * kl).sum()),
        entropy=float((weight * entropy).sum()),
        clipped=float((weight * ~active).sum()),
        ratio=float((weight * ratio).sum()),
    )
    return outcome, gradient
