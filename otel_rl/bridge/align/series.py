"""What is known of a tracker key, of a worker and of each of its series."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from otel_rl.bridge.align.seen import Seen
from otel_rl.bridge.cumulative import CounterStream, HistogramStream
from otel_rl.semconv.spec import Reduction

__all__ = ["Group", "Standing", "Stream", "WorkerState"]

_SHORTEST_PAUSE_NS: Final = 1_000_000_000
"""Between two exports of a worker by default: one may come sooner than the next."""

_SPAN_INTERVAL_NS: Final = 5_000_000_000
"""OpenTelemetry's default: what ended before that has been sent."""


@dataclass(slots=True, eq=False)
class Group:
    """Everything that is reduced into one tracker key. Never forgotten.

    Attributes:
        number: Its place among the groups.
        key: The tracker key.
        role: The workers' role.
        name: The metric's name.
        attributes: The points' attributes.
        reduction: How values become one.
        statistics: What else is written, as suffixes of ``key``.
        extra: What else may be written, as further suffixes.
        own: Whether it holds one worker's own series, not the role's value.
        unit: Of its values, in one spelling; empty if none was given.
        total: Of a counter: everything finite that was counted in rows that are closed.
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
    total: float = 0


class Standing(IntEnum):
    """What a worker is to the roster: not noted yet, or alive, gone with a goodbye, gone without.

    Who is silent has gone without one, too, but with all others and when all went well.

    Not what rows wait for: what it has sent last may still be on its way.
    """

    NEW = 0
    ALIVE = 1
    LEFT = 2
    FAILED = 3
    SILENT = 4


@dataclass(slots=True, eq=False)
class WorkerState:
    """What is known of one process.

    Attributes:
        role: Its role.
        label: How its own series are named: its index, or its place in the order of appearance.
        count: How many workers of the role it says there are.
        first_ns: When it first exported, by the bridge's clock; 0 before that.
        received_ns: When it last exported, by the bridge's clock.
        event_ns: What it recorded up to this time has arrived.
        newest_step: Highest step that it reported.
        settled_step: Every sample of the steps below this one has arrived.
        unsettled: (when, newest step then) of exports that may have held half a step.
        standing: In the roster.
        gone_ns: If it is gone: what it recorded up to this time was sent before that.
        pause_ns: The longest time between two of its exports, lately.
        is_replacement: Whether it has come in the place of one that failed.
        says_goodbye: Whether it does so when it ends in order.
        streams: Its series that carry steps.
    """

    role: str
    label: str
    count: int | None = None
    first_ns: int = 0
    received_ns: int = 0
    event_ns: int = 0
    newest_step: int | None = None
    settled_step: int | None = None
    unsettled: list[tuple[int, int]] = field(default_factory=list)
    standing: Standing = Standing.NEW
    gone_ns: int = 0
    pause_ns: int = 0
    is_replacement: bool = False
    says_goodbye: bool = False
    streams: list["Stream"] = field(default_factory=list)

    def exported(self, *, received_ns: int, event_ns: int, settle_ns: int) -> None:
        """Take note of an export whose samples are already in.

        One that does not say how far the worker has come, with an ``event_ns`` of 0, is a part of
        what it has to say, and keeps its lease only.
        """
        self.first_ns = self.first_ns or received_ns
        if self.received_ns:
            self.pause_ns = max(received_ns - self.received_ns, self.pause_ns * 19 // 20)
        self.received_ns = max(self.received_ns, received_ns)
        if not event_ns:
            return
        self.event_ns = max(self.event_ns, event_ns)
        while self.unsettled and self.unsettled[0][0] <= received_ns - settle_ns:
            self.settled_step = self.unsettled.pop(0)[1]
        if self.newest_step is not None:
            newest = self.unsettled[-1][1] if self.unsettled else self.settled_step
            if newest is None or self.newest_step > newest:
                self.unsettled.append((received_ns, self.newest_step))

    def unheard_ns(self, now_ns: int, *, is_over: bool) -> tuple[int, int] | None:
        """From when to when it may have made spans that never arrive; None if it is here.

        Args:
            now_ns: The bridge's clock.
            is_over: Whether nothing more will be heard of anybody.
        """
        usual_ns = max(self.pause_ns, _SHORTEST_PAUSE_NS)
        if self.standing is Standing.ALIVE:
            is_missed = is_over or now_ns - self.received_ns > 3 * usual_ns
        else:
            is_missed = self.standing in (Standing.FAILED, Standing.SILENT)
        if not is_missed or not self.event_ns:
            return None
        return self.event_ns - max(usual_ns, _SPAN_INTERVAL_NS), self.event_ns + usual_ns

    def clock_is(self, now_ns: int) -> None:
        """If the bridge's clock was set back: nothing was received later than now."""
        if self.received_ns > now_ns:
            self.received_ns, self.first_ns = now_ns, min(self.first_ns, now_ns)
            self.unsettled = [(min(when_ns, now_ns), step) for when_ns, step in self.unsettled]

    def passed_below(self) -> int:
        """No more of the steps below this one is to be expected from this worker.

        The worker must have reported steps.
        """
        passed = min(stream.last_step or 0 for stream in self.streams)
        return passed if self.settled_step is None else max(passed, self.settled_step)

    def start_again(self) -> None:
        """Forget which steps it has reported: its role makes them again."""
        for stream in self.streams:
            stream.last_step = None
        self.streams.clear()
        self.unsettled.clear()
        self.newest_step = self.settled_step = None

    def has_all_of(self, step: int, *, since: int) -> bool:
        """Whether every series that reported ``since`` or later has come to ``step``."""
        return self.newest_step == step and not any(
            stream.last_step is not None and since <= stream.last_step < step
            for stream in self.streams
        )


@dataclass(slots=True, eq=False)
class Stream:
    """One series of one worker.

    Attributes:
        number: No other stream of the run has or had it.
        worker: Who reports it.
        group: What it is reduced into.
        own: The worker's own key, if that is written.
        wider: What else it is reduced into: of a GPU, the device's own values and those of all.
        device: The GPU that it is about, which others may report as well; else empty.
        last_step: Latest step it reported, None if it never did.
        counter: State of a monotonic sum.
        histogram: State of a histogram.
        level: Current value of an up-down counter that is sent as deltas.
        seen: What was taken of it.
        unknown_through_ns: What was taken of it through this time may have been forgotten.
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
    seen: Seen = field(default_factory=Seen)
    unknown_through_ns: int = 0

    def reported(self, step: int) -> None:
        """Take note that it has come to ``step``."""
        worker = self.worker
        if self.last_step is None:
            worker.streams.append(self)
        if self.last_step is None or step > self.last_step:
            self.last_step = step
        if worker.newest_step is None or step > worker.newest_step:
            worker.newest_step = step
