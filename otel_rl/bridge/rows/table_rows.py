"""Merges text samples into tables: one per role, name and step, with the samples of all workers.

Samples of different workers come in different requests, so a table waits for the length of a window
before it becomes a row. Later samples, and those beyond its size, make another one: nothing is left
out.

The console of the run is such a table, too: of all workers, with a numbered line for each of their
lines. By that number a tracker knows which lines it has.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.bridge.rows.batch_limit import BatchLimit
from otel_rl.bridge.rows.row_split import MAX_ROW_BYTES
from otel_rl.bridge.rows.series.streams import WorkerState
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import CONSOLE, CONSOLE_COLUMNS, Table, TextSample, Value, Worker
from otel_rl.redaction import printable
from otel_rl.semconv.names import LOG_IOSTREAM

__all__ = ["ClosedTable", "OpenTables", "trace_link"]

_NS_PER_S = 1_000_000_000

_STEP = "step"
_WORKER = "worker"
_TRACE_ID = "trace_id"
_TRACE_URL = "trace_url"


@dataclass(frozen=True, slots=True)
class ClosedTable:
    """Closed table.

    Attributes:
        step: Of its samples; None if they have none.
        time_ns: Latest event time among them.
        key: Its tracker key.
        samples: In the order of event time, each with its worker's label.
        first_line: Of the run's console, if this is a part of it.
    """

    step: int | None
    time_ns: int
    key: str
    samples: Sequence[tuple[TextSample, str]]
    first_line: int = 0

    def table(self, step: int, trace_url: str = "") -> Table:
        """Return the tracker's table: the step, the fields in order of appearance, the worker.

        Args:
            step: Of all its lines.
            trace_url: See ``trace_link``; with it a sample of a trace has a link to it.
        """
        if self.key == CONSOLE:
            return self._console()
        fields = dict.fromkeys(name for sample, _ in self.samples for name in sample.fields)
        own = [name for name in fields if name not in {_STEP, _WORKER}]
        found = [sample.fields for sample, _ in self.samples]
        if trace_url and _TRACE_ID in own and _TRACE_URL not in own:
            own.append(_TRACE_URL)
            found = [
                {**one, _TRACE_URL: trace_link(trace_url, str(of))}
                if (of := one.get(_TRACE_ID))
                else one
                for one in found
            ]
        rows = [
            [step, *(one.get(name) for name in own), label]
            for one, (_, label) in zip(found, self.samples, strict=True)
        ]
        return Table([_STEP, *own, _WORKER], rows)

    def _console(self) -> Table:
        lines = [
            (sample.time_ns, f"{sample.worker.role}/{label}", sample.fields[LOG_IOSTREAM], line)
            for sample, label in self.samples
            for line in _lines(sample)
        ]
        return Table(
            [*CONSOLE_COLUMNS], [[n, *line] for n, line in enumerate(lines, self.first_line)]
        )


@dataclass(slots=True)
class _Table:
    """Open table.

    Attributes:
        received_ns: Arrival of its first sample, by the bridge's clock.
        size_bytes: Approximate size of its samples.
        samples: Each with its worker's label.
    """

    received_ns: int
    size_bytes: int = 0
    samples: list[tuple[TextSample, str]] = field(default_factory=list)

    def to_wire(self, key: str, step: int | None) -> wire.Table:
        """Return the table of this key and step for the journal."""
        samples = [_to_wire(sample, label) for sample, label in self.samples]
        return wire.Table(key, step, self.received_ns, self.size_bytes, samples)

    @classmethod
    def from_wire(cls, kept: wire.Table) -> "_Table":
        """Undo ``to_wire``."""
        if not kept.samples:
            raise wire.StateRefused("a table has no sample")
        return cls(kept.received_ns, kept.size_bytes, [*map(_from_wire, kept.samples)])


class OpenTables:
    """Tables of one experiment that still wait for samples."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int | None], _Table] = {}
        self._full: list[tuple[str, int | None, _Table]] = []
        self._console_lines = 0  # in closed tables

    @property
    def is_open(self) -> bool:
        """Return whether any sample waits."""
        return bool(self._open or self._full)

    def add(self, sample: TextSample, worker: WorkerState, key: str, received_ns: int) -> None:
        """Add a new sample.

        Args:
            sample: As received.
            worker: The reporting worker.
            key: Of its table.
            received_ns: Its arrival, by the bridge's clock.
        """
        place = (key, sample.step)
        table = self._open.get(place)
        if table is None:
            table = self._open[place] = _Table(received_ns)
        table.samples.append((sample, worker.label))
        table.size_bytes += _size(sample.fields.values())
        if table.size_bytes > MAX_ROW_BYTES:
            self._full.append((*place, self._open.pop(place)))

    def close(
        self,
        settings: AlignSettings,
        now_ns: int,
        *,
        everything: bool,
        room: BatchLimit | None = None,
    ) -> Sequence[ClosedTable]:
        """Remove and return every table that has waited long enough and finds room."""
        room = room or BatchLimit()
        wait_ns = int(settings.window_s * _NS_PER_S)
        closed, self._full = self._full, []
        for place, table in [*self._open.items()]:
            table.received_ns = min(table.received_ns, now_ns)  # the clock may be set back
            if everything or now_ns - table.received_ns >= wait_ns:
                if not room.take(1 + len(table.samples)):
                    break
                closed.append((*place, self._open.pop(place)))
        return [self._closed(*one) for one in closed]

    def to_wire(self) -> wire.Tables:
        """Return the tables for the journal."""
        return wire.Tables(
            [table.to_wire(*place) for place, table in self._open.items()],
            [table.to_wire(key, step) for key, step, table in self._full],
            self._console_lines,
        )

    @classmethod
    def from_wire(cls, kept: wire.Tables) -> "OpenTables":
        """Undo ``to_wire``."""
        tables = cls()
        tables._open = {(one.key, one.step): _Table.from_wire(one) for one in kept.open}
        tables._full = [(one.key, one.step, _Table.from_wire(one)) for one in kept.full]
        tables._console_lines = kept.console_lines
        return tables

    def _closed(self, key: str, step: int | None, table: _Table) -> ClosedTable:
        samples = sorted(table.samples, key=lambda one: one[0].time_ns)
        first_line = self._console_lines
        if key == CONSOLE:
            self._console_lines += sum(len(_lines(sample)) for sample, _ in samples)
        return ClosedTable(step, samples[-1][0].time_ns, key, samples, first_line)


def trace_link(url: str, trace_id: str) -> str:
    """Return the URL of a trace, from one with ``{trace_id}`` in it."""
    return url.replace("{trace_id}", trace_id)


def _lines(sample: TextSample) -> list[str]:
    """Return the lines of a console's sample; nothing in them ends a line or moves a cursor."""
    text = str(sample.fields["text"]).removesuffix("\n")
    return [printable(line, keep="\t") for line in text.split("\n")]


def _to_wire(sample: TextSample, label: str) -> wire.Sample:
    return wire.Sample(
        wire.copied(sample.worker, wire.Worker),
        sample.table,
        sample.step,
        sample.time_ns,
        sample.fields,
        sample.digest,
        label,
    )


def _from_wire(kept: wire.Sample) -> tuple[TextSample, str]:
    sample = TextSample(
        wire.restored(kept.worker, Worker),
        kept.table,
        kept.step,
        kept.time_ns,
        wire.fields(kept.fields),
        kept.digest,
    )
    return sample, kept.label


def _size(values: Iterable[Value]) -> int:
    return sum(len(value) if isinstance(value, str) else 16 for value in values)
