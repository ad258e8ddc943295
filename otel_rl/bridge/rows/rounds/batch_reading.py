"""Reads batches of a run from the spool, and takes the sound ones into its open rows."""

from otel_rl.bridge.counters import SampleDrop
from otel_rl.bridge.journal.run_store import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.rows.loaded_run import LoadedRun
from otel_rl.bridge.rows.rounds.loaded_runs import LoadedRuns
from otel_rl.bridge.rows.rounds.run_troubles import RunTroubles
from otel_rl.bridge.rows.turns.turn_length import Turn
from otel_rl.records import ExperimentKey

__all__ = ["BatchReading"]

# Large batches that are in progress at a time, see ``LoadedRun.next_is_large``.
_MOST_LARGE = 2


class BatchReading:
    """Reads and takes batches; one that fails is found and set aside.

    Args:
        spool: Source of batches.
        run_store: Destination of rows.
        runs: In memory.
        troubles: Of those.
        part: Approximate points of a part of a batch.
    """

    def __init__(
        self,
        spool: Spool,
        run_store: RunStore,
        runs: LoadedRuns,
        troubles: RunTroubles,
        part: int,
    ) -> None:
        self._spool = spool
        self._run_store = run_store
        self._runs = runs
        self._troubles = troubles
        self._part = part

    def read(self, key: ExperimentKey, run: LoadedRun, max_bytes: int) -> None:
        """Read the next batches, valid ones or one damaged one."""
        if run.cut is not None:
            begun = self._spool.one(key, run.cut[0])
            if begun is not None:
                run.unread.append(begun)
                run.reads_on = True
                return
            run.cut = None
            run.aligner.state.leave_batch()
        if not self._run_store.has_room(key):
            return
        if self._troubles.is_one_by_one(key):
            max_bytes = 1  # a read returns at least one batch
        spooled = self._spool.read(key, max_bytes=max_bytes, but=run.taken)
        run.read(spooled, max_bytes)

    def take(self, key: ExperimentKey, run: LoadedRun, turn: Turn, now_ns: int) -> bool:
        """Take read batches until the turn is over. Returns whether rows may result."""
        if run.unread[0].is_damaged:
            self._troubles.set_aside(key, run.unread.popleft(), SampleDrop.DAMAGED)
            return False
        if not self._may_begin(run):
            return False
        try:
            run.take(turn, self._part, now_ns)
        except Exception:  # noqa: BLE001  # counted and logged once the bad batch is found
            bad = run.unread[0]
            if len(run.unread) + len(run.taken) == 1:
                self._runs.go_back(key)
                self._troubles.set_aside(key, bad, SampleDrop.UNDECODABLE)
            else:
                self._troubles.look_for_faulty(key)
            return False
        return True

    def _may_begin(self, run: LoadedRun) -> bool:
        """Return whether there is memory for the next batch: large ones are bounded in number."""
        if run.parts is not None or not run.next_is_large:
            return True
        others = (other for other in self._runs.loaded.values() if other is not run)
        large = sum(other.parts is not None and other.next_is_large for other in others)
        return large < _MOST_LARGE
