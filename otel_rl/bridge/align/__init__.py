"""Points in any order to numbered rows: the open steps and windows of one experiment.

No clock and no I/O of its own: time comes in as an argument. The whole state of an ``Aligner`` can
be pickled, so that it is kept in the same transaction as the rows that it made. Beside it goes the
log of single points that were taken, which only grows.
"""

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from otel_rl.bridge.align.axis import StepAxis, is_integral
from otel_rl.bridge.align.chronicle import Chronicle, History
from otel_rl.bridge.align.explained import Explained
from otel_rl.bridge.align.finding import Finding
from otel_rl.bridge.align.hearing import Hearing
from otel_rl.bridge.align.memory import SeenLog
from otel_rl.bridge.align.notice import Notice
from otel_rl.bridge.align.remarks import (
    Dropped,
    Remark,
    of_dropped,
    of_overflowed,
    of_shared,
    of_units,
)
from otel_rl.bridge.align.room import Room
from otel_rl.bridge.align.roster import Roster
from otel_rl.bridge.align.series import Stream
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.align.steps import ClosedStep, OpenSteps
from otel_rl.bridge.align.streams import StreamTable
from otel_rl.bridge.align.tables import ClosedTable, OpenTables
from otel_rl.bridge.align.tally import Tally
from otel_rl.bridge.align.trail import Trail, TrailLog
from otel_rl.bridge.align.width import parts
from otel_rl.bridge.align.windows import ClosedWindow, OpenWindows
from otel_rl.bridge.cumulative import CounterStream, HistogramStream
from otel_rl.diagnose.facts import StepFacts
from otel_rl.records import (
    Covered,
    Decoded,
    Device,
    ExperimentStatus,
    HistogramPoint,
    Measurements,
    Point,
    RoleStanding,
    Row,
    SummaryPoint,
    SumPoint,
    Temporality,
    TextSample,
)
from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument, Reduction

__all__ = ["AlignSettings", "Aligner", "History", "SeenLog", "Tally", "TrailLog"]

_NS_PER_S = 1_000_000_000

# The metric of each field of a ``RoleStanding``, and what its key has behind it.
_STANDING = (
    (names.RL_SERVICE_EXPECTED, ""),
    (names.RL_SERVICE_ALIVE, ""),
    (names.RL_SERVICE_FAILURES, ""),
    (names.RL_SERVICE_RECOVERY, "_s"),
    (names.RL_SERVICE_SILENT, ""),
)

_NO_METRICS = ("otel_rl.", "hw.", *(name for name, _ in _STANDING))
"""What a run has though its program has measured nothing."""

_MAX_NAMED = 8
"""Workers whose spans a step lacks, by name; ``critical_path/partial`` has the number of all."""

_Closed = ClosedStep | ClosedWindow | ClosedTable | Explained | Finding | Remark
"""What becomes rows."""


