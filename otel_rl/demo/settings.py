"""Settings of a run of the demo."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from otel_rl.demo import task
from otel_rl.demo.faults import Fault
from otel_rl.demo.transformer import Shape


class DemoSettings(BaseModel):
    """Settings of one run. The defaults learn the task in well under a minute on two cores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    experiment: str = "grpo-demo"
    """Groups all telemetry of the run; used if the environment names no experiment."""
    trial: str = "default"
    """One run of the experiment."""
    work_dir: Path | None = None
    """Directory for logs and the first checkpoint; None makes a new temporary directory."""
    seed: int = 0
    """Seed of weights, prompts and sampling. The processes race, so two runs still differ."""

    steps: int = 100
    """Policy updates."""
    kill_share: float | None = 0.5
    """Generator 1 is killed after this share of the steps; None lets it live."""
    faults: tuple[Fault, ...] = ()
    """Injected faults. Telemetry does not report them."""

    trainers: int = 2
    """Data-parallel trainer ranks."""
    generators: int = 3
    """Generator replicas. At least two, so that one can fail."""
    reward_workers: int = 2
    """Processes that verify completions."""

    groups_per_rank: int = 24
    """Prompts in one rank's batch."""
    group_size: int = 8
    """Completions per prompt, compared with each other."""
    learning_rate: float = 4e-3
    """Peak; it warms up over the first steps and decays linearly to a fifth."""
    max_gradient_norm: float = 1.0
    """A gradient with a larger norm is scaled down to it."""
    clip: float = 0.2
    """GRPO's ratio is clipped to one plus or minus this."""
    kl_weight: float = 0.005
    """Weight of the penalty for leaving the reference policy."""

    min_digits: int = 3
    """Digits in the shortest prompt."""
    max_digits: int = 5
    """Digits in the longest prompt."""
    width: int = 64
    """Width of the transformer's residual stream."""
    heads: int = 4
    """Attention heads; must divide the width."""

    queue_limit: int = 8
    """Maximum number of requests at one generator replica."""
    batch_limit: int = 3
    """Maximum number of requests that one replica decodes in parallel."""
    cache_tokens: int = 256
    """Capacity of one replica's KV cache, in tokens; at least those of a request."""

    buffer_groups: int = 120
    """Capacity of the replay buffer in groups; the oldest is evicted from a full buffer."""
    inventory_groups: int = 100
    """Prompts are admitted until so many groups are in the buffer or in progress: at least those of
    all batches, and at most those of the buffer."""
    max_staleness: int = 4
    """A group whose policy is more versions old than this is evicted."""

    @model_validator(mode="after")
    def _faults_have_processes(self) -> Self:
        for fault in self.faults:
            fault.victims(self.processes)
        return self

    @property
    def hyper_parameters(self) -> dict[str, object]:
        """Settings of the run, without names, directory and faults."""
        left_out = {"experiment", "trial", "work_dir", "faults", "steps"}
        # Under a name by which pages and terminals know how long it takes.
        return {"total_steps": self.steps, **self.model_dump(mode="json", exclude=left_out)}

    @property
    def shape(self) -> Shape:
        return Shape(
            vocabulary=task.VOCABULARY,
            positions=task.longest_prompt(self.max_digits) + self.max_completion,
            width=self.width,
            heads=self.heads,
        )

    @property
    def max_completion(self) -> int:
        """Length limit of a completion, in tokens."""
        return task.longest_completion(self.max_digits)

    @property
    def request_tokens(self) -> int:
        """Maximum KV cache of a request, in tokens."""
        return task.longest_prompt(self.max_digits) + self.group_size * self.max_completion

    @property
    def kill_step(self) -> int | None:
        return None if self.kill_share is None else max(1, round(self.steps * self.kill_share))

    @property
    def members(self) -> list[tuple[str, int, int]]:
        """All processes of the run except the orchestrator, as (role, index, count)."""
        counts = {
            "weight_store": 1,
            "replay_buffer": 1,
            "reward": self.reward_workers,
            "generator": self.generators,
            "trainer": self.trainers,
        }
        return [(role, i, count) for role, count in counts.items() for i in range(count)]

    @property
    def processes(self) -> list[tuple[str, int]]:
        """All processes of the run, as (role, index)."""
        return [("orchestrator", 0), *((role, index) for role, index, _ in self.members)]
