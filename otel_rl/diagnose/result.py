"""Result of a diagnosis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = [
    "MOST_EVIDENCE",
    "MOST_NAMED",
    "MOST_WORKERS",
    "SLOW",
    "Cause",
    "Diagnosis",
    "Evidence",
    "Kind",
    "Verdict",
    "listed",
]

MOST_NAMED: Final = 4
"""Workers or other things that a sentence names."""

MOST_EVIDENCE: Final = 4
"""Series that are shown as the evidence of a cause."""

MOST_WORKERS: Final = 6
"""The same where each is of a worker that is affected."""


def listed(names: Sequence[str]) -> str:
    """Return the first few names and the number of the others, in words."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


class Kind(StrEnum):
    """Kind of fault."""

    SLOW_GENERATION = "slow_generation"
    SLOW_REWARD = "slow_reward"
    SLOW_TRAINING = "slow_training"
    SLOW_SYNC = "slow_sync"
    SLOW_PHASE = "slow_phase"
    SLOW_TOOL = "slow_tool"
    SLOW_DATA = "slow_data"
    STRAGGLER = "straggler"
    UNEVEN_WORK = "uneven_work"
    STAGE_IMBALANCE = "stage_imbalance"
    STARVATION = "starvation"
    EVICTION = "eviction"
    STALE_POLICY = "stale_policy"
    WRONG_WEIGHTS = "wrong_weights"
    STALENESS_GROWTH = "staleness_growth"
    CRASH = "crash"
    CRASH_LOOP = "crash_loop"
    KV_THRASH = "kv_thrash"
    GC_PAUSES = "gc_pauses"
    NETWORK_DELAY = "network_delay"
    SLOW_LINK = "slow_link"
    THROTTLED = "throttled"
    HOST_PRESSURE = "host_pressure"
    MEMORY_GROWTH = "memory_growth"
    STALL = "stall"
    CLOCK_SKEW = "clock_skew"
    NAN = "nan"
    REWARD_BUG = "reward_bug"
    REWARD_DROP = "reward_drop"
    ENTROPY_COLLAPSE = "entropy_collapse"
    KL_GROWTH = "kl_growth"
    LOGPROB_MISMATCH = "logprob_mismatch"
    REWARD_HACKING = "reward_hacking"
    POISONED_REWARDS = "poisoned_rewards"
    DEAD_GROUPS = "dead_groups"


SLOW: Final = frozenset(
    {
        Kind.SLOW_GENERATION,
        Kind.SLOW_REWARD,
        Kind.SLOW_TRAINING,
        Kind.SLOW_SYNC,
        Kind.SLOW_PHASE,
        Kind.SLOW_TOOL,
        Kind.SLOW_DATA,
        Kind.STRAGGLER,
    }
)
"""Kinds of work that takes longer."""

_OF_STRENGTH: Final = 0.3

# What a kind of evidence proves: a process that is gone is no matter of statistics, a value that is
# measured says more than a time that something else may take as well.
_WEIGHTS: Final[Mapping[Kind, float]] = {
    kind: weight
    for weight, kinds in (
        (0.99, {Kind.CRASH, Kind.NAN}),
        (0.95, {Kind.CRASH_LOOP, Kind.STALL, Kind.WRONG_WEIGHTS}),
        (0.9, {Kind.POISONED_REWARDS}),
        (0.85, {Kind.GC_PAUSES, Kind.KV_THRASH, Kind.REWARD_BUG, Kind.THROTTLED, Kind.UNEVEN_WORK}),
        (0.8, {Kind.HOST_PRESSURE, Kind.NETWORK_DELAY, Kind.SLOW_LINK, Kind.STALE_POLICY}),
        (0.75, {Kind.MEMORY_GROWTH}),
        (0.7, {Kind.CLOCK_SKEW, Kind.EVICTION, Kind.LOGPROB_MISMATCH, Kind.REWARD_HACKING}),
        (0.6, {Kind.DEAD_GROUPS, Kind.ENTROPY_COLLAPSE, Kind.KL_GROWTH, Kind.STARVATION}),
        (0.45, SLOW),
        (0.4, {Kind.REWARD_DROP, Kind.STAGE_IMBALANCE, Kind.STALENESS_GROWTH}),
    )
    for kind in kinds
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One finding that supports a cause.

    Attributes:
        what: In words.
        key: Tracker key that shows it, if there is one.
        worker: ``<role>/<index>``, if it is about one.
        before: Level before.
        after: Level after.
        unit: Of the levels.
        traces: Ids of traces that show it, in hexadecimal digits.
    """

    what: str
    key: str | None = None
    worker: str | None = None
    before: float | None = None
    after: float | None = None
    unit: str = ""
    traces: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Cause:
    """Fault of a run, and its evidence.

    Attributes:
        kind: The kind.
        words: One sentence.
        role: Affected role, if there is one.
        worker: ``<role>/<index>``, if one is at fault and not its peers.
        phase: Affected phase, if there is one.
        since: Approximate first step; None if it was so from the beginning.
        until: Approximate last step; None if it goes on.
        answered_by: For late calls, the roles that answer them.
        strength: Of the evidence: causes of about the same weight are ranked by it.
        evidence: The strongest first.
        host: Of the worker; None if it is unknown.
        pid: Of the worker's process; None if it is unknown.
        stack: Where the worker stands in its program, the innermost call first; none if unknown.
        tries: What to try, with the settings of the framework that runs.
    """

    kind: Kind
    words: str
    role: str | None = None
    worker: str | None = None
    phase: str | None = None
    since: int | None = None
    until: int | None = None
    answered_by: frozenset[str] = frozenset()
    strength: float = 0.0
    evidence: Sequence[Evidence] = ()
    host: str | None = None
    pid: int | None = None
    stack: Sequence[str] = ()
    tries: Sequence[str] = ()

    @property
    def score(self) -> float:
        """Return the weight of the evidence, from 0 to 1; causes are ranked by it."""
        return min(1.0, _WEIGHTS[self.kind] + _OF_STRENGTH * self.strength)


class Verdict(StrEnum):
    """Verdict of a diagnosis."""

    CAUSE = "cause"
    NO_CLEAR_CAUSE = "no clear cause"
    HEALTHY = "healthy"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Diagnosis of some steps of a run.

    Attributes:
        first: The first step of the question, which for a whole run is the first that it has.
        last: The last step of the question.
        verdict: The verdict.
        causes: Ranked; none if there is nothing to explain, or no explanation.
        symptoms: Changes in words, with or without a cause.
        bound: (role, phase, share) of the phase with most of the time of these steps; None if no
            step was explained.
        failures: Of workers, in words, the last ones; those of a cause left out.
        seen: What the verdict rests on, in words.
        doubts: Why a run without a finding may still not be healthy, in words.
        changes: Deliberate changes, which are no faults, in words.
        unknown: What no finding can be about, for want of measurements, in words.
        partial: Number of these steps whose critical path may lack spans.
    """

    first: int
    last: int
    verdict: Verdict
    causes: Sequence[Cause]
    symptoms: Sequence[str]
    bound: tuple[str, str, float] | None
    failures: Sequence[str] = ()
    seen: str = ""
    doubts: Sequence[str] = ()
    changes: Sequence[str] = ()
    unknown: str = ""
    partial: int = 0
