"""Findings of a diagnosis, on their way to the thread that makes rows and until a commit."""

from otel_rl.bridge.rows.loaded_run import LoadedRun
from otel_rl.bridge.rows.reports.finding_rows import Finding
from otel_rl.bridge.rows.rounds.loaded_runs import LoadedRuns
from otel_rl.records import ExperimentKey

__all__ = ["FindingQueue"]


class FindingQueue:
    """The newest finding of each run."""

    def __init__(self, runs: LoadedRuns) -> None:
        self._runs = runs
        # Of any thread, and those of the thread that makes rows that are in no commit yet.
        self._findings: dict[ExperimentKey, Finding] = {}
        self._unstored: dict[ExperimentKey, Finding] = {}

    def add(self, key: ExperimentKey, finding: Finding) -> None:
        """Add a finding to the run, in the next round or at the end.

        Any thread may call it.
        """
        self._findings[key] = finding
        self._runs.begin(key)

    def pass_on(self, key: ExperimentKey, run: LoadedRun) -> None:
        """Add the finding to a run, until it is committed."""
        if key in self._findings:
            self._unstored[key] = self._findings.pop(key)
        if key in self._unstored:  # no news, unless the last attempt was rolled back
            run.aligner.findings.add(self._unstored[key])

    def stored(self, key: ExperimentKey) -> None:
        """Forget the finding that was passed on."""
        self._unstored.pop(key, None)

    def leave(self, key: ExperimentKey) -> None:
        """Forget the findings of a run that another bridge owns."""
        self._findings.pop(key, None)
        self._unstored.pop(key, None)
