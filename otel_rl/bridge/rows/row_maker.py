"""Makes numbered rows from closed steps, windows, tables, analyses, findings and warnings."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from otel_rl.bridge.rows.intake import PointIntake
from otel_rl.bridge.rows.key_catalogue import STEP, TIME, KeyCatalogue
from otel_rl.bridge.rows.messages import DataWarning, Finding
from otel_rl.bridge.rows.step_analysis import StepAnalysis
from otel_rl.bridge.rows.steps.step_closing import ClosedStep
from otel_rl.bridge.rows.table_rows import ClosedTable, parts, trace_link
from otel_rl.bridge.rows.window_rows import ClosedWindow
from otel_rl.diagnose.history.records import PARTIAL_PATH, StepFacts
from otel_rl.records import Row, Table

_NS_PER_S = 1_000_000_000

_MAX_NAMED = 8
"""Bound on named workers whose spans a step lacks; ``critical_path/partial`` counts all."""

Closed = ClosedStep | ClosedWindow | ClosedTable | StepAnalysis | Finding | DataWarning
"""Sources of rows."""


class RowMaker:
    """Numbers rows without gaps, and catalogues their keys.

    Attributes:
        keys: Catalogue with the meaning of every key that was in a row.
    """

    def __init__(self, open_data: PointIntake) -> None:
        self._open = open_data
        self.next_number = 0
        self.keys = KeyCatalogue()

    def rows(self, closed: Closed) -> Iterator[Row]:
        attempts = self._open.steps.attempts
        attempt = closed.attempt if isinstance(closed, ClosedStep) else None
        attempt = attempts.at(closed.time_ns) if attempt is None else attempt
        for row in self._rows(closed, attempt):
            attempts.has_row(attempt, row.number)
            replaces = isinstance(closed, ClosedStep) and closed.is_again
            if attempt != 1 or replaces:
                row = replace(row, attempt=attempt, replaces=replaces)  # the same
            yield row

    def _rows(self, closed: Closed, attempt: int) -> Iterator[Row]:
        if isinstance(closed, Finding):
            yield from self._rows_of_finding(closed)
            return
        if isinstance(closed, DataWarning):
            yield self._row_of_warning(closed)
            return
        version = self._open.axis.version_at(closed.time_ns)
        step = None if isinstance(closed, ClosedWindow) else closed.step
        if step is None:
            step = self._open.axis.step_at(closed.time_ns)
        if isinstance(closed, ClosedTable):
            tables = {closed.key: closed.table(step, self._open.settings.trace_url)}
            self.keys.note(tables, STEP, self._open.series.keys.find)
            yield self._row(step, closed.time_ns, {}, version, tables)
            return
        if isinstance(closed, StepAnalysis):
            self._open.history.explained(self._step_facts(closed, attempt))
            workers = self._open.series.workers.names()
            labels = {
                "critical_path/longest": closed.longest,
                "critical_path/trace_id": closed.trace_id,
                "critical_path/worker": workers.get(closed.worker, closed.worker),
                "health/bound": closed.bound,
                **{key: workers.get(worker, worker) for key, worker in closed.stragglers.items()},
            }
            if self._open.settings.trace_url:
                url = trace_link(self._open.settings.trace_url, closed.trace_id)
                labels["critical_path/trace_url"] = url
            values = {**closed.values, **closed.health, **_partial(closed)}
            if closed.missed:
                missed = sorted(workers.get(worker, worker) for worker in closed.missed)
                labels["critical_path/missed"] = ", ".join(missed[:_MAX_NAMED])
            self.keys.note(values, STEP, self._open.series.keys.find, closed.sources)
            self.keys.note_texts(labels, STEP)
            yield self._row(step, closed.time_ns, values, version, labels=labels)
            return
        if isinstance(closed, ClosedStep):
            version = self._version_of(closed, version)
        replaces = isinstance(closed, ClosedStep) and closed.is_again
        self._open.history.closed(step, closed.time_ns, closed.values, attempt, replaces=replaces)
        axis = STEP if isinstance(closed, ClosedStep) else TIME
        self.keys.note(closed.values, axis, self._open.series.keys.find)
        for values in parts(closed.values):
            yield self._row(step, closed.time_ns, values, version)

    def _version_of(self, closed: ClosedStep, present: int | None) -> int | None:
        """Return the policy version reported with a step, else that of a row that it replaces."""
        row = closed.row
        version = row.version if row is not None and closed.is_again else present
        if closed.version is not None and closed.role == self._open.axis.role:
            version = closed.version
        if row is not None:
            row.version = version
        return version

    def _rows_of_finding(self, finding: Finding) -> Iterator[Row]:
        version = self._open.axis.version_at(finding.time_ns)
        values = {"diagnosis/causes": float(len(finding.causes))}
        self.keys.note({**values, "diagnosis/ranked": None}, STEP, self._open.series.keys.find)
        self.keys.note_texts(finding.labels, STEP)
        yield self._row(
            finding.step,
            finding.time_ns,
            values,
            version,
            labels=finding.labels,
        )
        if finding.causes:
            tables = {"diagnosis/ranked": finding.table}
            yield self._row(finding.step, finding.time_ns, {}, version, tables)

    def _row_of_warning(self, warning: DataWarning) -> Row:
        step, version = (
            self._open.axis.step_at(warning.time_ns),
            self._open.axis.version_at(warning.time_ns),
        )
        self.keys.note_texts(warning.labels, TIME)
        return self._row(step, warning.time_ns, {}, version, labels=warning.labels)

    def _step_facts(self, explained: StepAnalysis, attempt: int) -> StepFacts:
        names = self._open.series.workers.names()
        clocks = [
            (names.get(clock.worker, clock.worker), clock.ahead_ns / _NS_PER_S)
            for clock in explained.clocks
        ]
        path, busy = (
            [(role, phase, names.get(of, of), s) for (role, phase, of), s in seconds.items()]
            for seconds in (explained.path, explained.busy)
        )
        return StepFacts(
            explained.step,
            explained.time_ns,
            path,
            busy,
            clocks,
            explained.trace_id,
            attempt,
            {**explained.values, **explained.health, **_partial(explained)},
        )

    def _row(
        self,
        step: int,
        time_ns: int,
        values: Mapping[str, float],
        version: int | None,
        tables: Mapping[str, Table] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Row:
        number = self.next_number
        self.next_number += 1
        return Row(number, step, time_ns, values, version, tables or {}, labels or {})


def _partial(of: StepAnalysis) -> Mapping[str, float]:
    return {PARTIAL_PATH: float(len(of.missed))} if of.missed else {}
