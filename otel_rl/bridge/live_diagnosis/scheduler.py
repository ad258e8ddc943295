"""Diagnoses each run periodically, and once it stands still; adds the findings to the run.

The work is done by another process that reads the journal: for a long run it takes seconds and much
memory, which the bridge's own process needs for requests.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from otel_rl.bridge.counters import Counter, Counters, Where
from otel_rl.bridge.journal.run_store import RunStore
from otel_rl.bridge.live_diagnosis.stall_watch import StallWatch
from otel_rl.bridge.rows.reports.finding_rows import Finding
from otel_rl.errors import JournalError, LeaseLost
from otel_rl.records import ExperimentKey, ExperimentStatus

__all__ = ["DiagnosisScheduler", "reading_environment"]

_log = logging.getLogger(__name__)

# Largest part of the time that diagnoses may take.
_SHARE: Final = 1 / 50

# By then the last rows have arrived, and the run is still open at the tracker.
_AFTER_END_S: Final = 5.0

_TIMEOUT_S: Final = 120.0

# With fewer rows a run is too short for any finding.
_FEWEST_ROWS: Final = 40


class DiagnosisScheduler:
    """Runs ``otel-rl diagnose`` for each active run, one at a time.

    Args:
        run_store: The runs.
        environment: Environment of the diagnosis process; locates the journal.
        arguments: Of its command line.
        every_s: Interval between two diagnoses of a run; 0 for never.
        experiments: Experiments that may have new findings.
        tell: Receives the findings.
        counters: Of the bridge.
        clock_ns: The bridge's clock.
        progress: Returns the time of the newest stored history of a run, and its newest step then.
        last_timeout_s: Bound on the time of all last diagnoses together.
    """

    def __init__(
        self,
        run_store: RunStore,
        *,
        environment: Mapping[str, str],
        arguments: Sequence[str],
        every_s: float,
        experiments: Callable[[], Sequence[ExperimentKey]],
        tell: Callable[[ExperimentKey, Finding], None],
        counters: Counters,
        clock_ns: Callable[[], int],
        progress: Callable[[ExperimentKey], tuple[int, int] | None] = lambda _: None,
        last_timeout_s: float = 20.0,
    ) -> None:
        self._run_store = run_store
        self._environment = environment
        self._arguments = arguments
        self._every_s = every_s
        self._experiments = experiments
        self._tell = tell
        self._counters = counters
        self._clock_ns = clock_ns
        self._last_timeout_s = last_timeout_s
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ended = False  # the diagnosis process is killed, which is no failure
        self._progress = progress
        self._looked: dict[ExperimentKey, tuple[float, int]] = {}
        self._stalls: dict[ExperimentKey, StallWatch] = {}
        self._pause_s = 0.0
        self._thread = threading.Thread(target=self._run, name="otel-rl-watch", daemon=True)

    def start(self) -> None:
        """Start, unless the interval is 0."""
        if self._every_s:
            self._thread.start()

    def stop(self) -> None:
        """Stop, and kill a running diagnosis."""
        self._stopping.set()
        self._is_ended = True
        process = self._process
        if process is not None:
            process.kill()
        if self._thread.is_alive():
            self._thread.join()
        self._is_ended = False

    def look_last(self) -> bool:
        """Diagnose ended runs once more if they have new rows; after ``stop``.

        Returns:
            Whether there were findings.
        """
        if not self._every_s:
            return False
        deadline_s = time.monotonic() + self._last_timeout_s
        found = False
        with self._failures_counted("at the end"):
            for key in dict.fromkeys(self._experiments()):
                left_s = deadline_s - time.monotonic()
                if self._has_ended(key) and self._has_news(key) and left_s > 0:
                    found |= self._look(key, left_s)
        return found

    def _run(self) -> None:
        while not self._stopping.wait(1.0):
            self.look()

    def look(self) -> None:
        """Diagnose the runs whose time it is, and those that have begun to stand still."""
        with self._failures_counted("of the runs"):
            experiments = dict.fromkeys(self._experiments())
            self._looked = {key: self._looked.get(key, _now(0)) for key in experiments}
            self._stalls = {key: self._stalls.get(key) or StallWatch() for key in experiments}
            for key in experiments:
                stands = self._begins_to_stand(key)
                if self._stopping.is_set():
                    return
                if stands:
                    self._look(key, _TIMEOUT_S)
                elif self._is_due(key):
                    self._look_if_news(key)

    def _begins_to_stand(self, key: ExperimentKey) -> bool:
        progress = self._progress(key)
        if progress is None or self._has_ended(key):
            return False
        return self._stalls[key].notices(*progress)

    def _look_if_news(self, key: ExperimentKey) -> None:
        if self._has_news(key):
            self._look(key, _TIMEOUT_S)
        else:
            self._looked[key] = _now(self._looked[key][1])

    @contextmanager
    def _failures_counted(self, what: str) -> Iterator[None]:
        """Catch and count failures. An unreachable journal is no failure."""
        try:
            yield
        except (JournalError, LeaseLost) as exc:
            _log.debug("No look %s: %s", what, exc)  # users of the journal report it
        except subprocess.TimeoutExpired as exc:  # on a busy machine, no defect
            self._counters.add(Counter.EXCEPTIONS, reason=Where.WATCH)
            _log.warning(
                "The diagnosis %s took longer than %.0f s; runs go on without.", what, exc.timeout
            )
        except Exception:  # noqa: BLE001  # runs continue without a diagnosis; counted
            if not self._is_ended:
                self._counters.add(Counter.EXCEPTIONS, reason=Where.WATCH)
                _log.warning("The diagnosis %s failed; runs go on without.", what, exc_info=True)

    def _is_due(self, key: ExperimentKey) -> bool:
        pause_s = max(self._pause_s, self._every_s)
        if self._has_ended(key):
            pause_s = _AFTER_END_S
        return time.monotonic() - self._looked[key][0] >= pause_s

    def _has_ended(self, key: ExperimentKey) -> bool:
        return self._run_store.description(key).status is not ExperimentStatus.RUNNING

    def _has_news(self, key: ExperimentKey) -> bool:
        rows = self._run_store.next_row(key)
        fewest = 1 if self._run_store.description(key).crash else _FEWEST_ROWS
        return rows >= fewest and rows > self._looked.get(key, (0.0, 0))[1]

    def _look(self, key: ExperimentKey, timeout_s: float) -> bool:
        found = False
        begun_s, rows = time.monotonic(), self._run_store.next_row(key)
        with self._failures_counted(f"of {key}"):
            report = self._ask(key, timeout_s)
            self._tell(key, _finding(report, self._clock_ns()))
            found = True
        took_s = time.monotonic() - begun_s
        self._pause_s = took_s / _SHARE
        self._looked[key] = _now(rows)
        return found

    def _ask(self, key: ExperimentKey, timeout_s: float) -> Mapping[str, Any]:
        command = [sys.executable, "-m", "otel_rl.cli", "diagnose", "--now", "--json"]
        # Separate arguments: either name may contain the slash that joins them in text.
        run = [f"--experiment={key.experiment}", f"--trial={key.trial}"]
        with subprocess.Popen(  # noqa: S603  # our own program
            [*command, *self._arguments, *run],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**reading_environment(os.environ), **self._environment},
            start_new_session=True,  # a Ctrl-C is for the bridge
        ) as process:
            self._process = process
            if self._is_ended:  # stopped just now
                process.kill()
            try:
                output, errors = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
            finally:
                self._process = None
        if process.returncode:
            raise RuntimeError(errors.decode(errors="replace").strip()[-1000:])
        report: Mapping[str, Any] = json.loads(output)
        if (report["experiment"], report["trial"]) != (key.experiment, key.trial):
            raise RuntimeError(f"the diagnosis of {key!r} names another run")
        return report


def reading_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of a process that only reads the journal: no API key, no token."""
    return {
        name: value
        for name, value in environ.items()
        if name != "WANDB_API_KEY" and not (name.startswith("OTEL_EXPORTER") and "HEADERS" in name)
    }


def _now(rows: int) -> tuple[float, int]:
    return time.monotonic(), rows


def _finding(report: Mapping[str, Any], time_ns: int) -> Finding:
    return Finding(
        report["steps"][1], time_ns, report["verdict"], report["words"], report["causes"]
    )
