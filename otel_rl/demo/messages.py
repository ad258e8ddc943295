"""What the processes say to each other. Every message is plain frozen data.

    orchestrator --Request--> generator --Completions--> reward --Group--> replay_buffer
    trainers <--Groups-- replay_buffer        trainer 0 --Weights--> weight_store --> generators

Everything else is asked of, or told to, the orchestrator over the control connections.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from otel_rl.demo.faults import Kind
from otel_rl.demo.settings import DemoSettings

__all__ = [
    "Address",
    "Carrier",
    "Completions",
    "Done",
    "Fetch",
    "Finished",
    "GoOn",
    "Group",
    "Groups",
    "Hello",
    "Impair",
    "Level",
    "NewerThan",
    "Request",
    "Reserve",
    "Reserved",
    "Serving",
    "Start",
    "StepDone",
    "Stop",
    "Weights",
]

Address = tuple[str, int]
"""Loopback host and port."""

Carrier = dict[str, str]
"""W3C trace context, as the OpenTelemetry propagator writes it."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A process is up. First message on its control connection.

    Attributes:
        role: Its role.
        index: Its place among the processes of the role.
        address: Where it serves others, None if it serves nobody.
    """

    role: str
    index: int
    address: Address | None


@dataclass(frozen=True, slots=True)
class Start:
    """The answer to :class:`Hello`, once everybody is there.

    Attributes:
        settings: Of the run.
        checkpoint: File with the weights of policy version 0.
        addresses: "role/index" to where it serves.
        troubles: What is wrong with the process from the start.
    """

    settings: DemoSettings
    checkpoint: str
    addresses: Mapping[str, Address]
    troubles: Mapping[Kind, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Impair:
    """These go wrong with the process from now on, with their sizes."""

    troubles: Mapping[Kind, float]


@dataclass(frozen=True, slots=True)
class Stop:
    """Finish what you are doing and exit with 0."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A generator has loaded its model and takes requests."""


@dataclass(frozen=True, slots=True)
class Request:
    """Complete a prompt several times.

    Attributes:
        number: Unique in the run.
        prompt: Text.
        samples: Completions wanted.
        max_tokens: A completion is cut off after so many.
        temperature: Of the sampling.
        top_p: Of the sampling.
        context: The dispatching span.
    """

    number: int
    prompt: str
    samples: int
    max_tokens: int
    temperature: float
    top_p: float
    context: Carrier = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """A generator has handed the completions of a request on.

    Attributes:
        number: Of the request.
        tokens: Generated.
    """

    number: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Completions:
    """The samples of one request.

    Attributes:
        prompt: Text.
        prompt_tokens: Its token ids.
        tokens: Token ids of each completion, with the end mark if it came to an end.
        log_probabilities: One per token of ``tokens``, under the policy that sampled them.
        policy_version: Of that policy.
        origin: The sampling span.
        context: The span that hands them over.
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
    """Completions with their rewards: what the replay buffer holds.

    Attributes:
        completions: As sampled.
        rewards: One for each.
        stamp: Says where and when they were sampled, see ``otel_rl.carrier``.
    """

    completions: Completions
    rewards: tuple[float, ...]
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Set groups aside for a trainer; the answer comes when there are enough.

    Attributes:
        groups: Wanted.
        policy_version: The trainer's own, to tell what is too stale.
    """

    groups: int
    policy_version: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """The groups of :class:`Reserve` are set aside under ``ticket``."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Hand over what was reserved."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Groups:
    """The answer to :class:`Fetch`."""

    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """How full the replay buffer is, and how many groups it has evicted so far."""

    size: int
    evicted: int


@dataclass(frozen=True, slots=True)
class Weights:
    """A policy.

    Attributes:
        version: Grows by one with each step.
        flat: float32, as ``Parameters.to_bytes`` gives it.
        stamp: Says where it was handed out, see ``otel_rl.carrier``.
    """

    version: int
    flat: bytes
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class NewerThan:
    """Ask the weight store for :class:`Weights` newer than ``version``; None if there are none."""

    version: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """Trainer rank 0 has made an update.

    Attributes:
        step: From 1.
        reward: Mean over its batch.
        loss: Of its batch.
        staleness: Mean age of its batch, in policy versions.
        episode_tokens: Mean completion length of its batch.
    """

    step: int
    reward: float
    loss: float
    staleness: float
    episode_tokens: float


@dataclass(frozen=True, slots=True)
class GoOn:
    """The answer to :class:`StepDone`: make another step."""


@dataclass(frozen=True, slots=True)
class Done:
    """Acknowledges a message that has no other answer."""
