"""Diagnoses each live run at intervals and when it stalls, and adds the findings to the run.

A process of its own looks at one run after the other, as soon as a run has news and as often as the
process's share of the CPU allows.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from otel_rl.bridge.counters import Counter, Counters, Where
from otel_rl.bridge.diagnosis.process import DiagnosisProcess
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.rows.messages import Finding
from otel_rl.diagnose.detectors.stalls import stall_s, suspicious_s
from otel_rl.diagnose.history.rhythm import Rhythm
from otel_rl.diagnose.thresholds import NEWS_S
from otel_rl.errors import JournalError, LeaseLost
from otel_rl.records import ExperimentKey, ExperimentStatus

_log = logging.getLogger(__name__)

# Largest part of a core that the looks at all runs may take.
_SHARE: Final = 2 / 100

# The first diagnosis of a run reads all of it, and failures do not predict the time of others: they
# delay the next look no longer.
_FIRST_PAUSE_S: Final = 5.0
_FAILED_PAUSE_S: Final = 60.0

# By then the last rows have arrived, and the run is still open at the tracker.
_AFTER_END_S: Final = 5.0

_TIMEOUT_S: Final = 240.0

# With fewer rows a run is too short for any finding, and needs no process.
_FEWEST_ROWS: Final = 10


_NS_PER_S: Final = 1_000_000_000
_LATE: Final = 1.2  # usual steps


def _late_s(rhythm: Rhythm) -> float:
    """Return the seconds after which work counts as late, even if a step once took longer."""
    longest_s = suspicious_s(rhythm)  # endless for a new run
    return longest_s if longest_s == inf else min(max(NEWS_S, _LATE * rhythm.usual_s), longest_s)


def _half_sure_s(rhythm: Rhythm) -> float:
    return min(2 * suspicious_s(rhythm), stall_s(rhythm))


def _again_s(times: float) -> Callable[[Rhythm], float]:
    return lambda rhythm: times * stall_s(rhythm)


# A diagnosis may know of later steps, by rows of workers that lead, and of work that takes longer:
# it sees a stall a step or two after this does.
_LIMITS: Final = (_late_s, suspicious_s, _half_sure_s, stall_s, *map(_again_s, (1.2, 1.5, 2.0)))

# Enough for the time of usual steps, and to have seen one with a checkpoint.
_MAX_TOLD: Final = 500


class StallWatch:
    """Notices when one run stalls.

    A stall is noticed when phases may show it, when phases are far longer than ever, when a run
    without phases stands still, and a few times after that: later knowledge of the stall is for the
    next look.
    """

    def __init__(self) -> None:
        self._told: deque[tuple[int, float]] = deque(maxlen=_MAX_TOLD)
        self._newest_ns = 0
        self._noticed = 0

    def notices(self, newest_ns: int, step: int) -> bool:
        """Return whether the run has begun to stand still, in the sense of a diagnosis.

        Args:
            newest_ns: Time of the run's newest stored history: while no data of a run arrives,
                nobody can tell that it stands still.
            step: The newest step at that time.
        """
        now_s = newest_ns / _NS_PER_S
        if self._told and step < self._told[-1][0]:
            self._told.clear()  # a new attempt
        if not self._told or step > self._told[-1][0]:
            self._told.append((step, now_s))
            self._noticed = 0
            return False
        if self._noticed == len(_LIMITS) or newest_ns == self._newest_ns:
            return False
        self._newest_ns = newest_ns
        rhythm = Rhythm.between(range(self._told[0][0], step + 1), self._told, now_s)
        if rhythm is None or rhythm.stands_s < _LIMITS[self._noticed](rhythm):
            return False
        self._noticed = sum(rhythm.stands_s >= limit_s(rhythm) for limit_s in _LIMITS)
        return True


class _Looked(NamedTuple):
    """The last look at a run.

    Attributes:
        at_s: Time at which the look ended.
        rows: Number of the run's rows at that time.
        newest_ns: Arrival of the last news of a live run.
    """

    at_s: float
    rows: int
    newest_ns: int


class LookedAt(Protocol):
    """The maker of rows, as far as the diagnosis uses it."""

    def begun(self) -> Collection[ExperimentKey]:
        """Return the runs that may have new findings."""
        ...

    def progress(self, key: ExperimentKey, /) -> tuple[int, int] | None:
        """Return the time of a run's newest stored history, and its newest step then."""
        ...

    def add_finding(self, key: ExperimentKey, finding: Finding, /) -> None: ...


