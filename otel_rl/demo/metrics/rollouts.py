"""Logs a few samples of each policy version, in a table of the run."""

import threading

import otel_rl
from otel_rl.demo.control.messages import Group
from otel_rl.demo.model import tokenizer

__all__ = ["TABLE", "Rollouts"]

TABLE = "rollouts"
"""The run has it as ``reward/rollouts``."""


class Rollouts:
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
                    "completion": tokenizer.decode(tokens),
                    "reward": reward,
                }
                for reward, tokens in (scored[-1], scored[0])
            ],
            step=version,  # the step that produced the policy
            name=TABLE,
        )
