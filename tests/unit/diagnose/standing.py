"""Made-up runs whose short steps come many in one snapshot, and that then stand still."""

from collections.abc import Iterator
from itertools import count

from otel_rl.diagnose.history.records import Facts, RowFacts, WorkerFacts
from otel_rl.records import ExperimentStatus

_NS = 1_000_000_000
SNAPSHOT_S = 1.0

AGE = "trainer/worker/phase/age/"


def snapshots(
    ends_s: list[float], *, until_s: float, every_s: float = SNAPSHOT_S
) -> Iterator[Facts]:
    """Snapshots of a run whose steps end at these times; the step in progress is the one after."""
    told = 0
    for number in count(1):
        now_s = number * every_s
        if now_s > until_s:
            return
        ended = sum(end_s <= now_s for end_s in ends_s)
        rows = [
            RowFacts(step, int((100 + ends_s[step]) * _NS), {"trainer/loss": 1.0})
            for step in range(told, ended)
        ]
        told = ended
        # A worker that lives reports, though it makes no step.
        alive = {"trainer/gc/time": [WorkerFacts("trainer/0", None, 1, 0.0, 0)]}
        step = min(ended, len(ends_s) - 1)
        status = ExperimentStatus.RUNNING
        yield Facts(int((100 + now_s) * _NS), step, rows, workers=alive, status=status)


def hung(
    step_s: float, steps: int, for_s: float, *, phase: str | None = "train", every_s: float = 1.0
) -> list[Facts]:
    """A run of equal steps that then makes none for a while."""
    over_s = steps * step_s
    ends_s = [step_s * (step + 1) for step in range(steps)]
    facts = list(snapshots(ends_s, until_s=over_s + for_s, every_s=every_s))
    if phase is not None:
        last = facts[-1]
        ages = {AGE + phase: [WorkerFacts("trainer/0", None, 1, for_s, 0)]}
        facts[-1] = last._replace(workers={**last.workers, **ages})
    return facts
