"""Made-up runs without noise: what stands on which side of a threshold is known exactly."""

import math
from collections.abc import Callable, Mapping, Sequence

from otel_rl.diagnose.history.records import (
    Facts,
    RowFacts,
    SpanFacts,
    StepFacts,
    WorkerFacts,
)
from otel_rl.diagnose.history.run_history import RunHistory

AT = 40
"""The step at which things change."""

Series = Callable[[int], float]

_NS = 1_000_000_000


def changed(before: float, after: float, at: int = AT) -> Series:
    """One value before a step, another from there on."""
    return lambda step: after if step >= at else before


def made(
    steps: int = 80,
    *,
    step_s: Series = lambda step: 1.0,
    rows: Mapping[str, Series] | None = None,
    workers: Mapping[tuple[str, str], Series] | None = None,
    spans: Mapping[tuple[str, str, int], Series] | None = None,
    times: Mapping[str, int] | None = None,
    begun: Mapping[tuple[str, str, int], int] | None = None,
    waits: Sequence[str] = (),
    lags: Mapping[str, float | Series] | None = None,
    clocks: Mapping[str, float] | None = None,
    lost: Mapping[int, Sequence[str]] | None = None,
    after: Sequence[tuple[float, Facts]] = (),
) -> RunHistory:
    """A run as it is read from a journal.

    Args:
        steps: How many.
        step_s: Seconds that each takes.
        rows: By tracker key.
        workers: By tracker key and ``<role>/<index>``.
        spans: Seconds of one, by role, phase and index of the worker.
        times: How often ``<role>/<phase>`` happens in a step, if not once.
        begun: First step of such spans, if not the first of the run.
        waits: Phases in which nothing is done.
        lags: Seconds that exports of a worker take to arrive, always or in each step.
        clocks: Seconds that the clock of a worker is ahead, as spans prove.
        lost: Workers lost in a step.
        after: What became known so many seconds after the last step.
    """
    facts, time_ns = [], 1_000 * _NS
    for step in range(steps):
        duration_s = step_s(step)
        time_ns += int(duration_s * _NS)
        path = [("trainer", "rl.loop", "trainer/0", duration_s)]
        known = [(worker, ahead_s) for worker, ahead_s in (clocks or {}).items()]
        facts.append(
            Facts(
                time_ns,
                step,
                [RowFacts(step, time_ns, {key: of(step) for key, of in (rows or {}).items()})],
                [StepFacts(step, time_ns, path, [], known, f"{step:032x}")],
                _workers(workers or {}, step),
                [
                    SpanFacts(
                        step,
                        role,
                        phase,
                        f"{role}/{index}",
                        phase in waits,
                        (n := (times or {}).get(f"{role}/{phase}", 1)),
                        n * of(step),
                        of(step),
                        0,
                    )
                    for (role, phase, index), of in (spans or {}).items()
                    if step >= (begun or {}).get((role, phase, index), 0)
                ],
                [
                    (worker, late if isinstance(late, float) else late(step))
                    for worker, late in (lags or {}).items()
                ],
                list((lost or {}).get(step, ())),
            )
        )
    for later_s, one in after:
        facts.append(one._replace(time_ns=time_ns + int(later_s * _NS), step=steps - 1))
    return RunHistory(Facts.decode(one.encode()) for one in facts)


def _workers(
    workers: Mapping[tuple[str, str], Series], step: int
) -> Mapping[str, Sequence[WorkerFacts]]:
    found: dict[str, list[WorkerFacts]] = {}
    for (key, worker), of in workers.items():
        value = of(step)
        one = WorkerFacts(worker, None, 1, value, 0)
        if math.isnan(value):
            one = WorkerFacts(worker, step, 0, 0.0, 1)
        found.setdefault(key, []).append(one)
    return found
