"""Replacements of failed workers within a role, by index and time of arrival."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence

from otel_rl.bridge.rows.series.streams import WorkerStanding, WorkerState
from otel_rl.records import Worker

__all__ = ["Replacements", "replacements"]


def replacements(workers: Mapping[Worker, WorkerState]) -> Mapping[str, "Replacements"]:
    """Return the possible replacements of each role at a run's end: workers with an index."""
    of_role: dict[str, list[tuple[Worker, WorkerState]]] = defaultdict(list)
    for worker, state in workers.items():
        if worker.index is not None:
            of_role[worker.role].append((worker, state))
    found = {role: Replacements(there) for role, there in of_role.items()}
    return defaultdict(lambda: Replacements(()), found)


class Replacements:
    """Possible replacements within a role, each used once.

    Args:
        workers: Of the role, those that live or have left.
    """

    def __init__(self, workers: Sequence[tuple[Worker, WorkerState]]) -> None:
        self._by_index: dict[int | None, list[WorkerState]] = {}
        for worker, state in sorted(workers, key=lambda one: one[1].first_ns):
            self._by_index.setdefault(worker.index, []).append(state)

    def successor(self, worker: Worker, state: WorkerState) -> WorkerState | None:
        """Return the replacement of a worker since its last export."""
        states = self._by_index.get(worker.index, [])
        place = bisect_right(states, state.received_ns, key=lambda one: one.first_ns)
        while place < len(states):
            other_state = states[place]
            has_failed = other_state.standing is WorkerStanding.FAILED
            if not has_failed and not other_state.is_replacement:
                return other_state
            del states[place]  # not again in this check
        return None
