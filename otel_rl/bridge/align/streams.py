"""The series and workers of one experiment: found, made, forgotten and pickled.

The table is pickled with every commit, and a run may have ten thousand series. So what never
changes once it is there is pickled once and kept as bytes; what changes is columns of numbers. The
single points that were taken are not pickled at all, see ``memory.py``.
"""

import pickle
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from otel_rl.bridge.align.devices import DeviceTable
from otel_rl.bridge.align.groups import GroupIdentity, GroupRecord, GroupTable, UnitChange
from otel_rl.bridge.align.memory import Memory, SeenLog
from otel_rl.bridge.align.series import Group, Standing, Stream, WorkerState
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.cumulative import CounterRecord, CounterStream, HistogramStream
from otel_rl.bridge.device import is_shared, labels_of, without_labels
from otel_rl.bridge.keys import device_key
from otel_rl.bridge.unpickle import StateRefused, unpickle
from otel_rl.records import Device, Series, Worker
from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument, Reduction

__all__ = ["StreamTable"]

# What is written beside the statistics that the registry names.
_EXTRA = {Instrument.COUNTER: ("rate",), Instrument.HISTOGRAM: ("count",)}

_HISTOGRAM_STATISTICS = ("p50", "p90", "p99", "min", "max")

_NS_PER_S = 1_000_000_000

# The number, among those of streams, under which text samples of all workers are remembered.
_SAMPLES = -1

# Share of the bound on series at which the dead make room: below it, a batch of new series fits.
_CROWDED = 0.9


class _Ended(NamedTuple):
    """What must be known of a series if its worker comes back after it was forgotten."""

    number: int
    counter: CounterStream | None
    histogram: HistogramStream | None
    level: float
    bounds: "array[int]"
    unknown_through_ns: int


_Attributes = tuple[tuple[str, str], ...]
_SeriesRecord = tuple[str, str, _Attributes, Reduction | None, Instrument, str, _Attributes, str]

_PROTOCOL = pickle.HIGHEST_PROTOCOL


