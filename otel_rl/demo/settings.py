"""Settings of a run of the demo."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from otel_rl.demo import task
from otel_rl.demo.faults import Fault
from otel_rl.demo.transformer import Shape

__all__ = ["DemoSettings"]


class DemoSettings(BaseModel):
    """Settings of one run. The defaults learn the task in well under a minute on two cores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    experiment: str = Field(default="grpo-demo", min_length=1)
    """Groups all telemetry of the run; used if the environment names no experiment."""
    trial: str = Field(default="default", min_length=1)
    """One run of the experiment."""
    work_dir: Path | None = None
    """Directory for logs and the first checkpoint; None makes a new temporary directory."""
    seed: int = 0
    """Seed of weights, prompts and sampling. The processes race, so two runs still differ."""

    steps: int = Field(default=100, ge=1)
    """Policy updates."""
    kill_share: float | None = Field(default=0.5, gt=0, lt=1)
    """Generator 1 is killed after this share of the steps; None lets it live."""
    faults: tuple[Fault, ...] = ()
    """Injected faults. Telemetry does not report them."""

    trainers: int = Field(default=2, ge=1)
    """Data-parallel trainer ranks."""
    generators: int = Field(default=3, ge=2)
    """Generator replicas. At least two, so that one can fail."""
    reward_workers: int = Field(default=2, ge=1)
    """Processes that verify completions."""

    groups_per_rank: int = Field(default=24, ge=1)
    """Prompts in one rank's batch."""
    group_size: int = Field(default=8, ge=2)
    """Completions per prompt, compared with each other."""
    learning_rate: float = Field(default=4e-3, gt=0)
    """Peak; it warms up over the first steps and decays linearly to a fifth."""
    max_gradient_norm: float = Field(default=1.0, gt=0)
    """A gradient with a larger norm is scaled down to it."""
    clip: float = Field(default=0.2, gt=0)
    """GRPO's ratio is clipped to one plus or minus this."""
    kl_weight: float = Field(default=0.005, ge=0)
    """Weight of the penalty for leaving the reference policy."""

    min_digits: int = Field(default=3, ge=1)
    """Digits in the shortest prompt."""
    max_digits: int = Field(default=5, ge=1)
    """Digits in the longest prompt."""
    width: int = Field(default=64, ge=4)
    """Width of the transformer's residual stream."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; must divide the width."""
    layers: int = Field(default=1, ge=1)
    """Transformer blocks."""

    queue_limit: int = Field(default=8, ge=1)
    """Maximum number of requests at one generator replica."""
    batch_limit: int = Field(default=3, ge=1)
    """Maximum number of requests that one replica decodes in parallel."""
    cache_tokens: int = Field(default=512, ge=64)
    """Capacity of one replica's KV cache, in tokens."""
    cache_block_tokens: int = Field(default=4, ge=1)
    """Tokens per block of the KV cache."""

    buffer_groups: int = Field(default=120, ge=1)
    """Capacity of the replay buffer in groups; the oldest is evicted from a full buffer."""
    inventory_groups: int = Field(default=100, ge=1)
    """Prompts are admitted until so many groups are in the buffer or in progress."""
    max_staleness: int = Field(default=4, ge=1)
    """A group whose policy is more versions old than this is evicted."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse settings that would block the run, and faults without a process."""
        for fault in self.faults:
            fault.victims(self.processes)
        if self.min_digits > self.max_digits:
            raise ValueError("min_digits: must not be more than max_digits")
        if self.width % self.heads:
            raise ValueError("width: must be a multiple of heads")
        if self.cache_tokens < self.request_tokens:
            raise ValueError(f"cache_tokens: one request needs {self.request_tokens}")
        if not self.groups_per_rank * self.trainers <= self.inventory_groups <= self.buffer_groups:
            raise ValueError("inventory_groups: must hold all ranks' batches and fit in the buffer")
        return self

    @property
    def hyper_parameters(self) -> dict[str, object]:
        """Settings of the run, without names, directory and faults."""
        left_out = {"experiment", "trial", "work_dir", "faults", "steps"}
        # Under a name by which pages and terminals know how long it takes.
        return {"total_steps": self.steps, **self.model_dump(mode="json", exclude=left_out)}

    @property
    def shape(self) -> Shape:
        """Sizes of the policy for the task and the settings."""
        return Shape(
            vocabulary=task.VOCABULARY,
            positions=task.longest_prompt(self.max_digits) + self.max_completion,
            width=self.width,
            heads=self.heads,
            layers=self.layers,
        )

    @property
    def max_completion(self) -> int:
        """Length limit of a completion, in tokens."""
        return task.longest_completion(self.max_digits)

    @property
    def request_tokens(self) -> int:
        """Maximum KV cache of a request, in tokens of whole blocks."""
        row_blocks = -(-self.shape.positions // self.cache_block_tokens)
        return self.group_size * row_blocks * self.cache_block_tokens

    @property
    def kill_step(self) -> int | None:
        """Step after which generator 1 is killed."""
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
