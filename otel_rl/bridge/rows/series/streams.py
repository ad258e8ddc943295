"""State of a tracker key, of a worker, and of each of the worker's series."""

import dataclasses
from enum import IntEnum
from operator import attrgetter
from typing import Final, NamedTuple

from msgspec import field

from otel_rl.bridge.journal.state import Int64, Number, Stored
from otel_rl.bridge.rows.dedup.series_dedup import SeriesDedup
from otel_rl.bridge.rows.series.cumulative import CounterStream, HistogramStream
from otel_rl.bridge.rows.series.worker_clock import WorkerClock
from otel_rl.records import WorkerFailure
from otel_rl.semconv.spec import Reduction

_SHORTEST_PAUSE_NS: Final = 1_000_000_000
"""Default export interval of a worker: one export may arrive just before the next."""

_SPAN_INTERVAL_NS: Final = 5_000_000_000
"""OpenTelemetry's default span interval: spans that ended before it have been sent."""

_SETTLE_NS: Final = 250_000_000
"""Some SDKs collect one instrument after another: half an export arrives just before the rest."""

_FORGETS: Final = 8
"""Pauses of the longest length until that is forgotten, however many exports come meanwhile."""

_LAST_STEP: Final = attrgetter("last_step")


class _Slowest(NamedTuple):
    """Cached slowest series of a worker, and the state in which the cache is valid.

    The series stays the slowest until it moves: no stream goes back, and new streams are counted.
    """

    stream: "Stream"
    last_step: int
    of_streams: int


class Group(Stored, eq=False):
    """Group of values that are reduced into one tracker key. A group is never forgotten.

    Attributes:
        number: Index of the group among all groups.
        statistics: Further statistics, as suffixes of ``key``.
        extra: Suffixes of further optional values.
        own: Whether the group holds one worker's own series instead of the role's value.
        unit: Unit of the values, in one spelling; empty if none was given.
        total: Sum of everything finite that a counter counted in closed rows.
        has_shares: Whether workers send shares of steps, so that rows of steps have the group's
            growth.
        own_name: The metric's name in the framework that logged it; empty without one.
        own_scale: Factor from the framework's value to the group's value.
    """

    number: int
    key: str
    role: str
    name: str
    attributes: tuple[tuple[str, str], ...]
    reduction: Reduction
    statistics: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    own: bool = False
    unit: str = ""
    total: Number = 0
    has_shares: bool = False
    own_name: str = ""
    own_scale: float = 1.0


class WorkerStanding(IntEnum):
    """Standing of a worker: unknown, alive, ended with an exit report, or ended without one.

    SILENT workers ended without one, too, but together with all others, in a run that ended well.

    Rows wait for workers independently of this: last exports may still be in transit.
    """

    NEW = 0
    ALIVE = 1
    LEFT = 2
    FAILED = 3
    SILENT = 4


