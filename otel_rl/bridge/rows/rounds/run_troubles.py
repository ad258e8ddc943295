"""Runs with which something went wrong: rolled back, paused, read batch by batch, left.

One run's trouble delays no other. Each is counted; what is retried is logged once a minute.
"""

import logging
from dataclasses import dataclass

from otel_rl.bridge.counters import CommitRefusal, Counter, Counters, SampleDrop, Where
from otel_rl.bridge.journal.spool import Spool, Spooled
from otel_rl.bridge.rows.rounds.elapsed import has_passed
from otel_rl.bridge.rows.rounds.finding_queue import FindingQueue
from otel_rl.bridge.rows.rounds.loaded_runs import LoadedRuns
from otel_rl.errors import ShareUsedUp
from otel_rl.records import ExperimentKey

__all__ = ["RunTroubles"]

_log = logging.getLogger(__name__)

_NS_PER_S = 1_000_000_000

# After a failure that is not a batch's fault: a bug, a damaged page of the journal, a used-up
# share.
_RETRY_NS = 1 * _NS_PER_S

# Failures are retried every second; they are worth one line a minute.
_LOG_EVERY_NS = 60 * _NS_PER_S


@dataclass(slots=True)
class _Trouble:
    """Failure state of a run.

    Attributes:
        failed_ns: Time of the failure; a pause follows.
        one_by_one: Its batches are read one at a time, to find the faulty one.
    """

    failed_ns: int = 0
    one_by_one: bool = False


class RunTroubles:
    """Decides how a run continues after a failure.

    Args:
        runs: In memory.
        findings: Of those.
        spool: Their batches.
        counters: Of the bridge.
    """

    def __init__(
        self, runs: LoadedRuns, findings: FindingQueue, spool: Spool, counters: Counters
    ) -> None:
        self._runs = runs
        self._findings = findings
        self._spool = spool
        self._counters = counters
        self._troubles: dict[ExperimentKey, _Trouble] = {}
        self._logged_ns = 0

    def is_paused(self, key: ExperimentKey, now_ns: int) -> bool:
        """Return whether a run failed a moment ago."""
        trouble = self._troubles.get(key)
        return trouble is not None and not has_passed(_RETRY_NS, trouble.failed_ns, now_ns)

    def is_one_by_one(self, key: ExperimentKey) -> bool:
        """Return whether the run's batches are read one at a time, to find the faulty one."""
        trouble = self._troubles.get(key)
        return trouble is not None and trouble.one_by_one

    def end_pauses(self) -> None:
        """Try every run again in the next round."""
        for trouble in self._troubles.values():
            trouble.failed_ns = 0

    def is_over(self, key: ExperimentKey) -> None:
        """Forget a run's troubles: all its batches were taken."""
        self._troubles.pop(key, None)

    def look_for_faulty(self, key: ExperimentKey) -> None:
        """Roll a run back to its last commit, and read its batches one at a time."""
        self._runs.go_back(key)
        self._troubles[key] = _Trouble(one_by_one=True)

    def set_aside(self, key: ExperimentKey, one: Spooled, reason: SampleDrop) -> None:
        """Set an unreadable batch aside."""
        self._spool.set_aside(key, one.offset)
        self._troubles.pop(key, None)
        self._counters.add(Counter.SAMPLES_DROPPED, reason=reason, run=key)
        if reason is SampleDrop.DAMAGED:
            _log.error(
                "Batch %d of %s is damaged in the journal and was set aside. Check the disk.",
                one.offset,
                key,
            )
        else:
            _log.exception(
                "Batch %d of %s cannot be made into rows and was set aside. Please report this.",
                one.offset,
                key,
            )

    def set_back(self, key: ExperimentKey, now_ns: int) -> None:
        """Roll a run back to its last commit, and pause it. To be called in an ``except``."""
        self._pause(key, now_ns)
        self._counters.add(Counter.EXCEPTIONS, reason=Where.DRAIN)
        if self._may_log(now_ns):
            _log.exception("Making rows of %s failed; its batches are kept, retrying.", key)

    def wait_for_room(self, key: ExperimentKey, now_ns: int, exc: ShareUsedUp) -> None:
        """Pause a run whose tenant has no room for its rows."""
        self._pause(key, now_ns)
        self._counters.add(Counter.COMMITS_REFUSED, reason=CommitRefusal.SHARE_USED_UP, run=key)
        if self._may_log(now_ns):
            _log.warning("Rows of %s cannot be stored, its batches wait: %s", key, exc)

    def leave(self, *keys: ExperimentKey) -> None:
        """Forget runs that another bridge owns; one that is owned here again is loaded anew."""
        for key in keys:
            self._runs.leave(key)
            self._troubles.pop(key, None)
            self._findings.leave(key)

    def _pause(self, key: ExperimentKey, now_ns: int) -> None:
        self._runs.go_back(key)
        self._troubles.setdefault(key, _Trouble()).failed_ns = now_ns

    def _may_log(self, now_ns: int) -> bool:
        if not has_passed(_LOG_EVERY_NS, self._logged_ns, now_ns):
            return False
        self._logged_ns = now_ns
        return True
