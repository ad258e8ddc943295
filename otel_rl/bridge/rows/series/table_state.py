"""Series and workers of one experiment, in memory and in the journal.

Series and workers are stored with every commit, and a run may have ten thousand series. So the
constant part is encoded once and kept as bytes; the changing part is columns of numbers, in the
order of the workers and streams in those bytes. The accepted single points are not included, see
``dedup_log.py``.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final, TypeVar

from otel_rl.bridge.journal.state import (
    Count,
    Int64,
    Integers,
    Number,
    StateRefused,
    Stored,
    check_places,
    compress,
    decode,
    decompress,
    encode,
)
from otel_rl.bridge.rows.dedup.dedup_log import DedupMemory
from otel_rl.bridge.rows.series.cumulative import (
    CounterLives,
    CounterStream,
    HistogramLives,
    HistogramStream,
)
from otel_rl.bridge.rows.series.key_groups import GroupIdentity, GroupTable, UnitChange
from otel_rl.bridge.rows.series.streams import Group, Stream, WorkerState
from otel_rl.bridge.rows.series.worker_table import DeviceTable, WorkerTable
from otel_rl.records import Device, Series, Worker
from otel_rl.semconv.spec import Instrument, Reduction

SAMPLES = -1
"""Stream number that stands for the text samples of all workers."""

_T = TypeVar("_T")

# Of all streams of a run, once in each commit.
_LAST_STEP: Final = attrgetter("last_step")
_BOUNDS: Final = attrgetter("seen.bounds")
_COUNTER: Final = attrgetter("counter")
_HISTOGRAM: Final = attrgetter("histogram")
_LEVEL: Final = attrgetter("level")
_KIND: Final = attrgetter(
    *("name", "unit", "attributes", "reduction", "instrument", "scope", "typed", "data")
)


_Attributes = tuple[tuple[str, str], ...]

_Kind = tuple[str, str, _Attributes, Reduction | None, Instrument, str, _Attributes, str]
"""A series without its worker: the fields of ``Series``, in order. Workers have the same ones."""


class _EndedStream(Stored, gc=False):
    """State of a forgotten series, which is needed if its worker returns."""

    number: Count
    counter: CounterLives | None
    histogram: HistogramLives | None
    level: Number
    bounds: Integers
    unknown_through_ns: Int64


class EndedStreams:
    """Series of forgotten workers, at most as many as may live. Their counts are in the totals.

    Attributes:
        streams: The kept series; the first is dropped first.
        unknown_through_ns: Accepted points up to this time may belong to a dropped series.
    """

    def __init__(self, unknown_through_ns: int = 0) -> None:
        self.streams: dict[Series, _EndedStream] = {}
        self.unknown_through_ns = unknown_through_ns

    def end(self, series: Series, stream: Stream) -> None:
        self.streams[series] = _EndedStream(
            stream.number,
            None if stream.counter is None else stream.counter.stored(),
            None if stream.histogram is None else stream.histogram.stored(),
            stream.level or 0,  # as the journal keeps it
            stream.seen.bounds,
            stream.unknown_through_ns,
        )

    def take(self, series: Series, stream: Stream) -> bool:
        """Give a new stream of the series what is known of it. Returns whether it is known."""
        ended = self.streams.pop(series, None)
        if ended is None:
            return False
        stream.number, stream.level = ended.number, ended.level
        stream.unknown_through_ns = ended.unknown_through_ns
        if ended.counter is not None:
            stream.counter = CounterStream.restored(ended.counter)
        if ended.histogram is not None:
            stream.histogram = HistogramStream.restored(ended.histogram)
        return True

    def drop_surplus(self, max_series: int, memory: DedupMemory) -> None:
        """Drop all but ``max_series`` series, with their accepted points."""
        while len(self.streams) > max_series:
            ended = self.streams.pop(next(iter(self.streams)))
            seen = memory.drop(ended.number)
            # The first field of the lives is the time of their latest point.
            counted = (c[0] for c in (ended.counter, ended.histogram) if c is not None)
            self.unknown_through_ns = max(self.unknown_through_ns, seen.newest_ns(), *counted)

    def counts_again(self, start_ns: int) -> bool:
        """Return whether a new cumulative series since ``start_ns`` may be counted already."""
        return 0 < start_ns <= self.unknown_through_ns


class _StoredStream(Stored, gc=False):
    """A stream: places of its worker, kind and groups; its number; its device."""

    worker: Count
    kind: Count
    number: Count
    group: Count
    own: Count | None
    wider: tuple[Count, ...]
    device: str
    unknown_through_ns: Int64


class Identities(Stored):
    """The part of a table that changes only when an entry is added or forgotten.

    ``ended`` has the series of forgotten workers, each with its places in ``ended_workers`` and
    ``kinds``.
    """

    workers: Sequence[Worker]
    kinds: Sequence[_Kind]
    groups: Sequence[tuple[GroupIdentity, Group]]
    streams: Sequence[_StoredStream]
    next_stream: Count
    own_keys: set[str]
    indexes: dict[str, set[int]]
    ended_workers: Sequence[Worker]
    ended: Sequence[tuple[Count, Count, _EndedStream]]
    unknown_through_ns: Int64
    devices: Mapping[str, Device]


class StoredTable(Stored):
    """Series and workers as stored. Keys of dicts and places in lists are those of the streams.

    ``identities`` is the compressed encoding of ``Identities``, which change seldom; ``totals`` are
    by group.
    """

    identities: bytes
    workers: Sequence[WorkerState]
    totals: Mapping[Count, Number]
    last_steps: Sequence[Int64 | None]
    counters: Mapping[Count, CounterLives]
    histograms: Mapping[Count, HistogramLives]
    levels: Mapping[Count, Number]
    bound_counts: Sequence[Count]
    bounds: Integers
    forgotten_ns: Int64
    lost_steps: Mapping[int, Int64]
    unit_changes: Sequence[UnitChange]
    overflowed: Sequence[Count]
    with_shares: set[Count]


class TableState:
    """Everything of a table of series that is stored."""

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
        self.streams[series] = stream
        self.next_stream = max(self.next_stream, stream.number + 1)
        self._added += 1

    @property
    def _changes(self) -> tuple[int, int, int]:
        """Return numbers of which at least one differs after a change of the constant part.

        Streams are forgotten only with their workers.
        """
        return self.workers.changes, len(self.keys.groups), self._added

    def stored(self) -> StoredTable:
        if self._frozen is None or self._frozen_at != self._changes:
            self._frozen = compress(encode(self._identities()))
            self._frozen_at = self._changes
        streams, groups = self.streams.values(), self.keys.groups
        bounds = [*map(_BOUNDS, streams)]
        unit_changes, overflowed = self.keys.unannounced()
        return StoredTable(
            self._frozen,
            [*self.workers.states.values()],
            {group.number: group.total for group in groups if group.total},
            [*map(_LAST_STEP, streams)],
            {place: one.stored() for place, one in _present(map(_COUNTER, streams))},
            {place: one.stored() for place, one in _present(map(_HISTOGRAM, streams))},
            dict(_present(map(_LEVEL, streams))),
            [*map(len, bounds)],
            array("q", b"".join(bounds)),
            self.memory.forgotten_ns,
            self.memory.lost_steps(),
            unit_changes,
            [group.number for group in overflowed],
            {group.number for group in groups if group.has_shares},
        )

    def _identities(self) -> Identities:
        workers, ended = self.workers.states, self.ended.streams
        places = {id(state): place for place, state in enumerate(workers.values())}
        ended_workers = {series.worker: None for series in ended}
        places_of_ended = {worker: place for place, worker in enumerate(ended_workers)}
        kinds: dict[_Kind, int] = {}
        for series in chain(self.streams, ended):
            kinds.setdefault(_KIND(series), len(kinds))
        return Identities(
            [*workers],
            [*kinds],
            self.keys.stored(),
            [
                _StoredStream(
                    places[id(stream.worker)],
                    kinds[_KIND(series)],
                    stream.number,
                    stream.group.number,
                    None if stream.own is None else stream.own.number,
                    tuple(group.number for group in stream.wider),
                    stream.device,
                    stream.unknown_through_ns,
                )
                for series, stream in self.streams.items()
            ],
            self.next_stream,
            self.keys.own_keys,
            self.workers.indexes,
            [*ended_workers],
            [
                (places_of_ended[series.worker], kinds[_KIND(series)], stream)
                for series, stream in ended.items()
            ],
            self.ended.unknown_through_ns,
            self.devices.devices,
        )

    @classmethod
    def restored(cls, kept: StoredTable) -> "TableState":
        identities = decode(decompress(kept.identities), Identities)
        groups = [group for _, group in identities.groups]
        check_places(len(groups), kept.totals, dict.fromkeys(kept.with_shares))
        for number, group in enumerate(groups):
            if group.number != number:
                raise StateRefused("its groups have other numbers than places")
            group.total, group.has_shares = kept.totals.get(number, 0), number in kept.with_shares
        states = dict(zip(identities.workers, kept.workers, strict=True))
        state = cls(
            WorkerTable(states, identities.indexes),
            GroupTable(identities.groups, identities.own_keys, kept.unit_changes, kept.overflowed),
            DeviceTable(identities.devices),
            DedupMemory(kept.forgotten_ns),
            EndedStreams(identities.unknown_through_ns),
            identities.next_stream,
        )
        state._restore_ended(identities)
        state._restore_streams(identities, kept)
        state.memory.lose_steps(kept.lost_steps)
        state._frozen, state._frozen_at = kept.identities, state._changes
        return state

    def _restore_ended(self, identities: Identities) -> None:
        for worker, kind, one in identities.ended:
            series = Series(identities.ended_workers[worker], *identities.kinds[kind])
            self.ended.streams[series] = one
            self.memory.of(one.number).bounds = one.bounds

    def _restore_streams(self, identities: Identities, kept: StoredTable) -> None:
        workers, groups = [*self.workers.states.items()], self.keys.groups
        columns_of_streams = zip(
            identities.streams, kept.last_steps, _split(kept.bounds, kept.bound_counts), strict=True
        )
        for place, (one, last_step, bounds) in enumerate(columns_of_streams):
            worker, state = workers[one.worker]
            counter, histogram = kept.counters.get(place), kept.histograms.get(place)
            seen = self.memory.of(one.number)
            seen.bounds = bounds
            stream = self.streams[Series(worker, *identities.kinds[one.kind])] = Stream(
                one.number,
                state,
                groups[one.group],
                None if one.own is None else groups[one.own],
                tuple(groups[number] for number in one.wider),
                one.device,
                last_step,
                None if counter is None else CounterStream.restored(counter),
                None if histogram is None else HistogramStream.restored(histogram),
                kept.levels.get(place, 0),
                seen,
                one.unknown_through_ns,
            )
            if last_step is not None:
                state.streams.append(stream)


def _present(values: Iterable[_T | None]) -> Iterable[tuple[int, _T]]:
    found = [*values]
    return [(place, one) for place, one in enumerate(found) if one] if any(found) else ()


def _split(column: "array[int]", counts: Sequence[int]) -> "Iterator[array[int]]":
    if sum(counts) != len(column) or any(count % 2 for count in counts):
        raise StateRefused("its intervals do not add up")
    start = 0
    for count in counts:
        yield column[start : start + count]
        start += count
