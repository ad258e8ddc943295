"""Series and workers of one experiment, in memory and in the journal.

They are stored with every commit, and a run may have ten thousand series. So the constant part is
encoded once and kept as bytes; the changing part is columns of numbers, in the order of the workers
and streams of those bytes. The accepted single points are not included, see ``dedup_log.py``.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, TypeVar

from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.bridge.rows.dedup.dedup_log import DedupMemory
from otel_rl.bridge.rows.series.cumulative import CounterStream, HistogramStream
from otel_rl.bridge.rows.series.device_table import DeviceTable
from otel_rl.bridge.rows.series.ended_streams import EndedStream, EndedStreams
from otel_rl.bridge.rows.series.key_groups import GroupTable
from otel_rl.bridge.rows.series.streams import (
    Stream,
    WorkerStanding,
    WorkerState,
    failure_from_wire,
    failure_to_wire,
)
from otel_rl.bridge.rows.series.worker_clock import WorkerClock
from otel_rl.bridge.rows.series.worker_table import WorkerTable
from otel_rl.records import Device, Series, Worker

__all__ = ["SAMPLES", "TableState"]

SAMPLES = -1
"""Stream number that stands for the text samples of all workers."""

_T = TypeVar("_T")

# Of all streams of a run, once in each commit.
_LAST_STEP: Final = attrgetter("last_step")
_BOUNDS: Final = attrgetter("seen.bounds")
_COUNTER: Final = attrgetter("counter")
_HISTOGRAM: Final = attrgetter("histogram")
_LEVEL: Final = attrgetter("level")


class TableState:
    """Everything that a table of series stores.

    Attributes:
        workers: Of the run.
        keys: Of the run, each of a group.
        devices: GPUs and hosts of the run.
        memory: Accepted points.
        streams: The series of the workers that are not forgotten.
        ended: Those of forgotten ones.
        next_stream: Number of the next new stream.
    """

    def __init__(
        self,
        workers: WorkerTable | None = None,
        keys: GroupTable | None = None,
        devices: DeviceTable | None = None,
        memory: DedupMemory | None = None,
        ended: EndedStreams | None = None,
        next_stream: int = 0,
    ) -> None:
        self.workers = workers or WorkerTable()
        self.keys = keys or GroupTable()
        self.devices = devices or DeviceTable()
        self.memory = memory or DedupMemory()
        self.memory.of(SAMPLES)
        self.ended = ended or EndedStreams()
        self.streams: dict[Series, Stream] = {}
        self.next_stream = next_stream
        self._added = 0
        # The constant part, encoded, and what it was made of.
        self._frozen: bytes | None = None
        self._frozen_at = self._changes

    def add(self, series: Series, stream: Stream) -> None:
        """Add a stream that is new or has come back."""
        self.streams[series] = stream
        self.next_stream = max(self.next_stream, stream.number + 1)
        self._added += 1

    @property
    def _changes(self) -> tuple[int, int, int]:
        """Return numbers of which one differs after a change of the constant part.

        Streams are forgotten only with their workers.
        """
        return self.workers.changes, len(self.keys.groups), self._added

    def to_wire(self) -> wire.StreamTable:
        """Return the table for the journal."""
        if self._frozen is None or self._frozen_at != self._changes:
            self._frozen = wire.compress(wire.encode(self._identities()))
            self._frozen_at = self._changes
        streams, groups = self.streams.values(), self.keys.groups
        bounds = [*map(_BOUNDS, streams)]
        unit_changes, overflowed = self.keys.unannounced()
        return wire.StreamTable(
            self._frozen,
            [_columns(worker) for worker in self.workers.states.values()],
            {group.number: group.total for group in groups if group.total},
            [*map(_LAST_STEP, streams)],
            {place: one.to_wire() for place, one in _present(map(_COUNTER, streams))},
            {place: one.to_wire() for place, one in _present(map(_HISTOGRAM, streams))},
            dict(_present(map(_LEVEL, streams))),
            [*map(len, bounds)],
            wire.packed_together(bounds),
            self.memory.forgotten_ns,
            self.memory.lost_steps(),
            [wire.UnitChange(*change) for change in unit_changes],
            [group.number for group in overflowed],
            [group.number for group in groups if group.has_shares],
        )

    def _identities(self) -> wire.Identities:
        workers, ended = self.workers.states, self.ended.streams
        places = {id(state): place for place, state in enumerate(workers.values())}
        ended_workers = {series.worker: None for series in ended}
        places_of_ended = {worker: place for place, worker in enumerate(ended_workers)}
        return wire.Identities(
            wire.VERSION,
            [(wire.copied(worker, wire.Worker), state.label) for worker, state in workers.items()],
            self.keys.to_wire(),
            [
                wire.Stream(
                    places[id(stream.worker)],
                    wire.copied(series, wire.Series),
                    stream.number,
                    stream.group.number,
                    None if stream.own is None else stream.own.number,
                    [group.number for group in stream.wider],
                    stream.device,
                    stream.unknown_through_ns,
                )
                for series, stream in self.streams.items()
            ],
            self.next_stream,
            self.keys.own_keys,
            self.workers.indexes,
            [wire.copied(worker, wire.Worker) for worker in ended_workers],
            [
                wire.Ended(
                    places_of_ended[series.worker],
                    wire.copied(series, wire.Series),
                    stream.number,
                    None if stream.counter is None else stream.counter.to_wire(),
                    None if stream.histogram is None else stream.histogram.to_wire(),
                    stream.level,
                    wire.packed(stream.bounds),
                    stream.unknown_through_ns,
                )
                for series, stream in ended.items()
            ],
            self.ended.unknown_through_ns,
            {prefix: wire.copied(one, wire.Device) for prefix, one in self.devices.devices.items()},
        )

    @classmethod
    def from_wire(cls, kept: wire.StreamTable) -> "TableState":
        """Undo ``to_wire``.

        Raises:
            StateRefused: The identities are something else.
        """
        identities = wire.decode(wire.decompress(kept.identities), wire.Identities)
        intern = wire.Interning()
        keys = GroupTable.from_wire(identities, kept, intern)
        wire.check_places(len(keys.groups), dict.fromkeys(kept.with_shares))
        for number in kept.with_shares:
            keys.groups[number].has_shares = True
        devices = {prefix: wire.restored(one, Device) for prefix, one in identities.devices.items()}
        state = cls(
            _workers(identities, kept, intern),
            keys,
            DeviceTable(devices),
            DedupMemory(kept.forgotten_ns),
            EndedStreams(identities.unknown_through_ns),
            identities.next_stream,
        )
        state._restore_ended(identities, intern)
        state._restore_streams(identities, kept, intern)
        state.memory.lose_steps(kept.lost_steps)
        state._frozen, state._frozen_at = kept.identities, state._changes
        return state

    def _restore_ended(self, identities: wire.Identities, intern: wire.Interning) -> None:
        workers = [_worker_from_wire(one, intern) for one in identities.ended_workers]
        for one in identities.ended:
            bounds = wire.integers(one.bounds)
            series = _series_from_wire(workers[one.worker], one.series, intern)
            self.ended.streams[series] = EndedStream(
                one.number,
                None if one.counter is None else CounterStream.from_wire(one.counter),
                None if one.histogram is None else HistogramStream.from_wire(one.histogram),
                wire.number(one.level),
                bounds,
                one.unknown_through_ns,
            )
            self.memory.of(one.number).bounds = bounds

    def _restore_streams(
        self, identities: wire.Identities, kept: wire.StreamTable, intern: wire.Interning
    ) -> None:
        workers, groups = [*self.workers.states.items()], self.keys.groups
        columns_of_streams = zip(
            identities.streams,
            kept.last_steps,
            _split(wire.integers(kept.bounds), kept.bound_counts),
            strict=True,
        )
        for place, (one, last_step, bounds) in enumerate(columns_of_streams):
            worker, state = workers[one.worker]
            counter, histogram = kept.counters.get(place), kept.histograms.get(place)
            seen = self.memory.of(one.number)
            seen.bounds = bounds
            stream = self.streams[_series_from_wire(worker, one.series, intern)] = Stream(
                one.number,
                state,
                groups[one.group],
                None if one.own is None else groups[one.own],
                tuple(groups[number] for number in one.wider),
                one.device,
                last_step,
                None if counter is None else CounterStream.from_wire(counter),
                None if histogram is None else HistogramStream.from_wire(histogram),
                wire.number(kept.levels.get(place, 0)),
                seen,
                one.unknown_through_ns,
            )
            if last_step is not None:
                state.streams.append(stream)


def _present(values: Iterable[_T | None]) -> Iterable[tuple[int, _T]]:
    """Return the places and values of those that are there."""
    found = [*values]
    return [(place, one) for place, one in enumerate(found) if one] if any(found) else ()


def _columns(worker: WorkerState) -> wire.WorkerColumns:
    return wire.WorkerColumns(
        worker.first_ns,
        worker.received_ns,
        worker.event_ns,
        worker.newest_step,
        worker.settled_step,
        worker.unsettled,
        worker.standing,
        worker.gone_ns,
        worker.pause_ns,
        worker.is_replacement,
        worker.sends_exit_report,
        None if worker.error is None else failure_to_wire(worker.error),
        worker.clock.to_wire(worker.shift_ns),
        worker.stepped_ns,
    )


def _workers(
    identities: wire.Identities, kept: wire.StreamTable, intern: wire.Interning
) -> WorkerTable:
    states: dict[Worker, WorkerState] = {}
    for (identity, label), columns in zip(identities.workers, kept.workers, strict=True):
        worker = _worker_from_wire(identity, intern)
        states[worker] = WorkerState(
            worker.role,
            label,
            worker.count,
            columns.first_ns,
            columns.received_ns,
            columns.event_ns,
            columns.newest_step,
            columns.settled_step,
            [*columns.unsettled],
            WorkerStanding(columns.standing),
            columns.gone_ns,
            columns.pause_ns,
            columns.is_replacement,
            columns.sends_exit_report,
            None if columns.error is None else failure_from_wire(columns.error),
            clock=WorkerClock.from_wire(columns.clock),
            shift_ns=0 if columns.clock is None else columns.clock.shift_ns,
            stepped_ns=columns.stepped_ns,
        )
    return WorkerTable(states, dict(identities.indexes))


def _worker_from_wire(kept: wire.Worker, intern: wire.Interning) -> Worker:
    return Worker(intern(kept.role), kept.instance, kept.index, kept.count)


def _series_from_wire(worker: Worker, kept: wire.Series, intern: wire.Interning) -> Series:
    return Series(
        worker,
        intern(kept.name),
        intern(kept.unit),
        intern(kept.attributes),
        kept.reduction,
        kept.instrument,
        intern(kept.scope),
        intern(kept.typed),
        intern(kept.data),
    )


def _split(column: "array[int]", counts: Sequence[int]) -> "Iterator[array[int]]":
    if sum(counts) != len(column) or any(count % 2 for count in counts):
        raise wire.StateRefused("its intervals do not add up")
    start = 0
    for count in counts:
        yield column[start : start + count]
        start += count