class DiagnosisScheduler:
    """Diagnoses each active run, one at a time.

    Args:
        rows: Tells which runs have news, and takes the findings.
        every_s: Shortest time between two looks at a run; 0 never looks.
        last_timeout_s: Bound on the time of all last diagnoses together.
    """

    def __init__(
        self,
        run_store: RunStore,
        rows: LookedAt,
        process: DiagnosisProcess,
        *,
        every_s: float,
        counters: Counters,
        clock_ns: Callable[[], int],
        last_timeout_s: float = 40.0,
    ) -> None:
        self._run_store = run_store
        self._rows = rows
        self._process = process
        self._every_s = every_s
        self._counters = counters
        self._clock_ns = clock_ns
        self._last_timeout_s = last_timeout_s
        self._stopping = threading.Event()
        self._is_ended = False  # the diagnosis process is interrupted, which is no failure
        self._looked: dict[ExperimentKey, _Looked] = {}
        self._stalls: dict[ExperimentKey, StallWatch] = {}
        self._free_s = 0.0  # from when on another look is within the share
        self._thread = threading.Thread(target=self._run, name="otel-rl-watch", daemon=True)

    def start(self) -> None:
        """Start, unless the interval is 0."""
        if self._every_s:
            self._thread.start()

    def pause(self) -> None:
        """Stop looking at runs and break off the present look. ``look_last`` may follow."""
        self._stopping.set()
        self._is_ended = True
        self._process.interrupt()
        if self._thread.is_alive():
            self._thread.join()
        self._process.resume()
        self._is_ended = False

    def stop(self) -> None:
        """End the process, after ``pause``. Idempotent."""
        self.pause()
        self._process.end()

    def look_last(self) -> bool:
        """Diagnose ended runs with new rows once more. Call it after ``pause``.

        Returns:
            Whether there were findings.
        """
        if not self._every_s:
            return False
        deadline_s = time.monotonic() + self._last_timeout_s
        found = False
        with self._failures_counted("at the end"):
            for key in self._experiments():
                left_s = deadline_s - time.monotonic()
                if self._has_ended(key) and self._has_news(key) and left_s > 0:
                    found |= self._look(key, left_s)
        self._process.end()
        return found

    def _run(self) -> None:
        while not self._stopping.wait(1.0):
            self.look()

    def look(self) -> None:
        with self._failures_counted("of the runs"):
            experiments = self._experiments()
            self._looked = {key: self._looked.get(key, _now(0, 0)) for key in experiments}
            self._stalls = {key: self._stalls.get(key) or StallWatch() for key in experiments}
            for key in experiments:
                if self._begins_to_stand(key):  # however much the looks have taken
                    self._look(key, _TIMEOUT_S)
            for key in sorted(experiments, key=lambda key: self._looked[key].at_s):
                if self._stopping.is_set() or time.monotonic() < self._free_s:
                    return
                if self._is_due(key) and self._has_news(key):
                    self._look(key, _TIMEOUT_S)

    def _experiments(self) -> Sequence[ExperimentKey]:
        return [key for key in dict.fromkeys(self._rows.begun()) if self._run_store.is_ours(key)]

    def _begins_to_stand(self, key: ExperimentKey) -> bool:
        progress = self._rows.progress(key)
        if progress is None or self._has_ended(key):
            return False
        return self._stalls[key].notices(*progress)

    @contextmanager
    def _failures_counted(self, what: str) -> Iterator[None]:
        """Catch and count failures. An unreachable journal does not count as a failure."""
        try:
            yield
        except (JournalError, LeaseLost) as exc:
            _log.debug("No diagnosis %s: %s", what, exc)  # users of the journal report it
        except TimeoutError as exc:  # on a busy machine, no defect
            self._counters.add(Counter.EXCEPTIONS, reason=Where.WATCH)
            _log.warning("The diagnosis %s took too long: %s. Runs continue without it.", what, exc)
        except Exception:  # noqa: BLE001  # runs continue without a diagnosis; counted
            if not self._is_ended:
                self._counters.add(Counter.EXCEPTIONS, reason=Where.WATCH)
                _log.warning(
                    "The diagnosis %s failed; runs continue without it.", what, exc_info=True
                )

    def _is_due(self, key: ExperimentKey) -> bool:
        pause_s = min(_AFTER_END_S, self._every_s) if self._has_ended(key) else self._every_s
        return time.monotonic() - self._looked[key].at_s >= pause_s

    def _has_ended(self, key: ExperimentKey) -> bool:
        return self._run_store.description(key).status is not ExperimentStatus.RUNNING

    def _has_news(self, key: ExperimentKey) -> bool:
        rows = self._run_store.next_row(key)
        fewest = 1 if self._run_store.description(key).crash else _FEWEST_ROWS
        looked = self._looked.get(key, _now(0, 0))
        is_newer = rows > looked.rows or self._newest_ns(key) > looked.newest_ns
        return rows >= fewest and is_newer

    def _newest_ns(self, key: ExperimentKey) -> int:
        """Return when a live run's last news arrived: a run that makes no rows may stand still."""
        progress = None if self._has_ended(key) else self._rows.progress(key)
        return 0 if progress is None else progress[0]

    def _look(self, key: ExperimentKey, timeout_s: float) -> bool:
        found, pause_s = False, _FAILED_PAUSE_S
        is_first = not self._looked.get(key, _now(0, 0)).rows
        rows, newest_ns = self._run_store.next_row(key), self._newest_ns(key)
        with self._failures_counted(f"of {key}"):
            live = [one for one in self._looked if not self._has_ended(one)]
            answer = self._process.ask(key, live, timeout_s)
            pause_s = answer.cpu_s / _SHARE
            if is_first:
                pause_s = min(pause_s, _FIRST_PAUSE_S)
            self._rows.add_finding(
                key, _finding(answer.report, self._clock_ns(), is_last=self._has_ended(key))
            )
            found = True
        self._looked[key] = _now(rows, newest_ns)
        self._free_s = time.monotonic() + pause_s
        return found


def _now(rows: int, newest_ns: int) -> _Looked:
    return _Looked(time.monotonic(), rows, newest_ns)


def _finding(report: Mapping[str, Any], time_ns: int, *, is_last: bool) -> Finding:
    return Finding(
        report["steps"][1],
        time_ns,
        report["verdict"],
        report["words"],
        report["causes"],
        is_last=is_last,
    )
