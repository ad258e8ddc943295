"""Commits rows of several runs in one transaction, and spares the others when one is refused."""

import logging
from collections.abc import Callable, Mapping, Sequence

from otel_rl.bridge.counters import Counter, Counters
from otel_rl.bridge.journal.commit import Commit
from otel_rl.bridge.journal.run_store import RunStore
from otel_rl.bridge.rows.loaded_run import LoadedRun
from otel_rl.bridge.rows.reports import data_warnings
from otel_rl.bridge.rows.reports.data_warnings import TOLD, DroppedPoints
from otel_rl.bridge.rows.rounds.elapsed import has_passed
from otel_rl.bridge.rows.rounds.finding_queue import FindingQueue
from otel_rl.bridge.rows.rounds.loaded_runs import LoadedRuns
from otel_rl.bridge.rows.rounds.run_troubles import RunTroubles
from otel_rl.errors import JournalError, LeaseLost, ShareUsedUp
from otel_rl.records import Description, ExperimentKey

__all__ = ["RowCommits"]

_log = logging.getLogger(__name__)

_data_log = logging.getLogger(data_warnings.__name__)
"""What rows say of their data: the report at the end of a command does not say it again."""

# Workers that fail again and again are worth one line a minute.
_LOG_FAILURES_NS = 60_000_000_000


class RowCommits:
    """Writes commits to the run store, and reports durable rows.

    Args:
        run_store: Destination of rows.
        runs: In memory.
        findings: Of those.
        troubles: Of those.
        counters: Of the bridge.
        notify: Called with each run that has new rows.
        dropped: Called with points over a run's series limit, by worker.
    """

    def __init__(
        self,
        run_store: RunStore,
        runs: LoadedRuns,
        findings: FindingQueue,
        troubles: RunTroubles,
        counters: Counters,
        *,
        notify: Callable[[ExperimentKey], None],
        dropped: Callable[[ExperimentKey, Mapping[str, DroppedPoints]], None],
    ) -> None:
        self._run_store = run_store
        self._runs = runs
        self._findings = findings
        self._troubles = troubles
        self._counters = counters
        self._notify = notify
        self._dropped = dropped

    def commit(self, commits: Sequence[Commit], now_ns: int) -> None:
        """Commit all of them, or each by itself if one is refused.

        Raises:
            JournalError: No room for the rows, or the journal is unreachable. The runs are rolled
                back.
        """
        if not commits:
            return
        try:
            self._run_store.commit(commits)
        except (LeaseLost, ShareUsedUp) as exc:
            self._refused(commits, now_ns, exc)
        except JournalError:
            self._runs.go_back(*(commit.key for commit in commits))
            # Only the answer may be lost, with the rows stored.
            for commit in commits:
                self._notify(commit.key)
            raise
        except Exception as exc:  # noqa: BLE001  # counted
            self._refused(commits, now_ns, exc)
        else:
            for commit in commits:
                self._committed(commit)

    def _refused(self, commits: Sequence[Commit], now_ns: int, exc: Exception) -> None:
        """Commit each by itself, to spare the others; a single one is the run's trouble."""
        if len(commits) > 1:
            self._commit_each(commits, now_ns)
            return
        key = commits[0].key
        if isinstance(exc, LeaseLost):
            self._troubles.leave(key)
        elif isinstance(exc, ShareUsedUp):
            self._troubles.wait_for_room(key, now_ns, exc)
        else:
            self._troubles.set_back(key, now_ns)

    def _commit_each(self, commits: Sequence[Commit], now_ns: int) -> None:
        for place, commit in enumerate(commits):
            try:
                self.commit([commit], now_ns)
            except JournalError:
                self._runs.go_back(*(later.key for later in commits[place + 1 :]))
                raise

    def _committed(self, commit: Commit) -> None:
        run = self._runs.loaded[commit.key]
        self._findings.stored(commit.key)
        dropped = run.aligner.logs.take_dropped()
        if dropped:
            self._dropped(commit.key, dropped)
        run.committed()
        step = run.aligner.standing.step
        if commit.history is not None and step is not None:
            run.progress = commit.history[0], step
        if commit.description is not None:
            _log_failures(commit.key, run, commit.description)
        for row in commit.rows:
            for label in TOLD.intersection(row.labels) if row.labels else ():
                _data_log.warning("%s: %s", commit.key, row.labels[label])
        self._counters.add(Counter.ROWS_CREATED, len(commit.rows))
        if commit.rows or commit.description is not None:
            self._notify(commit.key)


def _log_failures(key: ExperimentKey, run: LoadedRun, description: Description) -> None:
    """Log the end of a run by a failure, and failures of workers, in a crash loop the last."""
    logged, run.logged_failures = run.logged_failures, description.failures
    words = "" if description.crash is None else description.crash.as_crash
    if words:
        if words != run.told_crash:
            _log.warning("%s %s", key, words)
        run.told_crash = words
        return
    news = [one for one in description.failures if one not in logged]
    if news and has_passed(_LOG_FAILURES_NS, run.logged_failure_ns, news[-1].time_ns):
        run.logged_failure_ns = news[-1].time_ns
        _log.warning("%s: %s", key, news[-1])
