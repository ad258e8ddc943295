"""Snapshots of a run for a terminal, read from its journal again and again at little cost."""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.counters import Counter
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import (
    RunOverview,
    looking,
    overview,
    read_history,
    read_keys,
    read_runs,
    state_of,
)
from otel_rl.bridge.rows.stored_run import read_standing
from otel_rl.cli.find_run import WantedRun, journals, shared_journal
from otel_rl.cli.standard_streams import say
from otel_rl.dashboard.resemblance import headlines
from otel_rl.diagnose.history.records import Facts
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey, KeySpec
from otel_rl.run_id import run_id
from otel_rl.semconv import names
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["RunReader", "RunWatch", "Snapshot", "WorkerLine", "counted", "notable_first"]

_RATE_S: Final = 30.0  # steps of this long make the rate
_NS_PER_S: Final = 1e9

_DROPS: Final = frozenset(
    {
        str(Counter.SAMPLES_DROPPED),
        str(Counter.POINTS_REFUSED),
        names.OTEL_RL_WORKER_MEASUREMENTS_DROPPED,
        names.OTEL_RL_WORKER_SPANS_DROPPED,
    }
)

_STANDINGS: Final = ("new", "alive", "ended", "failed", "silent")  # by ``WorkerStanding``
_CURRENT: Final = {"new", "alive"}  # unknown without a bridge

_BEHIND: Final = 2  # steps of a worker that is behind its role
_LATE_S: Final = 10.0  # of an export, at least, and three times the usual


class WorkerLine(NamedTuple):
    """A worker.

    Attributes:
        name: ``<role>/<index>``.
        standing: In one word; ``unknown`` in place of alive if the run is interrupted.
        phase: The last one that is known; empty without one.
        phase_s: For how long it lasts, or since when it is over.
        step: Its newest step; None without steps.
        idle_s: Since its last export.
    """

    name: str
    standing: str
    phase: str
    phase_s: float
    step: int | None
    idle_s: float


