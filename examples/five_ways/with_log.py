"""REINFORCE on a bandit: the policy learns which of ten arms pays best."""

import math
import random

import otel_rl

STEPS, ARMS, BATCH, LEARNING_RATE = 50, 10, 64, 8.0


class Policy:
    """Chooses an arm by a softmax over one number per arm."""

    def __init__(self) -> None:
        self.logits = [0.0] * ARMS

    def probabilities(self) -> list[float]:
        """Of each arm."""
        weights = [math.exp(logit) for logit in self.logits]
        return [weight / sum(weights) for weight in weights]

    def update(self, arms: list[int], rewards: list[float]) -> float:
        """Make arms that paid more than the mean likelier. Returns the loss."""
        chosen = self.probabilities()
        baseline = sum(rewards) / len(rewards)
        loss = 0.0
        for arm, reward in zip(arms, rewards, strict=True):
            advantage = (reward - baseline) / len(arms)
            loss -= advantage * math.log(chosen[arm])
            for other in range(ARMS):
                gradient = advantage * ((other == arm) - chosen[other])
                self.logits[other] += LEARNING_RATE * gradient
        return loss


def train() -> None:
    """Print loss and mean reward of each step."""
    chance = random.Random(7)
    pays = [chance.random() for _ in range(ARMS)]
    policy = Policy()
    otel_rl.init(role="trainer")
    for step in range(1, STEPS + 1):
        arms = chance.choices(range(ARMS), policy.probabilities(), k=BATCH)
        rewards = [chance.gauss(pays[arm], 0.1) for arm in arms]
        loss = policy.update(arms, rewards)
        reward = sum(rewards) / BATCH
        print(f"{step} {loss!r} {reward!r}")
        otel_rl.log({"loss": loss, "reward": reward}, step=step)


if __name__ == "__main__":
    train()
