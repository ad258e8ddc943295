"""Looks at the runs from time to time, and tells each what is wrong with it.

Another process does the work, with what is in the journal: it takes seconds and much memory for a
long run, which may not come from the one that takes requests.
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

from otel_rl.bridge.align.finding import Finding
from otel_rl.bridge.counters import Counter, Counters, Where
from otel_rl.bridge.ledger import Ledger
from otel_rl.errors import JournalError, LeaseLost
from otel_rl.records import ExperimentKey, ExperimentStatus

__all__ = ["Watch"]

_log = logging.getLogger(__name__)

# A look takes at most so much of the time between two.
_SHARE: Final = 1 / 50

# Its last rows are there by then, and the run is still open at the tracker.
_AFTER_END_S: Final = 5.0

_TIMEOUT_S: Final = 120.0

# A run of fewer rows has not come so far that anything could have changed.
_FEWEST_ROWS: Final = 40


class Watch:
    """Asks ``otel-rl diagnose`` about each run that goes on, one at a time.

    Args:
        ledger: Has the runs.
        environment: Of the process that is asked: says where the journal is.
        arguments: Of its command line.
        every_s: Between two looks at a run; 0 for never.
        experiments: Those that something may have come of.
        tell: Takes what was found.
        counters: Of the bridge.
        clock_ns: The bridge's.
        last_timeout_s: All last looks together may take so long.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        environment: Mapping[str, str],
        arguments: Sequence[str],
        every_s: float,
        experiments: Callable[[], Sequence[ExperimentKey]],
        tell: Callable[[ExperimentKey, Finding], None],
        counters: Counters,
        clock_ns: Callable[[], int],
        last_timeout_s: float = 20.0,
    ) -> None:
        self._ledger = ledger
        self._environment = environment
        self._arguments = arguments
        self._every_s = every_s
        self._experiments = experiments
        self._tell = tell
        self._counters = counters
        self._clock_ns = clock_ns
        self._last_timeout_s = last_timeout_s
        self._stopping = threading.Event()
        self._asked: subprocess.Popen[bytes] | None = None
        self._is_ended = False  # whoever is asked is killed, and that is no failure
        self._looked: dict[ExperimentKey, tuple[float, int]] = {}
        self._pause_s = 0.0
        self._thread = threading.Thread(target=self._run, name="otel-rl-watch", daemon=True)

    def start(self) -> None:
        """Begin, unless there is never to be a look."""
        if self._every_s:
            self._thread.start()

    def stop(self) -> None:
        """End, and whoever is being asked."""
        self._stopping.set()
        self._is_ended = True
        asked = self._asked
        if asked is not None:
            asked.kill()
        if self._thread.is_alive():
            self._thread.join()
        self._is_ended = False

    def look_last(self) -> bool:
        """Look once more at runs that have ended, if rows have come since; after ``stop``.

        Returns:
            Whether anybody was told anything.
        """
        if not self._every_s:
            return False
        deadline_s = time.monotonic() + self._last_timeout_s
        told = False
        with self._failures_counted("at the end"):
            for key in dict.fromkeys(self._experiments()):
                left_s = deadline_s - time.monotonic()
                if self._has_ended(key) and self._has_news(key) and left_s > 0:
                    told |= self._look(key, left_s)
        return told

    def _run(self) -> None:
        while not self._stopping.wait(1.0):
            with self._failures_counted("of the runs"):
                experiments = dict.fromkeys(self._experiments())
                self._looked = {key: self._looked.get(key, _now(0)) for key in experiments}
                for key in experiments:
                    if not self._stopping.is_set() and self._is_due(key):
                        self._look_if_news(key)

    def _look_if_news(self, key: ExperimentKey) -> None:
        if self._has_news(key):
            self._look(key, _TIMEOUT_S)
        else:
            self._looked[key] = _now(self._looked[key][1])

    @contextmanager
    def _failures_counted(self, what: str) -> Iterator[None]:
        """Nothing that goes wrong here harms the bridge; a journal that is away is no failure."""
        try:
            yield
        except (JournalError, LeaseLost) as exc:
            _log.debug("No look %s: %s", what, exc)  # those who need the journal say so
        except subprocess.TimeoutExpired as exc:  # on a busy machine, and no defect
            self._counters.add(Counter.EXCEPTIONS, reason=Where.WATCH)
            _log.warning(
                "The diagnosis %s took longer than %.0f s; runs go on without.", what, exc.timeout
            )
        except Exception:  # noqa: BLE001  # runs go on without their diagnosis; counted
            if not self._is_ended:
                self._counters.add(Counter.EXCEPTIONS, reason=Where.WATCH)
                _log.warning("The diagnosis %s failed; runs go on without.", what, exc_info=True)

    def _is_due(self, key: ExperimentKey) -> bool:
        pause_s = max(self._pause_s, self._every_s)
        if self._has_ended(key):
            pause_s = _AFTER_END_S
        return time.monotonic() - self._looked[key][0] >= pause_s

    def _has_ended(self, key: ExperimentKey) -> bool:
        return self._ledger.description(key).status is not ExperimentStatus.RUNNING

    def _has_news(self, key: ExperimentKey) -> bool:
        rows = self._ledger.next_row(key)
        return rows >= _FEWEST_ROWS and rows > self._looked.get(key, (0.0, 0))[1]

    def _look(self, key: ExperimentKey, timeout_s: float) -> bool:
        told = False
        begun_s, rows = time.monotonic(), self._ledger.next_row(key)
        with self._failures_counted(f"of {key}"):
            report = self._ask(key, timeout_s)
            self._tell(key, _finding(report, self._clock_ns()))
            told = True
        took_s = time.monotonic() - begun_s
        self._pause_s = took_s / _SHARE
        self._looked[key] = _now(rows)
        return told

    def _ask(self, key: ExperimentKey, timeout_s: float) -> Mapping[str, Any]:
        command = [sys.executable, "-m", "otel_rl.cli", "diagnose", "--now", "--json"]
        # Each name by itself: either may have the slash in it that a person writes between them.
        run = [f"--experiment={key.experiment}", f"--trial={key.trial}"]
        with subprocess.Popen(  # noqa: S603  # ourselves
            [*command, *self._arguments, *run],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**_harmless(os.environ), **self._environment},
            start_new_session=True,  # a Ctrl-C is the bridge's to hear
        ) as process:
            self._asked = process
            if self._is_ended:  # just now
                process.kill()
            try:
                said, complaint = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
            finally:
                self._asked = None
        if process.returncode:
            raise RuntimeError(complaint.decode(errors="replace").strip()[-1000:])
        report: Mapping[str, Any] = json.loads(said)
        if (report["experiment"], report["trial"]) != (key.experiment, key.trial):
            raise RuntimeError(f"asked about {key!r}, it spoke of another run")
        return report


def _harmless(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment for a process that only reads the journal: no key, and no token to send."""
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
