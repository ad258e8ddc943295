"""Withholds slowdowns of a live run that may be over in a moment.

Rules judge noise from step to step. A busy host is slow for a second or so, which is one value in a
run with long steps, and five values that agree in a run with short steps.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause, Kind
from otel_rl.records import ExperimentStatus

_LASTING_S: Final = 6.0

# One event is proof of these, or many steps of learning, or a bound in seconds of their own.
_AT_ONCE: Final = frozenset(
    {
        Kind.CLOCK_SKEW,
        Kind.CRASH,
        Kind.CRASH_LOOP,
        Kind.DEAD_GROUPS,
        Kind.ENTROPY_COLLAPSE,
        Kind.KL_GROWTH,
        Kind.LOGPROB_MISMATCH,
        Kind.MEMORY_GROWTH,
        Kind.NAN,
        Kind.POISONED_REWARDS,
        Kind.REWARD_BUG,
        Kind.REWARD_DROP,
        Kind.REWARD_HACKING,
        Kind.STALL,
        Kind.WRONG_WEIGHTS,
    }
)


def lasting(history: RunHistory, causes: Iterable[Cause], silent_s: float) -> Iterator[Cause]:
    """Yield the causes; for a run that goes on, without slowdowns of the last seconds.

    Args:
        silent_s: Seconds since the last record: more evidence may never come.
    """
    goes_on = history.status == ExperimentStatus.RUNNING and silent_s < _LASTING_S
    begun = sorted(history.begun_s.items())
    for cause in causes:
        if not goes_on or cause.kind in _AT_ONCE or cause.since is None:
            yield cause
            continue
        # The news of a first step may have come with those of later ones.
        place = bisect_left(begun, (cause.since,))
        begun_s = begun[place][1] if place < len(begun) else history.ends_s
        if history.ends_s - begun_s >= _LASTING_S:
            yield cause
