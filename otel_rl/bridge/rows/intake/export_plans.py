"""Streams of the series that a worker sends together each time, looked up once."""

from array import array
from collections.abc import Sequence
from operator import attrgetter, lt
from typing import Final

from otel_rl.bridge.rows.goodput.goodput import TIMED
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.streams import Stream, WorkerState
from otel_rl.records import Series
from otel_rl.semconv import names
from otel_rl.semconv.spec import Reduction

__all__ = ["ExportPlan", "ExportPlans"]

# Plans of series that are sent no more are dropped with all others.
_MAX_PER_STREAM = 2
_MIN_STREAMS = 1 << 10

_LAST_STEP: Final = attrgetter("last_step")


class ExportPlan:
    """Streams of an export of one worker. It holds while none of them is forgotten.

    Args:
        series: Of the points, in their order.
        streams: Of these series, each once.

    Attributes:
        series: The same object.
        streams: The same object.
        worker: Of all of them.
        bounds: The accepted intervals of each.
        numbers: Of the streams.
        keys: The key of each stream's group.
        groups: The number of each stream's group, if a step may take their values by column.
        timed: Places of the streams that the account of the workers' time takes.
    """

    def __init__(self, series: Sequence[Series], streams: Sequence[Stream]) -> None:
        self.series = series
        self.streams = streams
        self.worker: WorkerState = streams[0].worker
        self.bounds: Sequence[array[int]] = [stream.seen.bounds for stream in streams]
        self.numbers = [stream.number for stream in streams]
        self.keys = tuple(stream.group.key for stream in streams)
        self.groups = _groups_of(streams)
        self.timed = [n for n, stream in enumerate(streams) if stream.group.name in TIMED]
        self._unknown_through_ns = max(stream.unknown_through_ns for stream in streams)

    def takes(
        self,
        starts_ns: Sequence[int],
        ends_ns: Sequence[int],
        times_ns: Sequence[int],
        steps: Sequence[int | None],
    ) -> bool:
        """Return whether the points are of one step, and each goes on where its series ended."""
        step = steps[0]
        return (
            step is not None
            and steps.count(step) == len(steps)
            and min(times_ns) > 0
            and min(starts_ns) > 0
            and all(map(lt, starts_ns, ends_ns))
            and min(ends_ns) > self._unknown_through_ns
            and [bounds[-1] if bounds else 0 for bounds in self.bounds] == [*starts_ns]
            and None not in (last_steps := [*map(_LAST_STEP, self.streams)])
            and max(last_steps) <= step
        )


def _groups_of(streams: Sequence[Stream]) -> Sequence[int] | None:
    groups = [stream.group for stream in streams]
    numbers = tuple(group.number for group in groups)
    if any(stream.own is not None for stream in streams) or len({*numbers}) < len(numbers):
        return None
    return None if any(one.reduction is Reduction.LAST for one in groups) else numbers


class ExportPlans:
    """Plans of the exports of a run, by the identity of their series."""

    def __init__(self) -> None:
        self._plans: dict[int, ExportPlan] = {}
        self._streams = 0
        self._forgotten = 0

    def find(self, series: Sequence[Series], table: StreamTable) -> ExportPlan | None:
        """Return the plan for series; None unless each is known, and all are of one worker."""
        if self._forgotten != table.forgotten:
            self._clear()
            self._forgotten = table.forgotten
        plan = self._plans.get(id(series))
        if plan is not None:  # it keeps its series, so the identity is not another one's
            return plan
        streams = [stream for one in series if (stream := table.known(one)) is not None]
        if (
            not series
            or len(streams) < len(series)
            or len({stream.number for stream in streams}) < len(streams)
            or any(stream.worker is not streams[0].worker for stream in streams)
            or any(one.name == names.RL_POLICY_VERSION for one in series)
        ):
            return None
        if self._streams > _MAX_PER_STREAM * table.size + _MIN_STREAMS:
            self._clear()
        plan = self._plans[id(series)] = ExportPlan(series, streams)
        self._streams += len(streams)
        return plan

    def _clear(self) -> None:
        self._plans.clear()
        self._streams = 0
