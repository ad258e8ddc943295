"""Delivery to several trackers at once, each from its own position.

Every tracker has a ``DeliveryManager`` of its own: threads, writer processes, retries, and a place
in each run. One that is unreachable, hangs or refuses a run delays no other; it only keeps the rows
in the journal.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence

from otel_rl.bridge.delivery.delivery_interfaces import RunStatus
from otel_rl.bridge.delivery.manager import DeliveryManager
from otel_rl.records import ExperimentKey

__all__ = ["DeliveryGroup"]


class DeliveryGroup:
    """The deliveries of one bridge, as one. Any thread may call any method.

    Args:
        managers: By the name of the tracker, at least one.
    """

    def __init__(self, managers: Mapping[str, DeliveryManager]) -> None:
        self._managers = dict(managers)

    def notify(self, key: ExperimentKey, *, tracker: str = "") -> None:
        """Wake the deliveries of a run that may have new rows. Returns at once.

        Args:
            key: The run.
            tracker: The only one to wake; empty for all.
        """
        for name, manager in self._managers.items():
            if tracker in ("", name):
                manager.notify(key)

    def expect_nothing(self) -> None:
        """See ``DeliveryManager.expect_nothing``."""
        for manager in self._managers.values():
            manager.expect_nothing()

    def stop(self, *, timeout_s: float, exit_code: int) -> Sequence[RunStatus]:
        """See ``DeliveryManager.stop``; all trackers have the same time."""
        threads = [
            threading.Thread(
                target=manager.stop,
                kwargs={"timeout_s": timeout_s, "exit_code": exit_code},
                name=f"otel-rl-delivery-stop-{name}",
                daemon=True,
            )
            for name, manager in self._managers.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.status()

    def drop(self, keys: Iterable[ExperimentKey]) -> None:
        """See ``DeliveryManager.drop``."""
        listed = list(keys)
        for manager in self._managers.values():
            manager.drop(listed)

    def over(self) -> Sequence[ExperimentKey]:
        """Runs that are over at every tracker that has begun them; as they were begun."""
        found: dict[ExperimentKey, None] = {}
        going: set[ExperimentKey] = set()
        for manager in self._managers.values():
            over = manager.over()
            found.update(dict.fromkeys(over))
            going |= manager.known() - set(over)
        return [key for key in found if key not in going]

    def let_go(self, keys: Iterable[ExperimentKey]) -> None:
        """See ``DeliveryManager.let_go``."""
        listed = list(keys)
        for manager in self._managers.values():
            manager.let_go(listed)

    def busy(self) -> Sequence[ExperimentKey]:
        """Return the runs that a tracker is being written of, or that wait for that."""
        every = [key for manager in self._managers.values() for key in manager.busy()]
        return [*dict.fromkeys(every)]

    def status(self) -> Sequence[RunStatus]:
        """Return the status of every run with every tracker, sorted by key, then as configured."""
        every = [status for manager in self._managers.values() for status in manager.status()]
        return sorted(every, key=lambda status: status.key)

    def pending(self, key: ExperimentKey) -> int:
        """Return the rows that wait for the tracker that lacks most; 0 for an unknown run."""
        return max(manager.pending(key) for manager in self._managers.values())
