"""What a diagnosis says."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Cause", "Evidence", "Kind", "Report", "Verdict"]


class Kind(StrEnum):
    """What may be wrong with a run."""

    SLOW_GENERATION = "slow_generation"
    SLOW_REWARD = "slow_reward"
    SLOW_TRAINING = "slow_training"
    SLOW_SYNC = "slow_sync"
    SLOW_PHASE = "slow_phase"
    STRAGGLER = "straggler"
    STARVATION = "starvation"
    EVICTION = "eviction"
    STALE_POLICY = "stale_policy"
    STALENESS_GROWTH = "staleness_growth"
    CRASH_LOOP = "crash_loop"
    KV_THRASH = "kv_thrash"
    GC_PAUSES = "gc_pauses"
    NETWORK_DELAY = "network_delay"
    THROTTLED = "throttled"
    STALL = "stall"
    CLOCK_SKEW = "clock_skew"
    NAN = "nan"
    REWARD_BUG = "reward_bug"
    REWARD_DROP = "reward_drop"
    ENTROPY_COLLAPSE = "entropy_collapse"
    KL_GROWTH = "kl_growth"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One finding that speaks for a cause.

    Attributes:
        what: In words.
        key: Tracker key it can be seen under, if there is one.
        worker: ``<role>/<index>``, if it is about one.
        before: The level it had.
        after: The level it has.
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
    """Something that is wrong, and what speaks for it.

    Attributes:
        kind: What.
        score: How much speaks for it, from 0 to 1; causes are ranked by it.
        words: One sentence.
        role: Whose it is, if it is of one role.
        worker: ``<role>/<index>``, if one is at fault and not its peers.
        phase: In which phase it shows, if in one.
        since: The step it began at, about; None if it was so from the beginning.
        until: The step it has passed at, about; None if it goes on.
        answered_by: Of calls that are late, the roles that answer them.
        evidence: The strongest first.
    """

    kind: Kind
    score: float
    words: str
    role: str | None = None
    worker: str | None = None
    phase: str | None = None
    since: int | None = None
    until: int | None = None
    answered_by: frozenset[str] = frozenset()
    evidence: Sequence[Evidence] = ()


class Verdict(StrEnum):
    """What a diagnosis comes to."""

    CAUSE = "cause"
    NO_CLEAR_CAUSE = "no clear cause"
    HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to a question about some steps of a run.

    Attributes:
        first: The first step asked about.
        last: The last step asked about.
        verdict: What it comes to.
        causes: Ranked; none if there is nothing to explain, or no explanation.
        symptoms: What is not as it was, in words, whether or not there is a cause.
        bound: (role, phase, share) of what took most of the time of these steps; None if no step
            was explained.
    """

    first: int
    last: int
    verdict: Verdict
    causes: Sequence[Cause]
    symptoms: Sequence[str]
    bound: tuple[str, str, float] | None
