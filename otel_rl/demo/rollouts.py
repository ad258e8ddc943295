"""Shows what the policy writes: a few samples of each version, in a table of the run."""

import threading

import otel_rl
from otel_rl.demo import tokenizer
from otel_rl.demo.messages import Group

__all__ = ["TABLE", "Rollouts"]

TABLE = "rollouts"
"""The run has it as ``reward/rollouts``."""


class Rollouts:
    """Of each policy version, the best and the worst sample of the first group. Any thread."""

    def __init__(self) -> None:
        # _lock guards _shown, which holds versions: they come in any order.
        self._lock = threading.Lock()
        self._shown: set[int] = set()

    def show(self, group: Group) -> None:
        """Log the group's best and worst sample, unless its version has been shown."""
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
            step=version,  # the step that made the policy which wrote this
            name=TABLE,
        )