class StreamTable:
    """Finds the stream of a series, and makes it when it is new."""

    def __init__(self) -> None:
        self.workers: dict[Worker, WorkerState] = {}
        self._group_table = GroupTable()
        self._device_table = DeviceTable()
        self._memory = Memory()
        self._memory.of(_SAMPLES)
        self._streams: dict[Series, Stream] = {}
        self._next_stream = 0
        # The indexes that were ever seen or given, by role.
        self._indexes: dict[str, set[int]] = {}
        # What is expected of each role, and its first free index from there on; not pickled.
        self._counts: dict[str, int] | None = None
        self._free: dict[str, tuple[int, int]] = {}
        # The streams by role; None since one is new or forgotten. Not pickled.
        self._of_roles: dict[str, list[Stream]] | None = None
        self._ended: dict[Series, _Ended] = {}
        # What was taken through this time may be of a series that is no longer in _ended.
        self._unknown_through_ns = 0
        # The pickled part that never changes; None since it did.
        self._frozen: bytes | None = None

    @property
    def groups(self) -> Sequence[Group]:
        """Every group, in the order of their numbers."""
        return self._group_table.groups

    @property
    def devices(self) -> Mapping[str, Device]:
        """The GPUs that workers report, by what their keys begin with."""
        return self._device_table.devices

    @property
    def forgotten_ns(self) -> int:
        """Single points of this time and before are remembered no longer."""
        return self._memory.forgotten_ns

    def worker(self, worker: Worker) -> WorkerState:
        """The state of ``worker``; one that does not know its index gets a free one."""
        state = self.workers.get(worker)
        if state is None:
            index = self._free_index(worker.role) if worker.index is None else worker.index
            self._indexes.setdefault(worker.role, set()).add(index)
            state = self.workers[worker] = WorkerState(worker.role, str(index), worker.count)
            self._frozen = None
            if self._counts is not None:
                self._counts[worker.role] = max(self._counts.get(worker.role, 0), worker.count or 0)
        return state

    def names(self) -> Mapping[str, str]:
        """``<role>/<index>`` of each worker, by what it calls itself."""
        return {
            worker.instance: f"{state.role}/{state.label}" for worker, state in self.workers.items()
        }

    def lease(self, worker: Worker, settings: AlignSettings) -> WorkerState | None:
        """The state of a worker that has exported; None if there are as many as there may be."""
        if worker not in self.workers and len(self.workers) >= settings.max_series:
            return None
        return self.worker(worker)

    def is_missing_workers(self, role: str) -> bool:
        """Whether fewer workers of the role have been seen than one of them says there are."""
        return len(self._indexes.get(role, ())) < self._expected(role)

    def stream(self, series: Series, settings: AlignSettings) -> Stream | None:
        """The stream of ``series``; None if the experiment has as many, or as many keys, as it may.

        Those whose key is there already are taken even when there are too many keys.
        """
        stream = self._streams.get(series)
        if stream is not None or len(self._streams) >= settings.max_series:
            return stream
        if not self.has_room_for(self._identity(series), settings):
            return None
        stream = self._streams[series] = self._make(series, settings)
        self._frozen = self._of_roles = None
        return stream

    def streams_of(self, role: str) -> Iterable[Stream]:
        """Every stream of a role's workers that is not forgotten."""
        if self._of_roles is None:
            self._of_roles = {}
            for stream in self._streams.values():
                self._of_roles.setdefault(stream.worker.role, []).append(stream)
        return self._of_roles.get(role, ())

    def has_room_for(
        self,
        identity: GroupIdentity | tuple[str, str, _Attributes, Reduction],
        settings: AlignSettings,
    ) -> bool:
        """Whether there is a group of this identity, or may be one more."""
        return self._group_table.has_room_for(GroupIdentity(*identity), settings)

    def take_unit_changes(self) -> Sequence[UnitChange]:
        """Take out the metrics that were reported in another unit since the last call."""
        return self._group_table.take_unit_changes()

    def take_overflowed(self) -> Sequence[Group]:
        """Take out, once in a run, the first group of what an SDK had no room for."""
        return self._group_table.take_overflowed()

    def counts_again(self, start_ns: int) -> bool:
        """Whether a new cumulative series that counts since ``start_ns`` may have been counted."""
        return 0 < start_ns <= self._unknown_through_ns

    def is_unknown(self, stream: Stream, time_ns: int, *, single: bool) -> bool:
        """Whether nobody can tell any more if a point of this time was taken.

        Args:
            stream: Its series.
            time_ns: The point's own time.
            single: Whether it is remembered as a single point.
        """
        return time_ns <= stream.unknown_through_ns or (single and time_ns <= self.forgotten_ns)

    def take_time(self, stream: Stream, time_ns: int, step: int | None = None) -> bool:
        """Take note of a single point. Returns whether it is new."""
        return self._memory.take_time(stream.number, time_ns, step)

    def take_change(self, stream: Stream, place: tuple[int, int, int], value: float) -> bool:
        """Take note of the value of a step. Returns whether it is another one than before.

        Args:
            stream: Its series.
            place: The step, the start that the sender gives, and the time.
            value: Its value then.
        """
        return self._memory.take_change(stream.number, place, value)

    def take_sample(self, time_ns: int, digest: int) -> bool:
        """Take note of a text sample. Returns whether it is new."""
        return self._memory.take_time(_SAMPLES, time_ns, digest)

    def take_log(self, settings: AlignSettings) -> SeenLog | None:
        """Take out the single points that were taken since the last call; None if none were."""
        return self._memory.take_log(settings.max_remembered, self._unknown_through_ns)

    def restore(self, body: bytes) -> None:
        """Remember again what ``take_log`` gave out, in any order."""
        self._memory.restore(body)

    def make_room(self, settings: AlignSettings, now_ns: int) -> None:
        """Close to the bound on series, forget everybody whose lease has ended.

        Series of the dead must not keep out those of the living.
        """
        if len(self._streams) > _CROWDED * settings.max_series:
            self.forget(settings, now_ns, away_s=settings.lease_s)

    def forget(self, settings: AlignSettings, now_ns: int, *, away_s: float | None = None) -> None:
        """Forget the workers that have not exported for ``away_s``, and their streams.

        What they counted is in the totals. What was taken of them is remembered, for as many series
        as may live, in case one of them was only away.

        Args:
            settings: Of the run.
            now_ns: The bridge's clock.
            away_s: Default ``forget_s``.
        """
        horizon_ns = now_ns - int((settings.forget_s if away_s is None else away_s) * _NS_PER_S)
        gone = {w for w, state in self.workers.items() if 0 < state.received_ns < horizon_ns}
        if not gone:
            return
        self._frozen = self._counts = self._of_roles = None
        for series in [series for series in self._streams if series.worker in gone]:
            stream = self._streams.pop(series)
            self._ended[series] = _Ended(
                stream.number,
                stream.counter,
                stream.histogram,
                stream.level,
                stream.seen.bounds,
                stream.unknown_through_ns,
            )
        for worker in gone:
            del self.workers[worker]
        while len(self._ended) > settings.max_series:
            ended = self._ended.pop(next(iter(self._ended)))
            seen = self._memory.drop(ended.number)
            counted = (c.time_ns for c in (ended.counter, ended.histogram) if c is not None)
            self._unknown_through_ns = max(self._unknown_through_ns, seen.newest_ns(), *counted)

    def group(
        self,
        role: str,
        name: str,
        attributes: tuple[tuple[str, str], ...],
        reduction: Reduction,
        statistics: tuple[str, ...] = (),
        extra: tuple[str, ...] = (),
        *,
        suffix: str = "",
        key: str = "",
    ) -> Group:
        """The group of these, under ``key`` if given, and one that no other group writes."""
        identity = GroupIdentity(role, name + suffix, attributes, reduction)
        return self._group(identity, statistics, extra, suffix=suffix, key=key)

    def _group(
        self,
        identity: GroupIdentity,
        statistics: tuple[str, ...],
        extra: tuple[str, ...],
        *,
        suffix: str = "",
        key: str = "",
        unit: str = "",
    ) -> Group:
        before = len(self.groups)
        group = self._group_table.group(
            identity, statistics, extra, suffix=suffix, key=key, unit=unit
        )
        if len(self.groups) > before:
            self._frozen = None
        return group

    def _identity(self, series: Series, role: str | None = None) -> GroupIdentity:
        """What the values of a series are reduced into: those of its role unless another is given.

        All GPUs are of no role.
        """
        return self._group_table.identify(
            series.worker.role if role is None else role,
            series.name,
            without_labels(series.name, series.attributes),
            _reduction_of(series)[0],
            series.unit,
        )

    def device_group(self, uuid: str, name: str) -> Group | None:
        """The group of what is derived for one GPU; None if it has no keys of its own."""
        prefix = self._device_table.known_prefix(uuid)
        if not prefix:
            return None
        of_one = (("hw.id", uuid),)
        return self.group("", name, of_one, Reduction.MEAN, key=device_key(prefix, name))

    def _expected(self, role: str) -> int:
        if self._counts is None:
            self._counts = {}
            for state in self.workers.values():
                most = self._counts.get(state.role, 0)
                self._counts[state.role] = max(most, state.count or 0)
        return self._counts.get(role, 0)

    def _free_index(self, role: str) -> int:
        """The first index that nobody has, nor will have by the count of those who know theirs."""
        taken = self._indexes.get(role, set())
        expected = self._expected(role)
        since, index = self._free.get(role, (expected, expected))
        if since != expected:
            index = expected
        while index in taken:  # nothing that is taken is ever free again
            index += 1
        self._free[role] = expected, index
        return index

    def _make(self, series: Series, settings: AlignSettings) -> Stream:
        spec = names.METRICS.get(series.name)
        worker = self.worker(series.worker)
        _, statistics, extra = _reduction_of(series)
        group = self._group(self._identity(series), statistics, extra, unit=series.unit)
        wider, device = self._of_device(series, worker, settings)
        own = None
        if settings.per_worker or (spec is not None and spec.per_worker):
            own = self._group_table.own(worker, group, settings)
        ended = self._ended.pop(series, None)
        if ended is not None:
            return Stream(
                ended.number,
                worker,
                group,
                own,
                wider,
                device,
                counter=ended.counter,
                histogram=ended.histogram,
                level=ended.level,
                seen=self._memory.of(ended.number),
                unknown_through_ns=ended.unknown_through_ns,
            )
        number = self._next_stream
        self._next_stream += 1
        return Stream(
            number,
            worker,
            group,
            own,
            wider,
            device,
            seen=self._memory.of(number),
            unknown_through_ns=self._unknown_through_ns,
        )

    def _of_device(
        self, series: Series, worker: WorkerState, settings: AlignSettings
    ) -> tuple[tuple[Group, ...], str]:
        """What a series of a GPU is reduced into beside its role, and the GPU if others report it.

        That is the values of all GPUs, and those of its own if it is not one too many.
        """
        labels = labels_of(series.name, series.attributes)
        if labels is None:
            return (), ""
        reduction, statistics, extra = _reduction_of(series)
        attributes = without_labels(series.name, series.attributes)
        wider = []
        of_all = self._identity(series, role="")
        if self.has_room_for(of_all, settings):
            wider.append(self._group(of_all, statistics, extra, unit=series.unit))
        prefix = self._device_table.prefix(
            labels, f"{worker.role}/{worker.label}", at_most=settings.max_devices
        )
        of_one = (*attributes, ("hw.id", labels.uuid))
        if prefix and self.has_room_for(("", series.name, of_one, reduction), settings):
            key = device_key(prefix, series.name, attributes)
            wider.append(self.group("", series.name, of_one, reduction, (), extra, key=key))
        return tuple(wider), labels.uuid if is_shared(series.name) else ""

    # What is pickled: bytes that are made again when something is new or forgotten, and columns of
    # what changes all the time, in the order of the workers and streams of those bytes.

    def __getstate__(self) -> "_State":
        if self._frozen is None:
            self._frozen = zlib.compress(pickle.dumps(self._identities(), _PROTOCOL), level=1)
        streams = self._streams.values()
        return _State(
            self._frozen,
            [
                (
                    w.first_ns,
                    w.received_ns,
                    w.event_ns,
                    w.newest_step,
                    w.settled_step,
                    w.unsettled,
                    w.standing,
                    w.gone_ns,
                    w.pause_ns,
                    w.is_replacement,
                )
                for w in self.workers.values()
            ],
            {group.number: group.total for group in self.groups if group.total},
            [stream.last_step for stream in streams],
            {
                place: counter.to_tuple()
                for place, stream in enumerate(streams)
                if (counter := stream.counter)
            },
            {place: stream.histogram for place, stream in enumerate(streams) if stream.histogram},
            {place: stream.level for place, stream in enumerate(streams) if stream.level},
            [len(stream.seen.bounds) for stream in streams],
            b"".join([stream.seen.bounds.tobytes() for stream in streams]),
            self.forgotten_ns,
            self._memory.lost_steps(),
        )

    def _identities(self) -> "_Identities":
        places = {id(state): place for place, state in enumerate(self.workers.values())}
        return _Identities(
            [
                (worker.role, worker.instance, worker.index, worker.count, state.label)
                for worker, state in self.workers.items()
            ],
            self._group_table.records(),
            [
                (
                    places[id(stream.worker)],
                    (
                        series.name,
                        series.unit,
                        series.attributes,
                        series.reduction,
                        series.instrument,
                        series.scope,
                        series.typed,
                        series.data,
                    ),
                    stream.number,
                    stream.group.number,
                    None if stream.own is None else stream.own.number,
                    tuple(group.number for group in stream.wider),
                    stream.device,
                    stream.unknown_through_ns,
                )
                for series, stream in self._streams.items()
            ],
            self._next_stream,
            self._group_table.own_keys(),
            self._indexes,
            self._ended,
            self._unknown_through_ns,
            self._device_table.devices,
        )

    def __setstate__(self, state: "_State") -> None:
        identities = unpickle(zlib.decompress(state.frozen))
        if not isinstance(identities, _Identities):
            raise StateRefused("its series are none")
        self._next_stream = identities.next_stream
        self._indexes = identities.indexes
        self._counts, self._free, self._of_roles = None, {}, None
        self._ended = identities.ended
        self._unknown_through_ns = identities.unknown_through_ns
        self._device_table = DeviceTable(identities.devices)
        self._memory = Memory(state.forgotten_ns)
        self._memory.of(_SAMPLES)
        for ended in self._ended.values():
            self._memory.of(ended.number).bounds = ended.bounds
        self.workers = {
            Worker(role, instance, index, count): WorkerState(role, label, count, *changes)
            for (role, instance, index, count, label), changes in zip(
                identities.workers, state.workers, strict=True
            )
        }
        self._group_table = GroupTable.from_records(
            identities.groups, identities.own_keys, state.totals
        )
        self._streams = {}
        workers = list(self.workers.items())
        bounds = _split(array("q", state.bounds), state.bound_counts)
        for place, (
            worker_place,
            series,
            number,
            group_number,
            own_number,
            wider_numbers,
            device,
            unknown,
        ) in enumerate(identities.streams):
            worker, worker_state = workers[worker_place]
            counter = state.counters.get(place)
            seen = self._memory.of(number)
            seen.bounds = next(bounds)
            stream = self._streams[Series(worker, *series)] = Stream(
                number,
                worker_state,
                self.groups[group_number],
                None if own_number is None else self.groups[own_number],
                tuple(self.groups[number] for number in wider_numbers),
                device,
                state.last_steps[place],
                None if counter is None else CounterStream.from_tuple(counter),
                state.histograms.get(place),
                state.levels.get(place, 0),
                seen,
                unknown,
            )
            if stream.last_step is not None:
                worker_state.streams.append(stream)
        self._memory.lose_steps(state.lost_steps)
        self._frozen = state.frozen


