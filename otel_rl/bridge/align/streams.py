"""Series as the aligner knows them: their tracker key, their reduction and their last state."""

import hashlib
from dataclasses import dataclass, field

from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.cumulative import CounterStream, HistogramStream
from otel_rl.bridge.keys import tracker_key, worker_key
from otel_rl.records import Series, Worker
from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument, Reduction

__all__ = ["Group", "Stream", "StreamTable", "WorkerState"]

_HISTOGRAM_STATISTICS = ("p50", "p90", "p99", "min", "max")


@dataclass(slots=True, eq=False)
class Group:
    """Everything that is reduced into one tracker key.

    Attributes:
        key: The tracker key.
        role: The workers' role.
        name: The metric's name.
        attributes: The points' attributes.
        reduction: How values become one.
        statistics: What else is written, as suffixes of ``key``.
        total: Of a counter: everything counted in rows that are closed.
        own: Whether it holds one worker's own series, not the role's value.
    """

    key: str
    role: str
    name: str
    attributes: tuple[tuple[str, str], ...]
    reduction: Reduction
    statistics: tuple[str, ...] = ()
    total: float = 0
    own: bool = False


@dataclass(slots=True, eq=False)
class WorkerState:
    """What is known of one process.

    Attributes:
        role: Its role.
        label: How its own series are named: its index, or its place in the order of appearance.
        received_ns: When it last exported, by the bridge's clock.
        event_ns: Latest event time in its exports.
        newest_step: Highest step that it reported.
        settled_step: Every sample of the steps below this one has arrived.
        streams: Its series that carry steps.
    """

    role: str
    label: str
    count: int | None = None
    received_ns: int = 0
    event_ns: int = 0
    newest_step: int | None = None
    settled_step: int | None = None
    unsettled: list[tuple[int, int]] = field(default_factory=list)
    streams: list["Stream"] = field(default_factory=list)

    def exported(self, *, received_ns: int, event_ns: int, settle_ns: int) -> None:
        """Take note of an export whose samples are already in."""
        while self.unsettled and self.unsettled[0][0] <= received_ns - settle_ns:
            self.settled_step = self.unsettled.pop(0)[1]
        if self.newest_step is not None:
            newest = self.unsettled[-1][1] if self.unsettled else self.settled_step
            if newest is None or self.newest_step > newest:
                self.unsettled.append((received_ns, self.newest_step))
        self.received_ns = max(self.received_ns, received_ns)
        self.event_ns = max(self.event_ns, event_ns)

    def passed(self, step: int) -> bool:
        """Whether no more of ``step`` is to be expected from this worker."""
        if self.settled_step is not None and step < self.settled_step:
            return True
        return all(
            stream.last_step is not None and stream.last_step > step for stream in self.streams
        )


@dataclass(slots=True, eq=False)
class Stream:
    """One series of one worker.

    Attributes:
        worker: Who reports it.
        group: What it is reduced into.
        own: The worker's own key, if that is written.
        last_step: Latest step it reported, None if it never did.
        counter: State of a cumulative sum.
        histogram: State of a cumulative histogram.
        level: Current value of an up-down counter that is sent as deltas.
    """

    worker: WorkerState
    group: Group
    own: Group | None = None
    last_step: int | None = None
    counter: CounterStream = field(default_factory=CounterStream)
    histogram: HistogramStream = field(default_factory=HistogramStream)
    level: float = 0


class StreamTable:
    """Finds the stream of a series, and makes it when it is new."""

    def __init__(self) -> None:
        self.workers: dict[Worker, WorkerState] = {}
        self._streams: dict[Series, Stream] = {}
        self._groups: dict[tuple[str, str, object, Reduction], Group] = {}
        self._keys: dict[str, Group] = {}
        self._own_keys: set[str] = set()
        self._unnumbered: dict[str, int] = {}

    def worker(self, worker: Worker) -> WorkerState:
        """The state of ``worker``; one that does not know its index gets the next number."""
        state = self.workers.get(worker)
        if state is None:
            if worker.index is not None:
                label = str(worker.index)
            else:
                place = self._unnumbered.get(worker.role, 0)
                self._unnumbered[worker.role] = place + 1
                label = str(place)
            state = self.workers[worker] = WorkerState(worker.role, label, worker.count)
        return state

    def stream(
        self, series: Series, settings: AlignSettings, *, instrument: Instrument
    ) -> Stream | None:
        """The stream of ``series``; None if the experiment has as many as it may."""
        stream = self._streams.get(series)
        if stream is None and len(self._streams) < settings.max_series:
            stream = self._streams[series] = self._make(series, settings, instrument)
        return stream

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
            group = Group(key, role, name, attributes, reduction, statistics)
            self._groups[identity] = self._keys[key] = group
        return group

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
        return Stream(worker, group, own)

    def _own(self, worker: WorkerState, group: Group, settings: AlignSettings) -> Group | None:
        key = worker_key(worker.role, worker.label, group.key)
        if key not in self._own_keys and len(self._own_keys) >= settings.max_worker_series:
            return None
        self._own_keys.add(key)
        identity = (key, group.name, group.attributes, group.reduction)
        own = self._groups.get(identity)
        if own is None:
            own = Group(
                self._free_key(key, identity),
                group.role,
                group.name,
                group.attributes,
                group.reduction,
                group.statistics,
                own=True,
            )
            self._groups[identity] = self._keys[own.key] = own
        return own

    def _free_key(self, key: str, identity: tuple[str, str, object, Reduction]) -> str:
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
