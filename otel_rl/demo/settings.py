"""What can be chosen about a run of the demo."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from otel_rl.demo import task, tokenizer
from otel_rl.demo.faults import Fault
from otel_rl.demo.model import Shape

__all__ = ["DemoSettings"]


class DemoSettings(BaseModel):
    """One run of the demo. The defaults learn the task in well under a minute on two cores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    experiment: str = Field(default="grpo-demo", min_length=1)
    """Groups everything the run reports; used where the environment does not name one already."""
    trial: str = Field(default="default", min_length=1)
    """One attempt at the experiment."""
    work_dir: Path | None = None
    """Logs and the first checkpoint go here; None makes a new temporary directory."""
    seed: int = 0
    """Of weights, prompts and sampling. The processes race, so two runs still differ."""

    steps: int = Field(default=100, ge=1)
    """Policy updates."""
    kill_share: float | None = Field(default=0.5, gt=0, lt=1)
    """Generator 1 is killed after this share of the steps; None lets it live."""
    faults: tuple[Fault, ...] = ()
    """What goes wrong besides. Telemetry does not say so."""

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
    """Peak; it warms up over the first steps and falls linearly to a fifth."""
    max_gradient_norm: float = Field(default=1.0, gt=0)
    """A longer gradient is scaled down to this length."""
    clip: float = Field(default=0.2, gt=0)
    """GRPO's ratio is clipped to one plus or minus this."""
    kl_weight: float = Field(default=0.005, ge=0)
    """Of the penalty for leaving the reference policy."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Of the bonus for an undecided policy."""

    min_digits: int = Field(default=3, ge=1)
    """Digits in the shortest prompt."""
    max_digits: int = Field(default=5, ge=1)
    """Digits in the longest prompt."""
    width: int = Field(default=64, ge=4)
    """The transformer's residual stream."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; must divide the width."""
    layers: int = Field(default=1, ge=1)
    """Transformer blocks."""

    queue_limit: int = Field(default=8, ge=1)
    """Requests that one generator replica may hold."""
    batch_limit: int = Field(default=3, ge=1)
    """Requests that one replica decodes side by side, if its KV cache has room."""
    cache_tokens: int = Field(default=512, ge=64)
    """Room in one replica's KV cache."""
    cache_block_tokens: int = Field(default=4, ge=1)
    """Tokens per block of the KV cache."""

    buffer_groups: int = Field(default=120, ge=1)
    """The replay buffer holds so many groups; the oldest leaves when one more comes."""
    inventory_groups: int = Field(default=100, ge=1)
    """Prompts are fed until so many groups are in the buffer or being made."""
    max_staleness: int = Field(default=4, ge=1)
    """A group made by a policy more versions old than this is evicted, not trained on."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse settings under which the run would wait for ever, and faults of nobody."""
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
        """What the run is about, without where and as what it runs."""
        return self.model_dump(mode="json", exclude={"experiment", "trial", "work_dir", "faults"})

    @property
    def shape(self) -> Shape:
        """Sizes of the policy that the task and the settings ask for."""
        return Shape(
            vocabulary=tokenizer.VOCABULARY,
            positions=task.longest_prompt(self.max_digits) + self.max_completion,
            width=self.width,
            heads=self.heads,
            layers=self.layers,
        )

    @property
    def max_completion(self) -> int:
        """Tokens after which a completion is cut off."""
        return task.longest_completion(self.max_digits)

    @property
    def request_tokens(self) -> int:
        """Room in the KV cache that the longest request may want, in whole blocks."""
        row_blocks = -(-self.shape.positions // self.cache_block_tokens)
        return self.group_size * row_blocks * self.cache_block_tokens

    @property
    def kill_step(self) -> int | None:
        """Generator 1 is killed when this step is done."""
        return None if self.kill_share is None else max(1, round(self.steps * self.kill_share))

    @property
    def members(self) -> list[tuple[str, int, int]]:
        """Every process of the run but the orchestrator, as (role, index, count)."""
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
        """Every process of the run, as (role, index)."""
        return [("orchestrator", 0), *((role, index) for role, index, _ in self.members)]
