"""The series, workers and tracker keys of one experiment: found, made, forgotten and pickled.

The table is pickled with every commit, and a run may have ten thousand series. So what never
changes once it is there is pickled once and kept as bytes; what changes is columns of numbers.
"""

import hashlib
import pickle
import zlib
from typing import NamedTuple

from otel_rl.bridge.align.series import Group, Stream, WorkerState
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.cumulative import CounterStream, HistogramStream
from otel_rl.bridge.keys import tracker_key, worker_key
from otel_rl.records import Series, Worker
from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument, Reduction

__all__ = ["StreamTable"]

_HISTOGRAM_STATISTICS = ("p50", "p90", "p99", "min", "max")

_NS_PER_S = 1_000_000_000

# Share of the bound on series at which the dead make room: below it, a batch of new series fits.
_CROWDED = 0.9


class _Ended(NamedTuple):
    """What must be known of a series if its worker comes back after it was forgotten."""

    counter: CounterStream | None
    histogram: HistogramStream | None
    level: float


_Attributes = tuple[tuple[str, str], ...]
_GroupIdentity = tuple[str, str, _Attributes, Reduction]
_GroupRecord = tuple[str, str, str, _Attributes, Reduction, tuple[str, ...], bool]
_SeriesRecord = tuple[str, str, _Attributes, Reduction | None]

_PROTOCOL = pickle.HIGHEST_PROTOCOL


