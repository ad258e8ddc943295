"""Messages between the processes. Every message is plain frozen data.

    orchestrator --Request--> generator --Completions--> reward --Group--> replay_buffer
    trainers <--Groups-- replay_buffer        trainer 0 --Weights--> weight_store --> generators

All other messages go to or from the orchestrator over the control connections.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from otel_rl.demo.faults import Kind
from otel_rl.demo.settings import DemoSettings

Address = str
"""Name of a socket."""

Carrier = dict[str, str]
"""W3C trace context, as written by the OpenTelemetry propagator."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Report that a process is up, and where its service is. First message to the orchestrator."""

    address: Address | None


@dataclass(frozen=True, slots=True)
class Start:
    """Answer to :class:`Hello`, once all processes have joined.

    Attributes:
        checkpoint: File with the weights of policy version 0.
        addresses: "role/index" to the address of its service.
        faults: Initial faults of the process, with their sizes.
    """

    settings: DemoSettings
    checkpoint: str
    addresses: Mapping[str, Address]
    faults: Mapping[Kind, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Impair:
    """Start faults of the process, with their sizes."""

    faults: Mapping[Kind, float]


@dataclass(frozen=True, slots=True)
class Stop:
    """Finish the current work and exit with 0."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Report that a generator has loaded its model and accepts requests."""


@dataclass(frozen=True, slots=True)
class Request:
    """Complete a prompt several times, in the context of the span that dispatches it."""

    number: int
    prompt: str
    samples: int
    max_tokens: int
    temperature: float
    top_p: float
    context: Carrier = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """Report that a generator has delivered the completions of a request, of so many tokens."""

    number: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Completions:
    """Samples of one request.

    Attributes:
        tokens: Token ids of each completion, with the end mark if complete.
        log_probabilities: One per token of ``tokens``, under the policy that sampled them.
        origin: The sampling span.
        context: The delivering span.
    """

    prompt: str
    prompt_tokens: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    log_probabilities: tuple[tuple[float, ...], ...]
    policy_version: int
    origin: Carrier = field(default_factory=dict)
    context: Carrier = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """Completions with their rewards: the unit of the replay buffer.

    Attributes:
        stamps: One for each: time and span of the sampling, reward and length, see
            ``otel_rl.lineage``.
    """

    completions: Completions
    rewards: tuple[float, ...]
    stamps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve groups for a trainer of this policy; the answer comes when there are enough."""

    groups: int
    policy_version: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """Answer to :class:`Reserve`: the groups are reserved under ``ticket``."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Request the reserved groups."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Groups:
    """Answer to :class:`Fetch`."""

    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """Fill of the replay buffer, and its number of evicted groups so far."""

    size: int
    evicted: int


@dataclass(frozen=True, slots=True)
class Weights:
    """Policy weights.

    Attributes:
        version: Grows by one with each step.
        flat: float32, from ``Parameters.to_bytes``.
        stamp: Time and span of the push, see ``otel_rl.lineage``.
    """

    version: int
    flat: bytes
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class NewerThan:
    """Request :class:`Weights` newer than ``version``; the answer is None if there are none."""

    version: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """Report an update of trainer rank 0.

    Attributes:
        step: From 1.
        reward: Mean over the batches of all ranks.
        staleness: Mean age of the batches of all ranks, in policy versions.
    """

    step: int
    reward: float
    staleness: float


@dataclass(frozen=True, slots=True)
class GoOn:
    """Answer to :class:`StepDone`: make another step."""
