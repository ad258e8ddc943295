"""Text samples to tables: one per role, name and step, with the samples of all workers.

Samples of different workers come in different requests, so a table waits for as long as a window is
before it becomes a row. What comes later makes another one, as does what no longer fits: nothing is
left out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from otel_rl.bridge.align.room import Room
from otel_rl.bridge.align.series import Group, WorkerState
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.align.width import MAX_ROW_BYTES
from otel_rl.records import Table, TextSample, Value

__all__ = ["ClosedTable", "OpenTables"]

_NS_PER_S = 1_000_000_000

_STEP = "step"
_WORKER = "worker"


@dataclass(frozen=True, slots=True)
class ClosedTable:
    """One table, complete.

    Attributes:
        step: Of its samples; None if they have none.
        time_ns: Latest event time among them.
        key: Its tracker key.
        samples: In the order of event time, each with its worker's label.
    """

    step: int | None
    time_ns: int
    key: str
    samples: Sequence[tuple[TextSample, str]]

    def table(self, step: int) -> Table:
        """As a tracker gets it: the step, the fields in order of appearance, the worker."""
        fields = dict.fromkeys(name for sample, _ in self.samples for name in sample.fields)
        own = [name for name in fields if name not in {_STEP, _WORKER}]
        rows = [
            [step, *(sample.fields.get(name) for name in own), label]
            for sample, label in self.samples
        ]
        return Table([_STEP, *own, _WORKER], rows)


@dataclass(slots=True)
class _Table:
    """A table that waits for more.

    Attributes:
        received_ns: When its first sample came, by the bridge's clock.
        size_bytes: Of its samples, about.
        samples: Each with its worker's label.
    """

    received_ns: int
    size_bytes: int = 0
    samples: list[tuple[TextSample, str]] = field(default_factory=list)


class OpenTables:
    """The tables of one experiment that still wait for samples."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int | None], _Table] = {}
        self._full: list[tuple[str, int | None, _Table]] = []

    @property
    def is_open(self) -> bool:
        """Whether any sample waits."""
        return bool(self._open or self._full)

    def add(self, sample: TextSample, worker: WorkerState, group: Group, received_ns: int) -> None:
        """Take in a sample that is new.

        Args:
            sample: As it came.
            worker: Who reports it.
            group: Has the key of its table.
            received_ns: When it came, by the bridge's clock.
        """
        place = (group.key, sample.step)
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
        room: Room | None = None,
    ) -> Sequence[ClosedTable]:
        """Take out every table that has waited for long enough and finds room."""
        room = room or Room()
        wait_ns = int(settings.window_s * _NS_PER_S)
        closed, self._full = self._full, []
        for place, table in [*self._open.items()]:
            table.received_ns = min(table.received_ns, now_ns)  # the clock may be set back
            if everything or now_ns - table.received_ns >= wait_ns:
                if not room.take(1 + len(table.samples)):
                    break
                closed.append((*place, self._open.pop(place)))
        return [_closed(*one) for one in closed]


def _closed(key: str, step: int | None, table: _Table) -> ClosedTable:
    samples = sorted(table.samples, key=lambda one: one[0].time_ns)
    return ClosedTable(step, samples[-1][0].time_ns, key, samples)


def _size(values: Iterable[Value]) -> int:
    return sum(len(value) if isinstance(value, str) else 16 for value in values)
