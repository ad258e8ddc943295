"""Result of a run."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

RESULT_FILE = "result.json"


class DemoResult(BaseModel):
    """Result of a complete or failed run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str = ""
    """Reason of an early end; empty if complete."""
    logs: Path
    """Directory with the logs of every process."""
    steps: int = 0
    """Policy updates made."""
    rewards: tuple[float, ...] = ()
    """Mean reward of each step's samples."""
    staleness: float | None = None
    """Mean age of the training samples, in policy versions."""
    tokens: int = 0
    """Tokens generated."""
    requests: int = 0
    """Prompts completed."""
    rerouted: int = 0
    """Requests repeated by another replica."""
    evicted: int = 0
    """Samples that left the replay buffer unused."""
    failures: int = 0
    """Failed replicas."""
    recoveries_s: tuple[float, ...] = ()
    """For each failure, time from its detection until the replica served again."""
    duration_s: float = 0.0
    """From the start of the first step to the end of the last."""

    @property
    def ok(self) -> bool:
        """True if every step was made and every process ended cleanly."""
        return not self.reason

    def mean_reward(self, quarter: int) -> float | None:
        """Return the mean reward of a quarter of the steps, 0 to 3, or None if it has none."""
        edges = [len(self.rewards) * i // 4 for i in range(5)]
        part = self.rewards[edges[quarter] : edges[quarter + 1]]
        return sum(part) / len(part) if part else None

    def __str__(self) -> str:
        lines = [f"The demo did not reach its end: {self.reason}"] if self.reason else []
        first, last = self.mean_reward(0), self.mean_reward(3)
        if first is not None and last is not None:
            lines.append(
                f"{self.steps} GRPO steps in {self.duration_s:.0f} s: "
                f"mean reward {first:.2f} in the first quarter, {last:.2f} in the last."
            )
        if self.staleness is not None:
            lines.append(
                f"{self.requests} prompts, {self.tokens} tokens generated; trained on samples "
                f"{self.staleness:.1f} versions old; {self.evicted} samples evicted."
            )
        if self.failures:
            recovered = ", ".join(f"{seconds:.1f} s" for seconds in self.recoveries_s) or "not yet"
            what, its = (
                ("1 replica failed", "its")
                if self.failures == 1
                else (f"{self.failures} times a replica failed", "their")
            )
            lines.append(
                f"{what}, {self.rerouted} of {its} requests went to others; "
                f"it served again after: {recovered}."
            )
        lines.append(f"Logs of every process: {self.logs}")
        return "\n".join(lines)
