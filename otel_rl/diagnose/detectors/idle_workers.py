"""Detector of workers that report, but do no more of the work that their peers go on with.

A plain SDK reports work only at its end: a worker without work hangs, or is not used any more on
purpose. The run misses the worker if steps take longer since then.
"""

from collections.abc import Iterator

from otel_rl.diagnose.detectors.hung_worker import Hang, hung_workers_of
from otel_rl.diagnose.detectors.workload import Workload
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause
from otel_rl.diagnose.stats.levels import settled, soon
from otel_rl.diagnose.step_times import between_steps, step_time
from otel_rl.diagnose.thresholds import FELT, IN_ORDER_OF_STEPS, SLACK


def idle_workers(history: RunHistory) -> Iterator[Cause]:
    """Find the workers without work whose share a run misses."""
    yield from (one.as_cause for one in _idle(history) if _is_missed(history, one))


def unused_workers(history: RunHistory) -> Iterator[str]:
    """Yield in words the workers without work that the run does not miss."""
    for one in _idle(history):
        if not _is_missed(history, one):
            yield f"{one}: it hangs, or is not used any more"


def _idle(history: RunHistory) -> Iterator[Hang]:
    return (one for one in hung_workers_of(history) if not one.is_told)


def _is_missed(history: RunHistory, idle: Hang) -> bool:
    steps = step_time(history)
    took = steps if steps.values else between_steps(history)
    found = soon(settled(Workload(history).eased_steps(took)))
    return (
        found is not None
        and found.is_rise(ratio=FELT, order=IN_ORDER_OF_STEPS)
        and abs(idle.since - found.step) <= SLACK
    )