class WorkerState(Stored, eq=False, dict=True):
    """State of one process.

    Attributes:
        label: Name of the worker in its own series: its index, or its rank in the order of
            appearance.
        count: Number of workers of the role that the worker reports.
        first_ns: Time of the first export, by the bridge's clock; 0 before that.
        stepped_ns: Time of the first export with a step; 0 before that.
        received_ns: Time of the last export, by the bridge's clock.
        event_ns: The worker's data up to this time has arrived.
        newest_step: Highest step that the worker reported.
        settled_step: Every sample of the steps below this one has arrived.
        unsettled: (time, newest step then) of exports that may have held half a step.
        gone_ns: For an ended worker: its data up to this time was sent before its end.
        pause_ns: The longest recent time between two of the worker's exports.
        is_replacement: Whether the worker replaced a failed one.
        sends_exit_report: Whether the worker sends an exit report when it ends in order.
        error: The last error that has left one of the worker's steps.
        shift_ns: Nanoseconds to add to the worker's times to compare them with others'.
        streams: The worker's series that carry steps. Not stored.
        has_worked: Whether spans have told of the worker's work since the bridge started. Not
            stored.
        place: The worker's host and process id there, as told since the bridge started. Not stored.
    """

    role: str
    label: str
    count: int | None = None
    first_ns: Int64 = 0
    received_ns: Int64 = 0
    event_ns: Int64 = 0
    newest_step: Int64 | None = None
    settled_step: Int64 | None = None
    unsettled: list[tuple[Int64, Int64]] = field(default_factory=list)
    standing: WorkerStanding = WorkerStanding.NEW
    gone_ns: Int64 = 0
    pause_ns: Int64 = 0
    is_replacement: bool = False
    sends_exit_report: bool = False
    error: WorkerFailure | None = None
    clock: WorkerClock = field(default_factory=WorkerClock)
    shift_ns: Int64 = 0
    stepped_ns: Int64 = 0

    def __post_init__(self) -> None:
        self.streams: list[Stream] = []
        self.has_worked = False
        self.place: tuple[str, int | None] = ("", None)
        self._slowest: _Slowest | None = None

    @property
    def come_through_ns(self) -> int:
        """Return ``event_ns`` by the clock that all workers are compared by; 0 if it is unknown."""
        return self.event_ns + self.shift_ns if self.event_ns else 0

    def exported(self, *, received_ns: int, event_ns: int) -> None:
        """Record an export whose samples were added before.

        An export without progress, with an ``event_ns`` of 0, is a partial export, and only renews
        the worker's lease.
        """
        self.first_ns = self.first_ns or received_ns
        if self.streams and not self.stepped_ns:
            self.stepped_ns = received_ns
        if self.received_ns:
            pause_ns = received_ns - self.received_ns
            self.pause_ns = max(pause_ns, self.pause_ns - pause_ns // _FORGETS)
        self.received_ns = max(self.received_ns, received_ns)
        if not event_ns:
            return
        self.event_ns = max(self.event_ns, event_ns)
        while self.unsettled and self.unsettled[0][0] <= received_ns - _SETTLE_NS:
            self.settled_step = self.unsettled.pop(0)[1]
        if self.newest_step is not None:
            newest = self.unsettled[-1][1] if self.unsettled else self.settled_step
            if newest is None or self.newest_step > newest:
                self.unsettled.append((received_ns, self.newest_step))

    def silent_ns(self, now_ns: int, *, is_over: bool) -> tuple[int, int] | None:
        """Return the time range of spans that may never arrive; None if the worker is alive."""
        usual_ns = max(self.pause_ns, _SHORTEST_PAUSE_NS)
        if self.standing is WorkerStanding.ALIVE:
            is_missed = is_over or now_ns - self.received_ns > 3 * usual_ns
        else:
            is_missed = self.standing in (WorkerStanding.FAILED, WorkerStanding.SILENT)
        if not is_missed or not self.event_ns:
            return None
        return self.event_ns - max(usual_ns, _SPAN_INTERVAL_NS), self.event_ns + usual_ns

    def clock_is(self, now_ns: int) -> None:
        """Adjust to a bridge's clock that was set back: nothing was received later than now."""
        if self.received_ns > now_ns:
            self.received_ns, self.first_ns = now_ns, min(self.first_ns, now_ns)
            self.stepped_ns = min(self.stepped_ns, now_ns)
            self.unsettled = [(min(when_ns, now_ns), step) for when_ns, step in self.unsettled]

    def passed_below(self) -> int:
        """Return the step below which this worker reports no more.

        The worker must have reported steps.
        """
        kept = self._slowest
        if (
            kept is None
            or kept.stream.last_step != kept.last_step
            or kept.of_streams != len(self.streams)
        ):
            stream = min(self.streams, key=_LAST_STEP)
            kept = self._slowest = _Slowest(stream, stream.last_step or 0, len(self.streams))
        passed = kept.last_step
        return passed if self.settled_step is None else max(passed, self.settled_step)

    def start_again(self) -> None:
        """Forget the reported steps, because the worker's role repeats them."""
        for stream in self.streams:
            stream.last_step = None
        self.streams.clear()
        self._slowest = None
        self.unsettled.clear()
        self.newest_step = self.settled_step = None

    def has_all_of(self, step: int, *, since: int) -> bool:
        """Return whether every series that reported ``since`` or later has reached ``step``."""
        return self.newest_step == step and not any(
            stream.last_step is not None and since <= stream.last_step < step
            for stream in self.streams
        )


@dataclasses.dataclass(slots=True, eq=False)
class Stream:
    """One series of one worker.

    Attributes:
        number: Unique among all streams of the run, past ones included.
        group: Group that the values are reduced into.
        own: The worker's own group, if its key is written.
        wider: Further groups of a device's series: the device's own values, and those of all GPUs.
        device: The GPU or host of the series, if other workers may report it as well; else empty.
        last_step: Latest step that the series reported; None if it never did.
        level: Current value of an up-down counter that is sent as deltas.
        unknown_through_ns: Accepted points up to this time may have been forgotten.
    """

    number: int
    worker: WorkerState
    group: Group
    own: Group | None = None
    wider: tuple[Group, ...] = ()
    device: str = ""
    last_step: int | None = None
    counter: CounterStream | None = None
    histogram: HistogramStream | None = None
    level: float = 0
    seen: SeriesDedup = dataclasses.field(default_factory=SeriesDedup)
    unknown_through_ns: int = 0

    def has_shares(self) -> None:
        for group in (self.group, self.own):
            if group is not None:
                group.has_shares = True

    def reported(self, step: int) -> None:
        worker = self.worker
        if self.last_step is None:
            worker.streams.append(self)
        if self.last_step is None or step > self.last_step:
            self.last_step = step
        if worker.newest_step is None or step > worker.newest_step:
            worker.newest_step = step
