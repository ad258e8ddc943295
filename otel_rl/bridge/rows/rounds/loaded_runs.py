"""Runs of this bridge that are in memory, and those that are to be loaded."""

from collections.abc import Callable, Sequence

from otel_rl.bridge.journal.leases.ownership import Ownership
from otel_rl.bridge.rows.loaded_run import LoadedRun
from otel_rl.errors import LeaseLost
from otel_rl.records import ExperimentKey

__all__ = ["LoadedRuns"]


class LoadedRuns:
    """Loads and unloads runs.

    Args:
        owners: Tells which runs this bridge owns.
        load: Returns a run as the run store has it, by key, epoch and time.

    Attributes:
        loaded: The runs in memory.
        unloaded: Runs to be loaded in the next round although no batch waits.
    """

    def __init__(
        self, owners: Ownership, load: Callable[[ExperimentKey, int, int], LoadedRun]
    ) -> None:
        self._owners = owners
        self._load = load
        self.loaded: dict[ExperimentKey, LoadedRun] = {}
        self.unloaded: dict[ExperimentKey, None] = {}

    def begin(self, key: ExperimentKey) -> None:
        """Load the run in the next round: a silent one has open steps, too.

        Any thread may call it.
        """
        self.unloaded[key] = None

    def load(self, key: ExperimentKey, now_ns: int) -> LoadedRun:
        """Return a run, loaded if it was not.

        Raises:
            LeaseLost: It belongs to another bridge.
        """
        run = self.loaded.get(key)
        if run is None:
            epoch = self._owners.epoch(key)  # before its progress is read
            if epoch is None:
                raise LeaseLost(f"{key} belongs to another bridge.")
            run = self.loaded[key] = self._load(key, epoch, now_ns)
        self.unloaded.pop(key, None)
        return run

    def unload(self, key: ExperimentKey) -> None:
        """Forget a run's state in memory."""
        run = self.loaded.pop(key, None)
        if run is not None:
            run.unload()

    def go_back(self, *keys: ExperimentKey) -> None:
        """Forget uncommitted state of these runs, and load them again in the next round."""
        for key in keys:
            self.unloaded[key] = None
            self.unload(key)

    def lost(self) -> Sequence[ExperimentKey]:
        """Return the runs that are no longer owned, or owned again in another epoch."""
        epoch = self._owners.epoch
        found = [key for key, run in [*self.loaded.items()] if epoch(key) != run.epoch]
        return [*found, *(key for key in [*self.unloaded] if epoch(key) is None)]

    def leave(self, key: ExperimentKey) -> None:
        """Forget a run that another bridge owns; if it is owned here again, load it anew."""
        self.unload(key)
        self.unloaded.pop(key, None)
        if self._owners.epoch(key) is not None:
            self.unloaded[key] = None
