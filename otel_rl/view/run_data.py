"""History of one run as columns, read on as it grows.

A run of ten thousand steps with two hundred keys has two million values: as arrays they are 50 MB,
as the objects of ``RunHistory`` five times that.
"""

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import read_history, read_named_keys
from otel_rl.bridge.keys import NamedKeys
from otel_rl.diagnose.history.records import Facts, StepFacts
from otel_rl.records import WorkerFailure
from otel_rl.semconv.spec import STEP_SPAN

_NS_PER_MS: Final = 1e6
_NS_PER_S: Final = 1e9
_PHASE_AGE: Final = "/phase/age/"  # of a phase in progress, from a worker's heartbeat
_MAX_KEYS: Final = 4_096
_MAX_CELLS: Final = 4_000_000  # of all phases, 12 bytes each
_MAX_MEASURED: Final = 1_000_000  # of all other measurements
_MAX_SINGLE: Final = 1e38  # of single precision


@dataclass(slots=True)
class Series:
    """Values of one key. The columns have one length.

    Attributes:
        steps: Step of each value.
        times_ms: Since the epoch.
        values: May hold NaN and infinities.
    """

    steps: "array[float]" = field(default_factory=lambda: array("d"))
    times_ms: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def place_of(self, step: int) -> int | None:
        """Return the place of the last value of a step; None without one."""
        places = range(len(self.steps) - 1, -1, -1)
        return next((place for place in places if self.steps[place] == step), None)


@dataclass(slots=True)
class Cells:
    """Times of one phase, or values of one key. The columns have one length.

    Attributes:
        workers: Place of each in ``RunData.workers``.
        steps: In progress when the spans ended, or of the measurements.
        seconds: Sum of the spans, without nested ones; mean of the measurements.
    """

    workers: "array[int]" = field(default_factory=lambda: array("i"))
    steps: "array[int]" = field(default_factory=lambda: array("i"))
    seconds: "array[float]" = field(default_factory=lambda: array("f"))


class LastPhase(NamedTuple):
    """Phase that a worker ended last, or is in for long.

    Attributes:
        phase: Its name.
        step: In progress.
        time_ns: When the bridge knew of its end, by its clock; or its begin.
        is_over: Whether it has ended.
    """

    phase: str
    step: int
    time_ns: int
    is_over: bool = True


class StepPath(NamedTuple):
    """An explained step, as far as pages need it.

    Attributes:
        step: The step.
        end_ns: Its end on the last rank.
        seconds: Its duration.
        longest: ``<role>/<phase>`` with most of its critical path.
        worker: That spent it.
        trace_id: In hexadecimal digits.
    """

    step: int
    end_ns: int
    seconds: float
    longest: str
    worker: str
    trace_id: str