class StreamTable:
    """Finds the stream of a series, and makes it when it is new."""

    def __init__(self) -> None:
        self.workers: dict[Worker, WorkerState] = {}
        self.groups: list[Group] = []
        self._streams: dict[Series, Stream] = {}
        self._next_stream = 0
        self._groups: dict[_GroupIdentity, Group] = {}
        self._keys: dict[str, Group] = {}
        self._own_keys: set[str] = set()
        # The indexes that were ever seen or given, by role.
        self._indexes: dict[str, set[int]] = {}
        self._ended: dict[Series, _Ended] = {}
        # What was counted before this time may be of a series that is no longer in _ended.
        self._unknown_before_ns = 0
        # The pickled part that never changes; None since it did.
        self._frozen: bytes | None = None

    def worker(self, worker: Worker) -> WorkerState:
        """The state of ``worker``; one that does not know its index gets a free one."""
        state = self.workers.get(worker)
        if state is None:
            index = self._free_index(worker.role) if worker.index is None else worker.index
            self._indexes.setdefault(worker.role, set()).add(index)
            state = self.workers[worker] = WorkerState(worker.role, str(index), worker.count)
            self._frozen = None
        return state

    def is_missing_workers(self, role: str) -> bool:
        """Whether fewer workers of the role have been seen than one of them says there are."""
        return len(self._indexes.get(role, ())) < self._expected(role)

    def stream(
        self, series: Series, settings: AlignSettings, *, instrument: Instrument
    ) -> Stream | None:
        """The stream of ``series``; None if the experiment has as many as it may."""
        stream = self._streams.get(series)
        if stream is None and len(self._streams) < settings.max_series:
            stream = self._streams[series] = self._make(series, settings, instrument)
            self._frozen = None
        return stream

    def counts_again(self, start_ns: int) -> bool:
        """Whether a new cumulative series that counts since ``start_ns`` may have been counted."""
        return 0 < start_ns <= self._unknown_before_ns

    def make_room(self, settings: AlignSettings, now_ns: int) -> None:
        """Close to the bound on series, forget everybody whose lease has ended.

        Series of the dead must not keep out those of the living.
        """
        if len(self._streams) > _CROWDED * settings.max_series:
            self.forget(settings, now_ns, away_s=settings.lease_s)

    def forget(self, settings: AlignSettings, now_ns: int, *, away_s: float | None = None) -> None:
        """Forget the workers that have not exported for ``away_s``, and their streams.

        What they counted is in the totals. How far they had counted is remembered, for as many
        series as may live, in case one of them was only away.

        Args:
            settings: Of the run.
            now_ns: The bridge's clock.
            away_s: Default ``forget_s``.
        """
        horizon_ns = now_ns - int((settings.forget_s if away_s is None else away_s) * _NS_PER_S)
        gone = {w for w, state in self.workers.items() if 0 < state.received_ns < horizon_ns}
        if not gone:
            return
        self._frozen = None
        for series in [series for series in self._streams if series.worker in gone]:
            stream = self._streams.pop(series)
            if stream.counter or stream.histogram or stream.level:
                self._ended[series] = _Ended(stream.counter, stream.histogram, stream.level)
        for worker in gone:
            del self.workers[worker]
        while len(self._ended) > settings.max_series:
            ended = self._ended.pop(next(iter(self._ended)))
            for state in (ended.counter, ended.histogram):
                if state is not None:
                    self._unknown_before_ns = max(self._unknown_before_ns, state.time_ns)

    def group(
        self,
        role: str,
        name: str,
        attributes: tuple[tuple[str, str], ...],
        reduction: Reduction,
        statistics: tuple[str, ...] = (),
        *,
        suffix: str = "",
    ) -> Group:
        """The group of these, under a key that no other group has."""
        attributes = tuple(pair for pair in attributes if pair[0] != names.RL_LOOP_ITERATION)
        identity = (role, name + suffix, attributes, reduction)
        group = self._groups.get(identity)
        if group is None:
            key = self._free_key(tracker_key(role, name, attributes) + suffix, identity)
            number = len(self.groups)
            group = Group(number, key, role, name, attributes, reduction, statistics)
            self._keep(identity, group)
        return group

    def _expected(self, role: str) -> int:
        return max((w.count or 0 for w in self.workers.values() if w.role == role), default=0)

    def _free_index(self, role: str) -> int:
        """The first index that nobody has, nor will have by the count of those who know theirs."""
        taken = self._indexes.get(role, set())
        index = self._expected(role)
        while index in taken:
            index += 1
        return index

    def _keep(self, identity: _GroupIdentity, group: Group) -> None:
        self.groups.append(group)
        self._groups[identity] = self._keys[group.key] = group
        self._frozen = None

    def _make(self, series: Series, settings: AlignSettings, instrument: Instrument) -> Stream:
        spec = names.METRICS.get(series.name)
        worker = self.worker(series.worker)
        if spec is not None:
            reduction, statistics = spec.reduction, spec.statistics
        else:
            additive = instrument in {Instrument.COUNTER, Instrument.UP_DOWN_COUNTER}
            reduction = Reduction.SUM if additive else Reduction.MEAN
            statistics = _HISTOGRAM_STATISTICS if instrument is Instrument.HISTOGRAM else ()
        group = self.group(
            worker.role,
            series.name,
            series.attributes,
            series.reduction or reduction,
            statistics,
        )
        own = None
        if settings.per_worker or (spec is not None and spec.per_worker):
            own = self._own(worker, group, settings)
        stream = Stream(self._next_stream, worker, group, own)
        self._next_stream += 1
        ended = self._ended.pop(series, None)
        if ended is not None:
            stream.counter, stream.histogram, stream.level = ended
        return stream

    def _own(self, worker: WorkerState, group: Group, settings: AlignSettings) -> Group | None:
        key = worker_key(worker.role, worker.label, group.key)
        if key not in self._own_keys and len(self._own_keys) >= settings.max_worker_series:
            return None
        self._own_keys.add(key)
        identity = (key, group.name, group.attributes, group.reduction)
        own = self._groups.get(identity)
        if own is None:
            own = Group(
                len(self.groups),
                self._free_key(key, identity),
                group.role,
                group.name,
                group.attributes,
                group.reduction,
                group.statistics,
                own=True,
            )
            self._keep(identity, own)
        return own

    def _free_key(self, key: str, identity: _GroupIdentity) -> str:
        """``key``, or a variant of it if another metric has it: ``a.b`` and ``a/b`` look alike."""
        if key not in self._keys:
            return key
        taken = self._keys[key]
        if (taken.role, taken.name, taken.attributes) == identity[:3]:
            reduced = f"{key}/{identity[3]}"
            if reduced not in self._keys:
                return reduced
        digest = hashlib.sha256(repr(identity).encode()).hexdigest()
        return f"{key}~{digest[:6]}"

    # What is pickled: bytes that are made again when something is new or forgotten, and columns of
    # what changes all the time, in the order of the workers and streams of those bytes.

    def __getstate__(self) -> "_State":
        if self._frozen is None:
            self._frozen = zlib.compress(pickle.dumps(self._identities(), _PROTOCOL), level=1)
        streams = self._streams.values()
        return _State(
            self._frozen,
            [
                (w.first_ns, w.received_ns, w.event_ns, w.newest_step, w.settled_step, w.unsettled)
                for w in self.workers.values()
            ],
            {group.number: group.total for group in self.groups if group.total},
            [stream.last_step for stream in streams],
            {
                place: (counter.start_ns, counter.time_ns, counter.value)
                for place, stream in enumerate(streams)
                if (counter := stream.counter)
            },
            {place: stream.histogram for place, stream in enumerate(streams) if stream.histogram},
            {place: stream.level for place, stream in enumerate(streams) if stream.level},
        )

    def _identities(self) -> "_Identities":
        places = {id(state): place for place, state in enumerate(self.workers.values())}
        return _Identities(
            [
                (worker.role, worker.instance, worker.index, worker.count, state.label)
                for worker, state in self.workers.items()
            ],
            [
                (identity, (g.key, g.role, g.name, g.attributes, g.reduction, g.statistics, g.own))
                for identity, g in self._groups.items()
            ],
            [
                (
                    places[id(stream.worker)],
                    (series.name, series.unit, series.attributes, series.reduction),
                    stream.number,
                    stream.group.number,
                    None if stream.own is None else stream.own.number,
                )
                for series, stream in self._streams.items()
            ],
            self._next_stream,
            self._own_keys,
            self._indexes,
            self._ended,
            self._unknown_before_ns,
        )

    def __setstate__(self, state: "_State") -> None:
        # Only this bridge's own file is ever unpickled.
        identities: _Identities = pickle.loads(zlib.decompress(state.frozen))  # noqa: S301
        self._next_stream = identities.next_stream
        self._own_keys = identities.own_keys
        self._indexes = identities.indexes
        self._ended = identities.ended
        self._unknown_before_ns = identities.unknown_before_ns
        self.workers = {
            Worker(role, instance, index, count): WorkerState(role, label, count, *changes)
            for (role, instance, index, count, label), changes in zip(
                identities.workers, state.workers, strict=True
            )
        }
        self.groups, self._groups, self._keys = [], {}, {}
        for number, (identity, group) in enumerate(identities.groups):
            self._keep(identity, Group(number, *group, state.totals.get(number, 0)))
        self._streams = {}
        workers = list(self.workers.items())
        for place, (worker_place, series, number, group_number, own_number) in enumerate(
            identities.streams
        ):
            worker, worker_state = workers[worker_place]
            counter = state.counters.get(place)
            stream = self._streams[Series(worker, *series)] = Stream(
                number,
                worker_state,
                self.groups[group_number],
                None if own_number is None else self.groups[own_number],
                state.last_steps[place],
                None if counter is None else CounterStream(*counter),
                state.histograms.get(place),
                state.levels.get(place, 0),
            )
            if stream.last_step is not None:
                worker_state.streams.append(stream)
        self._frozen = state.frozen


class _Identities(NamedTuple):
    """What of a table changes only when something is new or forgotten."""

    workers: list[tuple[str, str, int | None, int | None, str]]
    groups: list[tuple[_GroupIdentity, _GroupRecord]]
    streams: list[tuple[int, _SeriesRecord, int, int, int | None]]
    next_stream: int
    own_keys: set[str]
    indexes: dict[str, set[int]]
    ended: dict[Series, _Ended]
    unknown_before_ns: int


class _State(NamedTuple):
    """What of a table is pickled; the keys of the dicts are places in ``_Identities.streams``."""

    frozen: bytes
    workers: list[tuple[int, int, int, int | None, int | None, list[tuple[int, int]]]]
    totals: dict[int, float]
    last_steps: list[int | None]
    counters: dict[int, tuple[int, int, float]]
    histograms: dict[int, HistogramStream]
    levels: dict[int, float]