class Aligner:
    """Turns the points of one experiment into rows.

    Rows are numbered from ``next_number`` without gaps. Within one call of ``close`` they come in
    order of event time.

    Attributes:
        settings: May be replaced at any time, e.g. after a restart with another configuration.
        next_number: The number that the next row gets.
        tally: What became of the samples, since the experiment began.
        counts: What else was counted for the experiment, kept with its state; by name and reason.
        has_more: Whether ``close`` left something that is complete for the next call.
    """

    # Of the batch that is being taken in parts: whether it had points so far, and new ones.
    _begun: tuple[bool, bool] | None = None
    has_more = False

    def __init__(self, settings: AlignSettings | None = None) -> None:
        self.settings = settings or AlignSettings()
        self.next_number = 0
        self.tally = Tally()
        self.counts: dict[tuple[str, str], int] = {}
        self._newest_ns = 0  # event time of the latest row
        self._table = StreamTable()
        self._axis = StepAxis()
        self._steps = OpenSteps()
        self._windows = OpenWindows()
        self._tables = OpenTables()
        self._trail = Trail()
        self._chronicle = Chronicle()
        self._findings: list[Finding] = []
        self._told: tuple[str, ...] | None = None
        self._remarks: list[Remark] = []
        self._dropped: dict[str, Dropped] = {}
        self._is_told_shared = False
        self._hearing = Hearing()
        self._roster = Roster()
        self._notice = Notice()
        self._is_watching = False

    def go_on(self, now_ns: int) -> None:
        """The bridge was away until ``now_ns``: what it could not hear is not overdue."""
        self._hearing.go_on(now_ns)

    def clock_is(self, now_ns: int) -> None:
        """The bridge's clock shows this, also while older batches are read; it may be set back."""
        self._axis.clock_is(self._hearing.clock_is(now_ns))

    def add(self, decoded: Decoded, *, received_ns: int) -> None:
        """Fold in what one batch says, or a part of it.

        Args:
            decoded: Of this experiment. Parts of a batch come one after another.
            received_ns: When the batch arrived, by the bridge's clock.
        """
        received_ns = self._hearing.at(received_ns)
        if self._begun is None:
            self._table.make_room(self.settings, received_ns)
        has_points, is_new = self._begun or (False, False)
        taken = self.tally.taken
        for point in decoded.points:
            self._add(point, received_ns)
        for sample in decoded.samples:
            self._add_sample(sample, received_ns)
        if decoded.spans:
            self._chronicle.spanned(self._trail.new_of(decoded.spans), self._axis.step_at)
        self.tally.spans_too_old += self._trail.add(decoded.spans, self.settings, received_ns)
        has_points, is_new = has_points or bool(decoded.points), is_new or self.tally.taken > taken
        self._begun = (has_points, is_new) if decoded.has_more else None
        is_new = is_new or not has_points
        settle_ns = int(self.settings.settle_s * _NS_PER_S)
        for export in decoded.exports:
            worker = self._table.lease(export.worker, self.settings)
            if worker is not None:
                self._is_watching = True
                worker.says_goodbye = worker.says_goodbye or export.says_goodbye
                self._roster.heard(export.worker, worker, export.time_ns, received_ns)
                # What comes again says nothing of how far its worker has come, nor of its clock.
                event_ns = export.time_ns if is_new or export.time_ns > worker.event_ns else 0
                self._chronicle.exported(worker, event_ns, received_ns)
                worker.exported(received_ns=received_ns, event_ns=event_ns, settle_ns=settle_ns)
        for departure in decoded.departures:
            worker = self._table.lease(departure.worker, self.settings)
            if worker is not None:
                self._roster.left(departure, worker, received_ns)

    def leave_batch(self) -> None:
        """Of the batch that is being taken in parts nothing more comes."""
        self._begun = None

    def tell(self, finding: Finding) -> None:
        """Let the run know what was found out about it, if that is news."""
        if finding.subject != self._told and (finding.causes or self._told is not None):
            self._told = finding.subject
            self._findings.append(finding)

    @property
    def is_open(self) -> bool:
        """Whether there are samples that stand in no row yet."""
        parts = (self._steps, self._windows, self._tables, self._trail)
        return bool(self._findings or self._remarks) or any(part.is_open for part in parts)

    @property
    def is_watching(self) -> bool:
        """Whether time alone may bring a row: samples wait, or a worker lives and may be missed.

        After everything was closed, not before somebody is heard of again.
        """
        return self.is_open or (self._is_watching and self._roster.has_living)

    @property
    def status(self) -> ExperimentStatus | None:
        """How the experiment stands by what its workers do; None before the first is heard of."""
        return self._roster.status()

    @property
    def has_metrics(self) -> bool:
        """Whether a worker has reported anything but its own standing and its machine's."""
        return any(not group.name.startswith(_NO_METRICS) for group in self._table.groups)

    @property
    def roles(self) -> Mapping[str, RoleStanding]:
        """How each role stood when rows were closed last."""
        return self._roster.roles()

    @property
    def devices(self) -> Mapping[str, Device]:
        """The GPUs that workers report, by what their keys begin with."""
        return self._table.devices

    @property
    def forgotten_ns(self) -> int:
        """No log with a ``newest_ns`` up to this time is needed any more."""
        return self._table.forgotten_ns

    def take_dropped(self) -> Mapping[str, Dropped]:
        """Take out, by worker, what was dropped for want of series since the last call."""
        dropped, self._dropped = self._dropped, {}
        return dropped

    def take_log(self) -> SeenLog | None:
        """Take out the single points that were taken since the last call; None if none were."""
        return self._table.take_log(self.settings)

    def restore(self, body: bytes) -> None:
        """After unpickling: remember what a ``SeenLog`` says was taken."""
        self._table.restore(body)

    @property
    def spans_forgotten_ns(self) -> int:
        """No trail with a ``newest_ns`` up to this time is needed any more."""
        return self._trail.forgotten_ns

    def take_trail(self) -> TrailLog | None:
        """Take out the spans that came since the last call; None if none did."""
        return self._trail.take_log()

    def restore_trail(self, body: bytes) -> None:
        """After unpickling: know again the spans of a ``TrailLog``."""
        self.tally.spans_too_old += self._trail.restore(body, self.settings)

    @property
    def history_forgotten_ns(self) -> int:
        """No history with a ``newest_ns`` up to this time is needed any more."""
        return self._chronicle.forgotten_ns

    def take_history(self, now_ns: int, *, everything: bool = False) -> History | None:
        """Take out what a diagnosis goes by that became known since the last call.

        Args:
            now_ns: The bridge's clock.
            everything: Also what became known a moment ago.
        """
        step = self._axis.step_at(now_ns)
        room, table = self.settings.max_history_bytes, self._table
        return self._chronicle.take(
            now_ns, step, table.workers, table.names(), room, everything=everything
        )

    def end(self, *, failed: bool) -> None:
        """Take note that all workers are gone: no lease is waited for any more.

        Args:
            failed: Whether those that have said no goodbye did not end well.
        """
        self._roster.end(self._table.workers, failed=failed)

    def close_surplus(self, now_ns: int) -> list[Row]:
        """Take out what is open beyond the bounds. For the middle of a batch.

        Its workers are heard of at its end: what is complete is not known before.

        Args:
            now_ns: The bridge's clock.
        """
        now_ns = self._hearing.at(now_ns)
        steps = self._steps.close_surplus(self._table, self.settings, now_ns, self._roster.roles())
        self.tally.late += sum(step.late for step in steps)
        windows = self._windows.close_surplus(self._table, self.settings)
        closed: list[ClosedStep | ClosedWindow] = [*steps, *windows]
        closed = sorted((row for row in closed if row.values), key=lambda row: row.time_ns)
        if closed:
            self._newest_ns = max(self._newest_ns, closed[-1].time_ns)
        return [row for one in closed for row in self._rows(one)]

    def close(
        self,
        now_ns: int,
        *,
        everything: bool = False,
        report: Mapping[str, float] | None = None,
        at_most: float = math.inf,
    ) -> list[Row]:
        """Take out every row that is complete as of ``now_ns`` by the bridge's clock.

        Args:
            now_ns: The bridge's clock.
            everything: Close what is open, complete or not: nothing more will come.
            at_most: About how many values; ``has_more`` says whether some were left.
            report: What the bridge says of itself, by tracker key. It goes into the last row that
                is complete; with ``everything``, into a row of its own if there is none.
        """
        room = Room(at_most)
        clock_ns, now_ns = now_ns, self._hearing.at(now_ns)
        for worker in self._table.workers.values():
            worker.clock_is(now_ns)
        lease_ns = int(self.settings.lease_s * _NS_PER_S)
        self._roster.look(self._table.workers, lease_ns=lease_ns, now_ns=now_ns)
        self._table.forget(self.settings, now_ns)
        steps = self._steps.close(
            self._table,
            self.settings,
            now_ns,
            everything=everything,
            standings=self._roster.roles(),
            room=room,
        )
        self.tally.late += sum(step.late for step in steps)
        windows = self._windows.close(
            self._table, self.settings, now_ns, everything=everything, room=room
        )
        tables = self._tables.close(self.settings, now_ns, everything=everything, room=room)
        self.has_more = room.is_used_up
        explained = self._trail.close(
            self._axis.role,
            self.settings,
            now_ns,
            lambda: self._missed(now_ns, is_over=everything),
            everything=everything,
        )
        self.has_more |= self._trail.has_more
        numeric: list[ClosedStep | ClosedWindow] = [*steps, *windows]
        numeric = [row for row in numeric if row.values]
        if report and everything and not numeric and self._newest_ns:
            numeric = [ClosedWindow(self._newest_ns, {})]
        standings = self._standings()
        if self._notice.needs_a_row(standings, now_ns, everything=everything) and not numeric:
            numeric = [ClosedWindow(max(self._newest_ns, clock_ns), {})]
        if numeric:
            latest = max(numeric, key=lambda row: row.time_ns)
            # One wide row costs a tracker less than two.
            latest.values.update(report or {})
            latest.values.update(self._notice.take(standings, now_ns))
        self._is_watching = self._is_watching and not everything
        closed: list[_Closed]
        findings, self._findings = self._findings, []
        remarks, self._remarks = self._remarks, []
        newest_ns = max([self._newest_ns, *(row.time_ns for row in numeric)]) or clock_ns
        remarks += of_units(self._table.take_unit_changes(), newest_ns)
        remarks += of_overflowed(self._table.take_overflowed(), newest_ns)
        closed = [*numeric, *tables, *explained, *findings, *remarks]
        closed.sort(key=lambda row: row.time_ns)
        if closed:
            self._newest_ns = max(self._newest_ns, closed[-1].time_ns)
        return [row for one in closed for row in self._rows(one)]

    def _rows(self, closed: _Closed) -> Iterator[Row]:
        if isinstance(closed, Finding):
            yield from self._rows_of_finding(closed)
            return
        if isinstance(closed, Remark):
            yield self._row_of_remark(closed)
            return
        version = self._axis.version_at(closed.time_ns)
        step = None if isinstance(closed, ClosedWindow) else closed.step
        if step is None:
            step = self._axis.step_at(closed.time_ns)
        if isinstance(closed, ClosedTable):
            tables = {closed.key: closed.table(step)}
            yield Row(self._number(), step, closed.time_ns, {}, version, tables)
            return
        if isinstance(closed, Explained):
            self._chronicle.explained(self._step_facts(closed))
            workers = self._table.names()
            labels = {
                "critical_path/longest": closed.longest,
                "critical_path/trace_id": closed.trace_id,
                "critical_path/worker": workers.get(closed.worker, closed.worker),
                "health/bound": closed.bound,
                **{key: workers.get(worker, worker) for key, worker in closed.stragglers.items()},
            }
            if self.settings.trace_url:
                url = self.settings.trace_url.replace("{trace_id}", closed.trace_id)
                labels["critical_path/trace_url"] = url
            values = {**closed.values, **closed.health}
            if closed.missed:
                values["critical_path/partial"] = float(len(closed.missed))
                missed = sorted(workers.get(worker, worker) for worker in closed.missed)
                labels["critical_path/missed"] = ", ".join(missed[:_MAX_NAMED])
            yield Row(self._number(), step, closed.time_ns, values, version, labels=labels)
            return
        if isinstance(closed, ClosedStep) and closed.role == self._axis.role:
            version = version if closed.version is None else closed.version
        self._chronicle.closed(step, closed.time_ns, closed.values)
        for values in parts(closed.values):
            yield Row(self._number(), step, closed.time_ns, values, version)

    def _missed(self, now_ns: int, *, is_over: bool) -> Mapping[str, tuple[int, int]]:
        """Instances of workers whose last spans may be missing, and from when to when."""
        found = {
            worker.instance: state.unheard_ns(now_ns, is_over=is_over)
            for worker, state in self._table.workers.items()
        }
        return {instance: unheard for instance, unheard in found.items() if unheard is not None}

    def _rows_of_finding(self, finding: Finding) -> Iterator[Row]:
        version = self._axis.version_at(finding.time_ns)
        values = {"diagnosis/causes": float(len(finding.causes))}
        yield Row(
            self._number(), finding.step, finding.time_ns, values, version, labels=finding.labels
        )
        if finding.causes:
            tables = {"diagnosis/ranked": finding.table}
            yield Row(self._number(), finding.step, finding.time_ns, {}, version, tables)

    def _row_of_remark(self, remark: Remark) -> Row:
        step, version = self._axis.step_at(remark.time_ns), self._axis.version_at(remark.time_ns)
        return Row(self._number(), step, remark.time_ns, {}, version, labels=remark.labels)

    def _step_facts(self, explained: Explained) -> StepFacts:
        names = self._table.names()
        clocks = [
            (names.get(clock.worker, clock.worker), clock.ahead_ns / _NS_PER_S)
            for clock in explained.clocks
        ]
        path, busy = (
            [(role, phase, names.get(of, of), s) for (role, phase, of), s in seconds.items()]
            for seconds in (explained.path, explained.busy)
        )
        return StepFacts(explained.step, explained.time_ns, path, busy, clocks, explained.trace_id)

    def _standings(self) -> dict[str, float]:
        """How the roles stand, by tracker key."""
        values: dict[str, float] = {}
        table, last = self._table, Reduction.LAST
        for role, standing in self._roster.roles().items():
            for (name, suffix), value in zip(_STANDING, standing, strict=True):
                identity = (role, name + suffix, (), last)
                if value is not None and table.has_room_for(identity, self.settings):
                    values[table.group(role, name, (), last, suffix=suffix).key] = value
        return values

    def _number(self) -> int:
        number = self.next_number
        self.next_number += 1
        return number

    def _add(self, point: Point, received_ns: int) -> None:
        samples = len(point.values) if isinstance(point, Measurements) else 1
        stream = self._table.stream(point.series, self.settings)
        if stream is None:
            self._drop_new_series(point, samples)
            return
        self.tally.taken += samples
        match point:
            case Measurements():
                self._add_measurements(stream, point, received_ns)
            case SumPoint():
                self._add_sum(stream, point, received_ns)
            case HistogramPoint():
                self._add_histogram(stream, point, received_ns)
            case SummaryPoint():
                self._add_summary(stream, point, received_ns)

    def _drop_new_series(self, point: Point, samples: int) -> None:
        series = point.series
        if not self.tally.too_many_series:
            latest_ns = max(point.times_ns) if isinstance(point, Measurements) else point.time_ns
            self._remarks.append(of_dropped(series, self.settings, latest_ns))
        self.tally.too_many_series += samples
        before = self._dropped.get(series.worker.instance, Dropped(0, series.name))
        self._dropped[series.worker.instance] = before._replace(points=before.points + 1)

    def _is_new(
        self,
        stream: Stream,
        covers: Covered | None,
        samples: int = 1,
        *,
        step: int | None = None,
    ) -> bool:
        """Whether a point was not taken before; it is, from now on.

        Those of different steps have one time if they were collected together.
        """
        if covers is None:
            return True
        start_ns, end_ns = covers
        if self._table.is_unknown(stream, end_ns, single=not start_ns):
            self.tally.drop_as_too_old(samples)
            return False
        if start_ns:
            is_new = stream.seen.take_interval(start_ns, end_ns)
        else:
            is_new = self._table.take_time(stream, end_ns, step)
        if not is_new:
            self.tally.drop_as_duplicate(samples)
        return is_new

    def _add_measurements(self, stream: Stream, measured: Measurements, received_ns: int) -> None:
        if measured.covers is not None:
            if self._is_new(stream, measured.covers, len(measured.values)):
                self._fold_in(stream, measured, received_ns)
            return
        if measured.told_since_ns is not None:
            if self._is_change(stream, measured, measured.told_since_ns):
                self._fold_in(stream, measured, received_ns)
            return
        # Those of one point are different ones, even by a clock that is too coarse to say so.
        siblings: set[tuple[int, int | None]] = set()
        is_new = []
        for mark in zip(measured.times_ns, measured.steps, strict=True):
            is_new.append(mark in siblings or self._is_new_alone(stream, *mark))
            if is_new[-1]:
                siblings.add(mark)
        if not all(is_new):
            if not any(is_new):
                return
            measured = _part(measured, is_new)
        self._fold_in(stream, measured, received_ns)

    def _is_new_alone(self, stream: Stream, time_ns: int, step: int | None) -> bool:
        if self._table.is_unknown(stream, time_ns, single=True):
            self.tally.drop_as_too_old(1)
            return False
        if self._table.take_time(stream, time_ns, step):
            return True
        self.tally.drop_as_duplicate(1)
        return False

    def _is_change(self, stream: Stream, measured: Measurements, since_ns: int) -> bool:
        """Whether the one value of a step is another than was told of it before."""
        time_ns, value, step = measured.times_ns[0], measured.values[0], measured.steps[0]
        assert step is not None  # only steps are told again
        if self._table.is_unknown(stream, time_ns, single=True):
            self.tally.drop_as_too_old(1)
            return False
        if self._table.take_change(stream, (step, since_ns, time_ns), value):
            return True
        self.tally.drop_as_duplicate(1)
        return False

    def _fold_in(self, stream: Stream, measured: Measurements, received_ns: int) -> None:
        self._chronicle.measured(stream, measured.values, _steps_of(measured))
        self._fold(stream, measured, received_ns)

    def _fold(self, stream: Stream, measured: Measurements, received_ns: int) -> None:
        steps, values, times_ns = measured.steps, measured.values, measured.times_ns
        timed = steps.count(None)
        if not timed:
            self._add_steps(stream, cast("Sequence[int]", steps), values, times_ns, received_ns)
        elif timed == len(steps):
            self.tally.late += self._windows.add_levels(
                stream, values, times_ns, received_ns, self.settings
            )
        else:
            has_step = [step is not None for step in steps]
            self._fold(stream, _part(measured, has_step), received_ns)
            self._fold(stream, _part(measured, map(operator.not_, has_step)), received_ns)
            return
        if measured.series.name == names.RL_POLICY_VERSION and self._axis.leads(
            stream.worker, received_ns, is_step=False
        ):
            self._axis.versions.observe(
                (time_ns, int(value))
                for time_ns, value in zip(times_ns, values, strict=True)
                if is_integral(value)
            )

    def _add_steps(
        self,
        stream: Stream,
        steps: Sequence[int],
        values: Sequence[float],
        times_ns: Sequence[int],
        received_ns: int,
    ) -> None:
        self.tally.late += self._steps.add(
            stream, steps, values, times_ns, received_ns, self.settings
        )
        if self._axis.leads(stream.worker, received_ns, is_step=True):
            self._axis.steps.observe(zip(times_ns, steps, strict=True))

    def _add_sample(self, sample: TextSample, received_ns: int) -> None:
        table, role, name = self._table, sample.worker.role, sample.table
        attributes = ((names.RL_SAMPLE_TABLE, name),)
        worker = table.lease(sample.worker, self.settings)
        has_room = table.has_room_for((role, name, attributes, Reduction.LAST), self.settings)
        if worker is None or not has_room:
            self.tally.too_many_series += 1
        elif sample.time_ns <= table.forgotten_ns:
            self.tally.too_old += 1
        elif not table.take_sample(sample.time_ns, sample.digest):
            self.tally.duplicate += 1
        else:
            self.tally.taken += 1
            group = table.group(role, name, attributes, Reduction.LAST)
            self._tables.add(sample, worker, group, received_ns)

    def _add_sum(self, stream: Stream, point: SumPoint, received_ns: int) -> None:
        is_delta = point.temporality is Temporality.DELTA
        if point.series.instrument is not Instrument.COUNTER:
            self._add_level(stream, point, received_ns)
            return
        if is_delta and not self._is_new(stream, point.covers, step=point.step):
            return
        counter = stream.counter
        is_known = counter is not None and counter.time_ns > 0
        if counter is None:
            counter = CounterStream()
            if self._is_counted(point):
                counter = CounterStream.counted(point)
                self.tally.drop_as_too_old(1)
            stream.counter = counter
        increment = counter.advance(point)
        self._look_for_shared(counter, point)
        if increment is not None:
            self._chronicle.measured(stream, [increment.value])
            self.tally.late += self._windows.add_increment(
                stream, increment, point.time_ns, received_ns, self.settings
            )
        elif is_known:
            self.tally.drop_as_duplicate(1)

    def _add_level(self, stream: Stream, point: SumPoint, received_ns: int) -> None:
        """Fold in a point of an up-down counter: a level, at its step if it has one."""
        is_delta = point.temporality is Temporality.DELTA
        level = Measurements(
            point.series,
            [point.time_ns],
            [point.value],
            [point.step],
            told_since_ns=None if point.step is None else point.start_ns,
        )
        if level.told_since_ns is not None and not is_delta:
            self._add_measurements(stream, level, received_ns)
            return
        if not self._is_new(stream, point.covers, step=point.step):
            return
        stream.level = stream.level + point.value if is_delta else point.value
        self._fold_in(stream, replace(level, values=[stream.level]), received_ns)

    def _add_histogram(self, stream: Stream, point: HistogramPoint, received_ns: int) -> None:
        is_delta = point.temporality is Temporality.DELTA
        if is_delta and not self._is_new(stream, point.covers, step=point.step):
            return
        before_ns = stream.histogram.time_ns if stream.histogram is not None else 0
        if stream.histogram is None:
            stream.histogram = HistogramStream()
            if self._is_counted(point):
                stream.histogram = HistogramStream.counted(point)
                self.tally.drop_as_too_old(1)
        new = stream.histogram.advance(point)
        self._look_for_shared(stream.histogram, point)
        if new is not None:
            if new.count and new.total is not None:
                self._chronicle.measured(stream, [new.total / new.count])
            self.tally.late += self._windows.add_distribution(
                stream, new, received_ns, self.settings
            )
        elif not is_delta and point.time_ns <= before_ns:
            self.tally.drop_as_duplicate(1)

    def _look_for_shared(
        self, stream: CounterStream | HistogramStream, point: SumPoint | HistogramPoint
    ) -> None:
        """Tell once of processes that have one name at a time."""
        if len(stream.lives) < 2 or point.step is not None or self._is_told_shared:
            return
        if stream.is_shared:
            self._is_told_shared = True
            self._remarks.append(of_shared(point.series, point.time_ns))

    def _is_counted(self, point: SumPoint | HistogramPoint) -> bool:
        """Whether the first point of a series may repeat what the totals have."""
        is_cumulative = point.temporality is Temporality.CUMULATIVE
        return is_cumulative and self._table.counts_again(point.start_ns)

    def _add_summary(self, stream: Stream, point: SummaryPoint, received_ns: int) -> None:
        """Quantiles cannot be merged: the worst worker's stands for the role."""
        if not self._is_new(stream, point.covers, step=point.step):
            return
        role, name, attributes = stream.worker.role, point.series.name, point.series.attributes
        for quantile, value in point.quantiles:
            suffix = f"/p{quantile * 100:g}"
            identity = (role, name + suffix, attributes, Reduction.MAX)
            if not self._table.has_room_for(identity, self.settings):
                self.tally.too_many_series += 1
                continue
            group = self._table.group(role, name, attributes, Reduction.MAX, suffix=suffix)
            part = Stream(stream.number, stream.worker, group)
            self.tally.late += self._windows.add_levels(
                part, [value], [point.time_ns], received_ns, self.settings
            )


def _steps_of(measured: Measurements) -> Sequence[int | None]:
    return () if measured.steps[0] is None else measured.steps


def _part(measured: Measurements, selected: Iterable[bool]) -> Measurements:
    """The selected measurements, at least one."""
    rows = zip(measured.times_ns, measured.values, measured.steps, strict=True)
    times_ns, values, steps = zip(*itertools.compress(rows, selected), strict=True)
    return Measurements(measured.series, times_ns, values, steps)
