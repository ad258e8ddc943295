"""Series and workers of one experiment: created, found, forgotten and stored.

The table is stored with every commit, and a run may have ten thousand series. So its constant part
is encoded once and kept as bytes; the changing part is columns of numbers. The accepted single
points are not included, see ``dedup_log.py``.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.bridge.otlp.device_attributes import (
    device_metric,
    is_shared,
    labels_of,
    without_labels,
)
from otel_rl.bridge.rows.dedup.dedup_log import DedupLog, DedupMemory
from otel_rl.bridge.rows.reduce import OVER_RANKS
from otel_rl.bridge.rows.series.cumulative import CounterStream, HistogramStream
from otel_rl.bridge.rows.series.device_table import DeviceTable
from otel_rl.bridge.rows.series.key_groups import GroupIdentity, GroupTable, UnitChange
from otel_rl.bridge.rows.series.own_names import own_name_of, without_own_name
from otel_rl.bridge.rows.series.streams import (
    Group,
    Stream,
    WorkerStanding,
    WorkerState,
    failure_from_wire,
    failure_to_wire,
)
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.tracker_keys import device_key
from otel_rl.records import HOSTS, Device, Series, Worker
from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument, Reduction

__all__ = ["StreamTable"]

# Values written beside the statistics of the registry.
_EXTRA = {Instrument.COUNTER: ("rate", "per_step"), Instrument.HISTOGRAM: ("count",)}

_HISTOGRAM_STATISTICS = ("p50", "p90", "p99", "min", "max")

_NS_PER_S = 1_000_000_000

# Stream number that stands for the text samples of all workers.
_SAMPLES = -1

# Share of the bound on series above which dead workers are evicted: below it, a batch of new series
# fits.
_CROWDED = 0.9


class _Ended(NamedTuple):
    """State of a forgotten series, needed if its worker comes back."""

    number: int
    counter: CounterStream | None
    histogram: HistogramStream | None
    level: float
    bounds: "array[int]"
    unknown_through_ns: int


_Attributes = tuple[tuple[str, str], ...]


class StreamTable:
    """Finds the stream of a series, and creates new ones."""

    def __init__(self) -> None:
        self.workers: dict[Worker, WorkerState] = {}
        self._group_table = GroupTable()
        self._device_table = DeviceTable()
        self._memory = DedupMemory()
        self._memory.of(_SAMPLES)
        self._streams: dict[Series, Stream] = {}
        self._next_stream = 0
        # All indexes ever seen or assigned, by role.
        self._indexes: dict[str, set[int]] = {}
        # Expected number and first free index of each role from there on; not stored.
        self._counts: dict[str, int] | None = None
        self._free: dict[str, tuple[int, int]] = {}
        # The streams by role; None since one is new or forgotten. Not stored.
        self._of_roles: dict[str, list[Stream]] | None = None
        self._ended: dict[Series, _Ended] = {}
        # Accepted points through this time may be of a series that is no longer in _ended.
        self._unknown_through_ns = 0
        # The constant part, encoded; None since a change.
        self._frozen: bytes | None = None

    @property
    def groups(self) -> Sequence[Group]:
        """Return every group, in the order of their numbers."""
        return self._group_table.groups

    @property
    def devices(self) -> Mapping[str, Device]:
        """Return the GPUs and hosts that workers report, by the prefix of their keys."""
        return self._device_table.devices

    @property
    def forgotten_ns(self) -> int:
        """Return the time up to which single points are forgotten."""
        return self._memory.forgotten_ns

    def worker(self, worker: Worker) -> WorkerState:
        """Return the state of ``worker``; one without an index gets a free one."""
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
        """Return ``<role>/<index>`` of each worker, by its instance."""
        return {
            worker.instance: f"{state.role}/{state.label}" for worker, state in self.workers.items()
        }

    def lease(self, worker: Worker, settings: AlignSettings) -> WorkerState | None:
        """Return the state of a worker that has exported; None if there are too many workers."""
        if worker not in self.workers and len(self.workers) >= settings.max_series:
            return None
        return self.worker(worker)

    def is_missing_workers(self, role: str) -> bool:
        """Return whether fewer workers of the role have been seen than one of them reports."""
        return len(self._indexes.get(role, ())) < self._expected(role)

    def stream(self, series: Series, settings: AlignSettings) -> Stream | None:
        """Return the stream of ``series``; None if the experiment has reached a bound.

        A series with a known key is accepted even if there are too many keys.
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
        """Yield every stream of a role's workers that is not forgotten."""
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
        """Return whether a group of this identity exists or may be added."""
        return self._group_table.has_room_for(GroupIdentity(*identity), settings)

    def take_unit_changes(self) -> Sequence[UnitChange]:
        """Return the metrics with a second unit since the last call."""
        return self._group_table.take_unit_changes()

    def take_overflowed(self) -> Sequence[Group]:
        """Return, once in a run, the first overflow group of an SDK."""
        return self._group_table.take_overflowed()

    def find(self, key: str) -> tuple[Group, str] | None:
        """Return the group that writes a key of a row, and the suffix of its statistic."""
        return self._group_table.find(key)

    def counts_again(self, start_ns: int) -> bool:
        """Return whether a new cumulative series since ``start_ns`` may be counted already."""
        return 0 < start_ns <= self._unknown_through_ns

    def is_unknown(self, stream: Stream, time_ns: int, *, single: bool) -> bool:
        """Return whether a point of this time may be a repeat of a forgotten one.

        Args:
            stream: Its series.
            time_ns: The point's own time.
            single: Whether it is deduplicated as a single point.
        """
        return time_ns <= stream.unknown_through_ns or (single and time_ns <= self.forgotten_ns)

    def take_time(self, stream: Stream, time_ns: int, step: int | None = None) -> bool:
        """Record a single point. Returns whether it is new."""
        return self._memory.take_time(stream.number, time_ns, step)

    def take_change(self, stream: Stream, place: tuple[int, int, int], value: float) -> bool:
        """Record the value of a step. Returns whether it differs from the previous one.

        Args:
            stream: Its series.
            place: The step, the sender's start, and the time.
            value: The value.
        """
        return self._memory.take_change(stream.number, place, value)

    def take_sample(self, time_ns: int, digest: int) -> bool:
        """Record a text sample. Returns whether it is new."""
        return self._memory.take_time(_SAMPLES, time_ns, digest)

    def take_log(self, settings: AlignSettings) -> DedupLog | None:
        """Return the single points accepted since the last call; None if there are none."""
        return self._memory.take_log(settings.max_remembered, self._unknown_through_ns)

    def restore(self, body: bytes, settings: AlignSettings) -> None:
        """Restore the result of ``take_log``, in any order.

        Raises:
            StateRefused: It is something else.
        """
        self._memory.restore(body, settings.max_remembered)

    def make_room(self, settings: AlignSettings, now_ns: int) -> None:
        """Close to the bound on series, forget all workers with an expired lease.

        Series of dead workers must not displace those of living ones.
        """
        if len(self._streams) > _CROWDED * settings.max_series:
            self.forget(settings, now_ns, away_s=settings.lease_s)

    def forget(self, settings: AlignSettings, now_ns: int, *, away_s: float | None = None) -> None:
        """Forget the workers that have not exported for ``away_s``, and their streams.

        Their counts are in the totals. Their accepted points are kept, for as many series as may
        live, in case one of them comes back.

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
                stream.level or 0,  # as ``to_wire`` keeps it
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
        """Return the group of an identity; a new one gets ``key``, or else an unused key."""
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
        """Return the identity of a series' group: of its own role unless another is given.

        What a host reports is of no role.
        """
        if role is None:
            role = "" if _is_of_host(series) else series.worker.role
        return self._group_table.identify(
            role,
            series.name,
            _attributes_of(series),
            _reduction_of(series)[0],
            series.unit,
        )

    def device_group(self, uuid: str, name: str) -> Group | None:
        """Return the group of a derived value of one GPU; None if it has no keys of its own."""
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
        """Return the first index neither taken nor reserved by the reported worker counts."""
        taken = self._indexes.get(role, set())
        expected = self._expected(role)
        since, index = self._free.get(role, (expected, expected))
        if since != expected:
            index = expected
        while index in taken:  # a taken index is never free again
            index += 1
        self._free[role] = expected, index
        return index

    def _make(self, series: Series, settings: AlignSettings) -> Stream:
        spec = names.METRICS.get(series.name)
        worker = self.worker(series.worker)
        _, statistics, extra = _reduction_of(series)
        before = len(self.groups)
        key = ""
        if _is_of_host(series):
            key = device_key(HOSTS, series.name, without_own_name(series.attributes))
        group = self._group(self._identity(series), statistics, extra, key=key, unit=series.unit)
        if len(self.groups) > before and labels_of(series.name, series.attributes) is None:
            group.own_name, group.own_scale = own_name_of(series)
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
        """Return the further groups of a device's series, and the device if others report it.

        The groups are those of all GPUs, and its own unless there are too many devices.
        """
        labels = labels_of(series.name, series.attributes)
        if labels is None:
            return (), ""
        reduction, statistics, extra = _reduction_of(series)
        wider: list[Group] = []
        of_all = self._identity(series, role="")
        if not _is_of_host(series) and self.has_room_for(of_all, settings):
            wider.append(self._group(of_all, statistics, extra, unit=series.unit))
        prefix = self._device_table.prefix(
            labels, f"{worker.role}/{worker.label}", at_most=settings.max_devices
        )
        its_id = ("hw.id", labels.uuid) if labels.name else ("host.name", labels.host)
        of_one = (*_attributes_of(series), its_id)
        if prefix and self.has_room_for(("", series.name, of_one, reduction), settings):
            key = device_key(prefix, series.name, without_own_name(series.attributes))
            before = len(self.groups)
            one = self.group("", series.name, of_one, reduction, (), extra, key=key)
            if len(self.groups) > before:
                one.own_name, one.own_scale = own_name_of(series)
            wider.append(one)
        return tuple(wider), labels.uuid if is_shared(series.name) else ""

    # Stored form: bytes that are encoded again when a series is new or forgotten, and columns of
    # changing values, in the order of the workers and streams of those bytes.

    def to_wire(self) -> wire.StreamTable:
        """Return the table for the journal."""
        if self._frozen is None:
            self._frozen = wire.compress(wire.encode(self._identities()))
        streams = self._streams.values()
        unit_changes, overflowed = self._group_table.untold()
        return wire.StreamTable(
            self._frozen,
            [
                wire.WorkerColumns(
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
                    w.sends_exit_report,
                    None if w.error is None else failure_to_wire(w.error),
                )
                for w in self.workers.values()
            ],
            {group.number: group.total for group in self.groups if group.total},
            [stream.last_step for stream in streams],
            {
                place: counter.to_wire()
                for place, stream in enumerate(streams)
                if (counter := stream.counter)
            },
            {
                place: histogram.to_wire()
                for place, stream in enumerate(streams)
                if (histogram := stream.histogram)
            },
            {place: stream.level for place, stream in enumerate(streams) if stream.level},
            [len(stream.seen.bounds) for stream in streams],
            b"".join([wire.packed(stream.seen.bounds) for stream in streams]),
            self.forgotten_ns,
            self._memory.lost_steps(),
            [wire.UnitChange(*change) for change in unit_changes],
            [group.number for group in overflowed],
            [group.number for group in self.groups if group.has_shares],
        )

    def _identities(self) -> wire.Identities:
        places = {id(state): place for place, state in enumerate(self.workers.values())}
        ended_workers = {series.worker: None for series in self._ended}
        places_of_ended = {worker: place for place, worker in enumerate(ended_workers)}
        return wire.Identities(
            wire.VERSION,
            [(_worker_to_wire(worker), state.label) for worker, state in self.workers.items()],
            self._group_table.to_wire(),
            [
                wire.Stream(
                    places[id(stream.worker)],
                    _series_to_wire(series),
                    stream.number,
                    stream.group.number,
                    None if stream.own is None else stream.own.number,
                    [group.number for group in stream.wider],
                    stream.device,
                    stream.unknown_through_ns,
                )
                for series, stream in self._streams.items()
            ],
            self._next_stream,
            self._group_table.own_keys,
            self._indexes,
            [_worker_to_wire(worker) for worker in ended_workers],
            [
                wire.Ended(
                    places_of_ended[series.worker],
                    _series_to_wire(series),
                    ended.number,
                    None if ended.counter is None else ended.counter.to_wire(),
                    None if ended.histogram is None else ended.histogram.to_wire(),
                    ended.level,
                    wire.packed(ended.bounds),
                    ended.unknown_through_ns,
                )
                for series, ended in self._ended.items()
            ],
            self._unknown_through_ns,
            {
                prefix: wire.Device(one.uuid, one.host, one.name, one.model, one.workers)
                for prefix, one in self._device_table.devices.items()
            },
        )

    @classmethod
    def from_wire(cls, kept: wire.StreamTable) -> "StreamTable":
        """Undo ``to_wire``.

        Raises:
            StateRefused: The identities are something else.
        """
        identities = wire.decode(wire.decompress(kept.identities), wire.Identities)
        table, share = cls(), wire.Sharing()
        table._next_stream = identities.next_stream
        table._indexes = dict(identities.indexes)
        table._unknown_through_ns = identities.unknown_through_ns
        table._device_table = DeviceTable(
            {
                prefix: Device(one.uuid, one.host, one.name, one.model, one.workers)
                for prefix, one in identities.devices.items()
            }
        )
        table._memory = DedupMemory(kept.forgotten_ns)
        table._memory.of(_SAMPLES)
        table._group_table = GroupTable.from_wire(identities, kept, share)
        wire.check_places(len(table.groups), dict.fromkeys(kept.with_shares))
        for number in kept.with_shares:
            table.groups[number].has_shares = True
        table._restore_ended(identities, share)
        table._restore_streams(identities, kept, share)
        table._memory.lose_steps(kept.lost_steps)
        table._frozen = kept.identities
        return table

    def _restore_ended(self, identities: wire.Identities, share: wire.Sharing) -> None:
        workers = [_worker_from_wire(one, share) for one in identities.ended_workers]
        for one in identities.ended:
            bounds = wire.integers(one.bounds)
            self._ended[_series_from_wire(workers[one.worker], one.series, share)] = _Ended(
                one.number,
                None if one.counter is None else CounterStream.from_wire(one.counter),
                None if one.histogram is None else HistogramStream.from_wire(one.histogram),
                wire.number(one.level),
                bounds,
                one.unknown_through_ns,
            )
            self._memory.of(one.number).bounds = bounds

    def _restore_streams(
        self, identities: wire.Identities, kept: wire.StreamTable, share: wire.Sharing
    ) -> None:
        for (identity, label), columns in zip(identities.workers, kept.workers, strict=True):
            worker = _worker_from_wire(identity, share)
            self.workers[worker] = WorkerState(
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
            )
        workers, groups = [*self.workers.items()], self.groups
        columns_of_streams = zip(
            identities.streams,
            kept.last_steps,
            _split(wire.integers(kept.bounds), kept.bound_counts),
            strict=True,
        )
        for place, (one, last_step, bounds) in enumerate(columns_of_streams):
            worker, state = workers[one.worker]
            counter, histogram = kept.counters.get(place), kept.histograms.get(place)
            seen = self._memory.of(one.number)
            seen.bounds = bounds
            stream = self._streams[_series_from_wire(worker, one.series, share)] = Stream(
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


def _worker_to_wire(worker: Worker) -> wire.Worker:
    return wire.Worker(worker.role, worker.instance, worker.index, worker.count)


def _worker_from_wire(kept: wire.Worker, share: wire.Sharing) -> Worker:
    return Worker(share(kept.role), kept.instance, kept.index, kept.count)


def _series_to_wire(series: Series) -> wire.Series:
    return wire.Series(
        series.name,
        series.unit,
        series.attributes,
        series.reduction,
        series.instrument,
        series.scope,
        series.typed,
        series.data,
    )


def _series_from_wire(worker: Worker, kept: wire.Series, share: wire.Sharing) -> Series:
    return Series(
        worker,
        share(kept.name),
        share(kept.unit),
        share(kept.attributes),
        kept.reduction,
        kept.instrument,
        share(kept.scope),
        share(kept.typed),
        share(kept.data),
    )


def _reduction_of(series: Series) -> tuple[Reduction, tuple[str, ...], tuple[str, ...]]:
    """Return the reduction of a series, and its further statistics and values."""
    spec = names.METRICS.get(series.name)
    extra = _EXTRA.get(series.instrument, ())
    if spec is not None:
        statistics = spec.statistics
        is_level = series.instrument in {Instrument.GAUGE, Instrument.UP_DOWN_COUNTER}
        is_of_device = any(device_metric(series.name, series.attributes))
        if is_level and not is_of_device:  # those are over devices
            statistics = tuple(OVER_RANKS + statistic for statistic in statistics)
        return series.reduction or spec.reduction, statistics, extra
    additive = series.instrument in {Instrument.COUNTER, Instrument.UP_DOWN_COUNTER}
    statistics = _HISTOGRAM_STATISTICS if series.instrument is Instrument.HISTOGRAM else ()
    return series.reduction or (Reduction.SUM if additive else Reduction.MEAN), statistics, extra


def _is_of_host(series: Series) -> bool:
    return device_metric(series.name, series.attributes)[0] == HOSTS


def _attributes_of(series: Series) -> _Attributes:
    """Return the attributes that are part of its key."""
    return without_labels(series.name, without_own_name(series.attributes))


def _split(column: "array[int]", counts: Sequence[int]) -> "Iterator[array[int]]":
    if sum(counts) != len(column) or any(count % 2 for count in counts):
        raise wire.StateRefused("its intervals do not add up")
    start = 0
    for count in counts:
        yield column[start : start + count]
        start += count
