"""Merges text samples into tables: one for each role, name and step, with all workers' samples.

Samples of different workers come in different requests, so a table waits for the length of a window
before it becomes a row. Later samples, and those beyond the table's size, make another table: no
sample is left out.

The console of the run is such a table, too: it has the lines of all workers, each with a number. By
that number a tracker knows which lines it has.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, field

from otel_rl.bridge.journal.state import Count, Int64, Stored, check_json
from otel_rl.bridge.keys import MAX_KEY_BYTES
from otel_rl.bridge.rows.rollouts import identity_of
from otel_rl.bridge.rows.series.streams import WorkerState
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.turn import Turn
from otel_rl.records import CONSOLE, CONSOLE_COLUMNS, Table, TextSample, Value
from otel_rl.redaction import printable
from otel_rl.semconv.names import LOG_IOSTREAM

MAX_IDENTIFIED = 256
"""Samples with an id in a table: of all rollouts of a step, a tracker gets these, the page all."""

MAX_ROW_BYTES = 4 << 20
"""Approximate size of a row in JSON: a small part of W&B's limit, and of what its pages show well.
"""

_VALUE_BYTES = 32  # a double, its quotes, colon and comma

_MAX_PAIR_BYTES = MAX_KEY_BYTES + 64  # with a worker's own prefix, or a statistic

_NS_PER_S = 1_000_000_000

_STEP = "step"
_WORKER = "worker"
_TRACE_ID = "trace_id"
_TRACE_URL = "trace_url"


class TableSample(Stored, gc=False):
    """A sample in a table."""

    role: str
    label: str
    time_ns: Int64
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClosedTable:
    """A table that is ready for a row.

    Attributes:
        step: Step of the samples; None if they have none.
        time_ns: Latest event time among the samples.
        samples: The samples, in the order of event time.
        first_line: Number of the first line, if the table is a part of the run's console.
    """

    step: int | None
    time_ns: int
    key: str
    samples: Sequence[TableSample]
    first_line: int = 0

    def table(self, step: int, trace_url: str = "") -> Table:
        """Return the table for the tracker: step, fields in order of appearance, worker.

        Args:
            trace_url: See ``trace_link``; with a URL, a sample of a trace gets a link to the trace.
        """
        if self.key == CONSOLE:
            return self._console()
        fields = dict.fromkeys(name for sample in self.samples for name in sample.fields)
        own = [name for name in fields if name not in {_STEP, _WORKER}]
        found: list[Mapping[str, Value]] = [sample.fields for sample in self.samples]
        if trace_url and _TRACE_ID in own and _TRACE_URL not in own:
            own.append(_TRACE_URL)
            found = [
                {**one, _TRACE_URL: trace_link(trace_url, str(of))}
                if (of := one.get(_TRACE_ID))
                else one
                for one in found
            ]
        rows = [
            [step, *(one.get(name) for name in own), sample.label]
            for one, sample in zip(found, self.samples, strict=True)
        ]
        return Table([_STEP, *own, _WORKER], rows)

    def _console(self) -> Table:
        lines = [
            (one.time_ns, f"{one.role}/{one.label}", one.fields[LOG_IOSTREAM], line)
            for one in self.samples
            for line in _lines(one)
        ]
        return Table(
            [*CONSOLE_COLUMNS], [[n, *line] for n, line in enumerate(lines, self.first_line)]
        )


class _Table(Stored):
    """A table that waits for samples.

    Attributes:
        received_ns: Arrival of the first sample, by the bridge's clock.
        size_bytes: Approximate size of the samples.
        samples: Samples of the table, at least one.
        identified: Number of samples with an id, including samples that were left out.
    """

    received_ns: Int64
    size_bytes: Count = 0
    samples: Annotated[list[TableSample], Meta(min_length=1)] = field(default_factory=list)
    identified: Count = 0


class OpenTables(Stored):
    """Tables of one experiment that still wait for samples."""

    _open: dict[tuple[str, Int64 | None], _Table] = field(default_factory=dict)
    _full: list[tuple[str, Int64 | None, _Table]] = field(default_factory=list)
    _console_lines: Count = 0  # in closed tables

    def check(self) -> None:
        for table in (*self._open.values(), *(one[-1] for one in self._full)):
            for sample in table.samples:
                check_json(sample.fields)

    @property
    def is_open(self) -> bool:
        return bool(self._open or self._full)

    def add(self, sample: TextSample, worker: WorkerState, key: str, received_ns: int) -> bool:
        """Add a new sample. Returns False if the table has enough samples with an id."""
        place = (key, sample.step)
        table = self._open.get(place)
        if table is None:
            table = self._open[place] = _Table(received_ns)
        if identity_of(sample.fields) is not None:
            table.identified += 1
            if table.identified > MAX_IDENTIFIED:
                return False
        table.samples.append(TableSample(worker.role, worker.label, sample.time_ns, sample.fields))
        table.size_bytes += _size(sample.fields.values())
        if table.size_bytes > MAX_ROW_BYTES:
            self._full.append((*place, self._open.pop(place)))
        return True

    def close(
        self,
        settings: AlignSettings,
        now_ns: int,
        *,
        everything: bool,
        turn: Turn,
    ) -> Sequence[ClosedTable]:
        """Remove and return every table that has waited long enough.

        Args:
            now_ns: The bridge's clock, without its downtime.
            everything: Whether no more data will come.
            turn: Tables that are left once the turn is over stay open until the next call.
        """
        wait_ns = int(settings.window_s * _NS_PER_S)
        closed, self._full = self._full, []
        for place, table in [*self._open.items()]:
            table.received_ns = min(table.received_ns, now_ns)  # the clock may be set back
            if everything or now_ns - table.received_ns >= wait_ns:
                if turn.leaves_rest():
                    break
                turn.made(len(table.samples))
                closed.append((*place, self._open.pop(place)))
        return [self._closed(*one) for one in closed]

    def _closed(self, key: str, step: int | None, table: _Table) -> ClosedTable:
        samples = sorted(table.samples, key=lambda one: one.time_ns)
        first_line = self._console_lines
        if key == CONSOLE:
            self._console_lines += sum(len(_lines(sample)) for sample in samples)
        return ClosedTable(step, samples[-1].time_ns, key, samples, first_line)


def trace_link(url: str, trace_id: str) -> str:
    """Return the URL of a trace, made from a URL with ``{trace_id}`` in it."""
    return url.replace("{trace_id}", trace_id)


def _lines(sample: TableSample) -> list[str]:
    """Return the lines of a console sample, without characters that end lines or move cursors."""
    text = str(sample.fields["text"]).removesuffix("\n")
    return [printable(line, keep="\t") for line in text.split("\n")]


def _size(values: Iterable[Value]) -> int:
    return sum(len(value) if isinstance(value, str) else 16 for value in values)


def parts(values: dict[str, float], max_bytes: int = MAX_ROW_BYTES) -> Iterator[dict[str, float]]:
    """Yield the values in as few rows as needed, in their order; at least one row."""
    if len(values) * _MAX_PAIR_BYTES <= max_bytes:  # nearly always
        yield values
        return
    part: dict[str, float] = {}
    size = 0
    for key, value in values.items():
        size += len(key.encode()) + _VALUE_BYTES
        if part and size > max_bytes:
            yield part
            part, size = {}, len(key.encode()) + _VALUE_BYTES
        part[key] = value
    yield part