def _reduction_of(series: Series) -> tuple[Reduction, tuple[str, ...], tuple[str, ...]]:
    """How the values of a series become one, and what else is written of them."""
    spec = names.METRICS.get(series.name)
    extra = _EXTRA.get(series.instrument, ())
    if spec is not None:
        return series.reduction or spec.reduction, spec.statistics, extra
    additive = series.instrument in {Instrument.COUNTER, Instrument.UP_DOWN_COUNTER}
    statistics = _HISTOGRAM_STATISTICS if series.instrument is Instrument.HISTOGRAM else ()
    return series.reduction or (Reduction.SUM if additive else Reduction.MEAN), statistics, extra


def _split(column: "array[int]", counts: list[int]) -> "Iterator[array[int]]":
    start = 0
    for count in counts:
        yield column[start : start + count]
        start += count


class _Identities(NamedTuple):
    """What of a table changes only when something is new or forgotten."""

    workers: list[tuple[str, str, int | None, int | None, str]]
    groups: Sequence[GroupRecord]
    streams: list[tuple[int, _SeriesRecord, int, int, int | None, tuple[int, ...], str, int]]
    next_stream: int
    own_keys: frozenset[str]
    indexes: dict[str, set[int]]
    ended: dict[Series, _Ended]
    unknown_through_ns: int
    devices: Mapping[str, Device]


_WorkerColumns = tuple[
    int, int, int, int | None, int | None, list[tuple[int, int]], Standing, int, int, bool
]


class _State(NamedTuple):
    """What of a table is pickled; the keys of the dicts are places in ``_Identities.streams``."""

    frozen: bytes
    workers: list["_WorkerColumns"]
    totals: dict[int, float]
    last_steps: list[int | None]
    counters: dict[int, CounterRecord]
    histograms: dict[int, HistogramStream]
    levels: dict[int, float]
    bound_counts: list[int]
    bounds: bytes
    forgotten_ns: int
    lost_steps: dict[int, int]  # by stream number