def notable_first(workers: Sequence[WorkerLine]) -> Sequence[WorkerLine]:
    """Return failed and silent workers, then late ones and those behind, then all others.

    For a screen without room for all; otherwise the order stays.
    """
    newest: dict[str, int] = {}
    for one in workers:
        role = one.name.rpartition("/")[0]
        newest[role] = max(newest.get(role, 0), one.step or 0)
    usual_s = median(one.idle_s for one in workers) if workers else 0.0

    def rank(one: WorkerLine) -> int:
        if one.standing in {"failed", "silent"}:
            return 0
        if one.standing == "ended":
            return 3
        is_behind = one.step is not None
        is_behind &= newest[one.name.rpartition("/")[0]] - (one.step or 0) >= _BEHIND
        return 1 if is_behind or one.idle_s > max(_LATE_S, 3 * usual_s) else 2

    return sorted(workers, key=rank)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment.

    Attributes:
        key: The run.
        state: As in ``otel-rl runs``.
        step: The newest step; None before the first.
        steps_per_s: Of the last half a minute; None before the second step.
        reward: Mean reward of the last step; None without one.
        alive: Workers that live; None if the run is interrupted.
        expected: Workers that should live.
        lag_rows: Rows that the tracker is behind.
        drops: Values that were dropped or refused, all reasons.
        verdict: First cause of the last diagnosis by the bridge, such as ``straggler trainer/1``,
            else its verdict; empty before one.
        age_s: Since the first data.
        workers: In the order of roles and indexes.
        total_steps: Last step, by the configuration of the run; None if that does not tell it.
    """

    key: ExperimentKey
    state: str
    step: int | None
    steps_per_s: float | None
    reward: float | None
    alive: int | None
    expected: int
    lag_rows: int
    drops: int
    verdict: str
    age_s: float
    workers: Sequence[WorkerLine]
    total_steps: int | None = None

    @property
    def left_s(self) -> float | None:
        """Return how long the rest of the steps takes; None if that is unknown, or all are done."""
        if self.total_steps is None or self.step is None or not self.steps_per_s:
            return None
        left = self.total_steps - self.step
        return left / self.steps_per_s if left > 0 and self.state == "running" else None


_TOTALS: Final = frozenset(
    {
        "max_iterations",
        "max_steps",
        "max_train_steps",
        "num_iterations",
        "num_rollout",
        "num_train_steps",
        "num_training_steps",
        "total_steps",
        "total_training_steps",
    }
)
"""Names of the number of steps in configurations."""


def total_steps(config: object) -> int | None:
    """Return the number of steps that a configuration tells, in the outermost part that does."""
    parts = [config]
    for part in parts:
        if isinstance(part, Mapping):
            told = [part[name] for name in part if str(name).rpartition(".")[2] in _TOTALS]
            counts = {one for one in told if type(one) is int and one > 0}
            if len(counts) == 1:
                return counts.pop()
            parts += part.values()
    return None


class _Phase(NamedTuple):
    name: str
    begun_ns: int


class RunWatch:
    """Reads the new part of one run. One thread."""

    def __init__(self, key: ExperimentKey) -> None:
        self._key = key
        self._run = run_id(key.experiment, key.trial)
        self._after = 0
        self._specs: Mapping[str, KeySpec] = {}
        self._rewards: Mapping[str, None] = {}  # keys, the best first
        self._steps: deque[tuple[int, int]] = deque()  # step and time of recent rows
        self._values: dict[str, float] = {}  # rewards and drops, by key
        self._phases: dict[str, _Phase] = {}  # by name of the worker

    def look(
        self, connection: Connection, overview: RunOverview, now_ns: int | None = None
    ) -> Snapshot:
        """Return the run as it is now.

        Args:
            connection: Of its journal.
            overview: Of the run, just read.
            now_ns: Nanoseconds since the epoch; default: the clock.
        """
        now_ns = time.time_ns() if now_ns is None else now_ns
        self._read_on(connection)
        standing = read_standing(connection, self._run)
        current = {worker.name: worker for worker in standing.workers}  # the last of each name
        workers = []
        for name, worker in sorted(current.items(), key=lambda item: _natural(item[0])):
            workers.append(
                WorkerLine(
                    name,
                    _standing(worker.standing, overview),
                    *self.phase_of(name, now_ns),
                    worker.newest_step,
                    max(0.0, (now_ns - worker.received_ns) / _NS_PER_S),
                )
            )
        roles = overview.roles.values()
        return Snapshot(
            self._key,
            state_of(overview, standing, now_ns),
            overview.step,
            self._rate(),
            self._reward(),
            None if overview.is_interrupted else sum(role.alive for role in roles),
            sum(role.expected for role in roles),
            overview.lag_rows,
            int(sum(value for key, value in self._values.items() if self._is_drop(key))),
            standing.cause or standing.verdict,
            max(0.0, (now_ns - (overview.begun_ns or now_ns)) / _NS_PER_S),
            workers,
            total_steps(overview.description.config),
        )

    def phase_of(self, worker: str, now_ns: int) -> tuple[str, float]:
        """Return the last known phase of a worker, and for how long (s); empty without one."""
        phase = self._phases.get(worker)
        if phase is None:
            return "", 0.0
        return phase.name, max(0.0, (now_ns - phase.begun_ns) / _NS_PER_S)

    def _read_on(self, connection: Connection) -> None:
        is_new = False
        while some := read_history(connection, self._run, after=self._after):
            if not is_new:
                specs = read_keys(connection, self._run)
                self._specs, is_new = {spec.key: spec for spec in specs}, True
                rewards = [spec.key for word, spec in headlines(specs) if word == "reward"]
                self._rewards = dict.fromkeys(rewards)
            for number, body in some:
                self._after = number
                if body is not None:
                    self._take(Facts.decode(body))

    def _take(self, facts: Facts) -> None:
        for row in facts.rows:
            if row.replaces and self._steps and row.step < self._steps[-1][0]:
                continue  # what is newest is known
            if not self._steps or row.step > self._steps[-1][0]:
                self._steps.append((row.step, row.time_ns))
            for key, value in row.values.items():
                if key in self._rewards or self._is_drop(key):
                    self._values[key] = value
        while self._steps and self._steps[-1][1] - self._steps[0][1] > _RATE_S * _NS_PER_S:
            if len(self._steps) <= 2:
                break
            self._steps.popleft()
        self._take_phases(facts)

    def _take_phases(self, facts: Facts) -> None:
        for span in facts.spans:
            if span.phase != STEP_SPAN:  # around all others
                self._phases[span.worker] = _Phase(span.phase, facts.time_ns)
        for key, measured in facts.workers.items():
            spec = self._specs.get(key)
            if spec is not None and spec.name == names.RL_WORKER_PHASE_AGE:
                phase = dict(spec.attributes).get(names.RL_PHASE, "")
                for one in measured:
                    if phase and one.measurements:
                        age_ns = round(one.total / one.measurements * _NS_PER_S)
                        self._phases[one.worker] = _Phase(phase, facts.time_ns - age_ns)

    def _is_drop(self, key: str) -> bool:
        spec = self._specs.get(key)
        return spec is not None and spec.name in _DROPS and spec.statistic in {"value", "total"}

    def _reward(self) -> float | None:
        return next((self._values[key] for key in self._rewards if key in self._values), None)

    def _rate(self) -> float | None:
        if len(self._steps) < 2:
            return None
        (first, begun_ns), (last, ended_ns) = self._steps[0], self._steps[-1]
        took_s = (ended_ns - begun_ns) / _NS_PER_S
        return (last - first) / took_s if took_s > 0 else None


class RunReader:
    """Reads all runs in reach, again and again.

    Args:
        settings: With the place of the journals.
    """

    def __init__(self, settings: BridgeSettings) -> None:
        self._settings = settings
        self._faults: Sequence[JournalError] = ()
        self._watches: dict[tuple[Path | None, ExperimentKey], RunWatch] = {}

    def runs(self) -> Iterator[tuple[RunOverview, Connection, Path | None]]:
        """Yield each run, with its journal open for reading, and that journal's directory."""
        if self._settings.journal.url is not None:
            with shared_journal(self._settings) as journal:
                overviews = overview(journal)
                with journal.read() as connection:
                    for run in overviews:
                        yield run, connection, None
            return
        faults: list[JournalError] = []
        for directory in journals(self._settings):
            try:
                with looking(directory) as connection:
                    for run in read_runs(connection, directory):
                        yield run, connection, directory
            except JournalError as exc:
                faults.append(exc)
        self._faults = faults

    def snapshots(self, wanted: WantedRun) -> Sequence[Snapshot]:
        """Return the runs, the wanted one first, then the last active one.

        Raises:
            ConfigError: There is no run, or not the wanted one.
        """
        found: list[tuple[int, Snapshot]] = []
        for run, connection, place in self.runs():
            watch = self._watches.setdefault((place, run.key), RunWatch(run.key))
            found.append((run.changed_ns, watch.look(connection, run)))
        of_key: dict[ExperimentKey, Snapshot] = {}
        for _, snapshot in sorted(found, key=lambda one: one[0], reverse=True):
            of_key.setdefault(snapshot.key, snapshot)
        matching = wanted.of(of_key)
        in_words = self._settings.journal_place
        if not of_key:
            raise in_words.no_run()
        if not matching:
            raise wanted.not_found(of_key, in_words.words)
        first = of_key.pop(matching[0])
        return [first, *of_key.values()]

    def status(self) -> int:
        """Say which journals could not be read at the last look, and return the exit status."""
        for fault in self._faults:
            say(str(fault))
        return 1 if self._faults else 0


def counted(snapshot: Snapshot) -> str:
    """Return live and expected workers, such as ``3/4``; ``?/4`` if unknown, ``-`` if none is."""
    if not snapshot.expected:
        return "-"
    return f"{'?' if snapshot.alive is None else snapshot.alive}/{snapshot.expected}"


def _standing(standing: int, overview: RunOverview) -> str:
    word = _STANDINGS[standing]
    return "unknown" if overview.is_interrupted and word in _CURRENT else word


def _natural(name: str) -> tuple[str, int, str]:
    role, _, index = name.partition("/")
    return role, int(index) if index.isdecimal() else -1, index
