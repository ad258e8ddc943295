"""Order in which runs have their turns."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from otel_rl.records import ExperimentKey

__all__ = ["Rotation"]


class Rotation:
    """Alternates tenants; of one tenant, the run with the oldest turn is next.

    A new run follows those that are there, so that many new ones do not delay old ones. One thread
    calls the methods.

    Args:
        tenant: Returns the name of a run's tenant.
    """

    def __init__(self, tenant: Callable[[ExperimentKey], str]) -> None:
        self._tenant = tenant
        # Number of the last turn of each run, and of each tenant.
        self._runs: dict[ExperimentKey, int] = {}
        self._tenants: dict[str, int] = {}
        self._turns = 0
        # Runs without a turn since the last complete rotation.
        self._left: set[ExperimentKey] = set()

    @property
    def is_complete(self) -> bool:
        """Return whether all runs have had a turn since this was last True."""
        return not self._left

    def turns(self, keys: Iterable[ExperimentKey]) -> Iterator[ExperimentKey]:
        """Yield each of ``keys`` once. Keys that are not consumed come first the next time."""
        keys = dict.fromkeys(keys)
        self._runs = {key: self._runs.get(key, self._turns) for key in keys}
        self._left = self._left.intersection(keys) or set(keys)
        queues: dict[str, deque[ExperimentKey]] = {}
        for key in sorted(keys, key=self._runs.__getitem__):
            queues.setdefault(self._tenant(key), deque()).append(key)
        self._tenants = {tenant: self._tenants.get(tenant, 0) for tenant in queues}
        waiting = deque(sorted(queues, key=self._tenants.__getitem__))
        while waiting:
            tenant = waiting.popleft()
            key = queues[tenant].popleft()
            self._turns += 1
            self._runs[key] = self._tenants[tenant] = self._turns
            self._left.discard(key)
            yield key
            if queues[tenant]:
                waiting.append(tenant)
