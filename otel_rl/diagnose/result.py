"""Result of a diagnosis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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


class Observed(StrEnum):
    """Kind of observation."""

    BOUND = "bound"
    STARVED = "waits_for_samples"
    SLOW_ANSWERS = "scoring_share"
    SYNC = "sync_share"
    CHECKPOINT = "checkpoint_share"
    DATA = "data_share"
    TAIL = "tail"
    QUEUED = "queued_requests"
    FREE_SLOTS = "free_slots"
    TRUNCATED = "truncated_share"
    NO_SIGNAL = "no_signal_share"
    OLD_SAMPLES = "sample_age"
    MFU = "mfu"
    UNPROVEN_REWARD = "unproven_reward"


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
        what: The finding in words.
        key: Tracker key that shows it, if there is one.
        worker: ``<role>/<index>``, if the finding is about one worker.
        before: Level before.
        after: Level after.
        traces: Ids of traces that show the finding, in hexadecimal digits.
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
    """A fault of a run, with its evidence.

    Attributes:
        words: The cause in one sentence.
        role: Affected role, if there is one.
        worker: ``<role>/<index>``, if one worker is at fault and its peers are not.
        phase: Affected phase, if there is one.
        since: Approximate first step; None if the fault was there from the beginning.
        until: Approximate last step; None if the fault goes on.
        answered_by: For late calls, the roles that answer them.
        strength: Strength of the evidence: causes of about the same weight are ranked by it.
        evidence: Findings that support the cause, the strongest first.
        host: Host of the worker; None if it is unknown.
        pid: Process id of the worker; None if it is unknown.
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


@dataclass(frozen=True, slots=True)
class Observation:
    """What a run shows by itself, without an earlier level.

    Attributes:
        words: The observation in one sentence.
        reference: What the amount is compared with, in words.
        doubt: What speaks against it, in words.
        is_beyond: Whether the amount is beyond the reference, in each third of the steps that were
            looked at; False without a reference.
        role: Affected role, if there is one.
        worker: ``<role>/<index>``, if the observation is about one worker.
        phase: Affected phase, if there is one.
        amount: A share from 0 to 1; an age in versions; waiting requests to running ones.
        seconds: Seconds of a usual step that the observation explains; 0 if unknown.
        step_s: Seconds of a usual step; 0 if unknown.
        against: Kind under which the catalogue has prescriptions.
        tries: What to try, with the settings of the framework that runs.
    """

    kind: Observed
    words: str
    reference: str
    doubt: str
    is_beyond: bool
    role: str | None
    worker: str | None
    phase: str | None
    amount: float
    seconds: float
    step_s: float
    against: Kind | Observed
    tries: Sequence[str] = ()

    @property
    def place(self) -> tuple[Observed, str | None, str | None]:
        return self.kind, self.role, self.phase


class Verdict(StrEnum):
    """Verdict of a diagnosis."""

    CAUSE = "cause"
    BEYOND = "beyond a reference"
    NO_CLEAR_CAUSE = "no clear cause"
    HEALTHY = "healthy"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Diagnosis of some steps of a run.

    Attributes:
        first: First step that the diagnosis is about; for a whole run, its first step.
        last: Last step that the diagnosis is about.
        causes: Ranked causes; none if there is nothing to explain, or no explanation.
        symptoms: Changes in words, with or without a cause.
        bound: (role, phase, share) of the phase with most of the time of these steps; None if no
            step was explained.
        failures: The last failures of workers, in words, without those of a cause.
        seen: What the verdict rests on, in words.
        doubts: Why a run without a finding may still not be healthy, in words.
        changes: Changes on purpose, which are not faults, in words.
        unknown: What findings cannot be about, for lack of measurements, in words.
        partial: Number of the steps whose critical path may lack spans.
        observations: Observations of a whole run, those beyond their reference first.
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
    observations: Sequence[Observation] = ()