class RunData:
    """Columns of one run. One thread.

    Attributes:
        number: Of the last record that was added.
        last_step: The highest step in progress.
        begun_ns: Time of the first record that the history still has.
        newest_ns: Time of the last record.
        names: Of the keys; whoever adds records brings it up to date.
        series: By the name of the key.
        measured: By the name of the key: each worker's measurements of anything but phases.
        workers: Names, ``<role>/<index>``, in the order of appearance.
        waits: Phases that only wait.
        last_phases: By worker.
        places: By worker, its host, empty if unknown, and process id there.
        steps: Explained steps, in order of arrival.
        failures: Of workers, in order.
        status: Of the run by its workers.
        left_out: Values for which there was no room.
    """

    def __init__(self) -> None:
        self.number = 0
        self.last_step = 0
        self.begun_ns = 0
        self.newest_ns = 0
        self.names = NamedKeys()
        self.series: dict[str, Series] = {}
        # By the key of rows, with the divisor of its values.
        self._columns: dict[str, tuple[Series, float]] = {}
        self.measured: dict[str, Cells] = defaultdict(Cells)
        self.workers: dict[str, int] = {}
        self._spanned: dict[tuple[str, str], Cells] = defaultdict(Cells)
        self._measured: dict[tuple[str, str], Cells] = defaultdict(Cells)
        self.waits: set[tuple[str, str]] = set()
        self.last_phases: dict[str, LastPhase] = {}
        self.places: dict[str, tuple[str, int | None]] = {}
        self.steps: list[StepPath] = []
        self.failures: list[WorkerFailure] = []
        self.status = ""
        self.left_out = 0
        self._cells = 0
        self._values = 0

    @property
    def phases(self) -> Mapping[tuple[str, str], Cells]:
        """Return the times by role and phase: of spans, or else as they were measured."""
        return {**self._measured, **self._spanned}

    @property
    def memory_bytes(self) -> int:
        """Return the size of the columns."""
        return 24 * sum(len(of.values) for of in self.series.values()) + 12 * (
            self._cells + self._values
        )

    def series_of(self, key: str) -> Series | None:
        """Return the values of a key, by its name or by the key of rows, in whose scale they are.

        A diagnosis tells the key of rows where the value under the name has another scale.
        """
        if key in self.series or key not in self._columns:
            return self.series.get(key)
        of, divisor = self._columns[key]
        if divisor == 1:
            return of
        return replace(of, values=array("d", [value * divisor for value in of.values]))

    def add(self, number: int, facts: Facts | None) -> None:
        """Add the next record; None for one that is damaged."""
        self.number = number
        if facts is None:
            return
        self.begun_ns = self.begun_ns or facts.time_ns
        self.newest_ns = facts.time_ns
        self.last_step = max(self.last_step, facts.step)
        for row in facts.rows:
            time_ms = row.time_ns / _NS_PER_MS
            self._add_row(row.step, time_ms, row.values.items(), replaces=row.replaces)
        for span in facts.spans:
            if span.phase == STEP_SPAN:  # it is what phases are in
                continue
            place = span.role, span.phase
            self._add_cell(self._spanned[place], span.worker, span.step, span.total_s)
            self.last_phases[span.worker] = LastPhase(span.phase, span.step, facts.time_ns)
            if span.is_wait:
                self.waits.add(place)
        self.places.update((worker, (host, pid)) for worker, host, pid in facts.places)
        self._add_measured_phases(facts)
        self._add_measurements(facts)
        for step in facts.steps:
            self._add_row(step.step, step.end_ns / _NS_PER_MS, step.values.items())
        self.steps.extend(map(_path, facts.steps))
        known = {(one.worker, one.time_ns): place for place, one in enumerate(self.failures)}
        for failure in facts.failures:
            at = known.get((failure.worker, failure.time_ns))
            if at is None:
                self.failures.append(failure)
            else:
                self.failures[at] = failure  # its worker was replaced
        self.status = facts.status or self.status

    def _add_row(
        self,
        step: int,
        time_ms: float,
        values: Iterable[tuple[str, float]],
        *,
        replaces: bool = False,
    ) -> None:
        for key, value in values:
            column = self._columns.get(key)
            if column is None:
                if len(self.series) >= _MAX_KEYS:
                    self.left_out += 1
                    continue
                name, divisor = self.names.of(key)
                column = self._columns[key] = self.series.setdefault(name, Series()), divisor
            of, divisor = column
            place = of.place_of(step) if replaces else None
            if place is not None:
                of.values[place] = value / divisor
                continue
            of.steps.append(step)
            of.times_ms.append(time_ms)
            of.values.append(value / divisor)

    def _add_measured_phases(self, facts: Facts) -> None:
        """Add phases that a program measures without spans, as ``phase/<role>/<phase>``."""
        for key, some in facts.workers.items():
            kind, _, name = key.partition("/")
            role, _, phase = name.partition("/")
            if kind != "phase" or not phase or "/" in phase or (role, phase) in self._spanned:
                continue
            cells = self._measured[role, phase]
            for worker, step, measurements, total, _ in some:
                if measurements:
                    at = facts.step if step is None else step
                    self._add_cell(cells, worker, at, total)
                    self.last_phases[worker] = LastPhase(phase, at, facts.time_ns)

    def _add_measurements(self, facts: Facts) -> None:
        for key, some in facts.workers.items():
            if key.startswith(("phase/", "otel_rl/")):
                continue
            phase = key.partition(_PHASE_AGE)[2]
            name, divisor = self.names.of(key)
            for worker, step, measurements, total, _ in some:
                if not measurements:
                    continue
                if phase:
                    self._add_open_phase(worker, phase, total / measurements, facts)
                if self._values >= _MAX_MEASURED or not abs(total) < _MAX_SINGLE:
                    self.left_out += 1
                    continue
                self._values += 1
                cells = self.measured[name]
                cells.workers.append(self.workers.setdefault(worker, len(self.workers)))
                cells.steps.append(facts.step if step is None else step)
                cells.seconds.append(total / measurements / divisor)

    def _add_open_phase(self, worker: str, phase: str, age_s: float, facts: Facts) -> None:
        begun_ns = facts.time_ns - round(age_s * _NS_PER_S)
        last = self.last_phases.get(worker)
        # Of nested phases the inner one is the younger.
        if last is None or last.is_over or last.time_ns <= begun_ns:
            self.last_phases[worker] = LastPhase(phase, facts.step, begun_ns, is_over=False)

    def _add_cell(self, cells: Cells, worker: str, step: int, seconds: float) -> None:
        if self._cells >= _MAX_CELLS or not math.isfinite(seconds):
            self.left_out += 1
            return
        self._cells += 1
        cells.workers.append(self.workers.setdefault(worker, len(self.workers)))
        cells.steps.append(step)
        cells.seconds.append(seconds)


def read_part(connection: Connection, run: str, data: RunData, limit: int = 256) -> int:
    """Add the next records of a run's history to its columns. Returns how many."""
    some = read_history(connection, run, after=data.number, limit=limit)
    if some:
        data.names = read_named_keys(connection, run)  # those of these records, at least
    for number, body in some:
        data.add(number, None if body is None else Facts.decode(body))
    return len(some)


def _path(step: StepFacts) -> StepPath:
    role, phase, worker, _ = max(step.path, key=lambda one: one[3], default=("", "", "", 0.0))
    seconds = sum(one[3] for one in step.path)
    return StepPath(
        step.step, step.end_ns, seconds, f"{role}/{phase}" if role else "", worker, step.trace_id
    )
