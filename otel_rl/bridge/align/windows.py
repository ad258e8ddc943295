"""Window rows: time-driven samples in windows of event time.

Counters become totals and rates, histograms quantiles, levels (queue depths, utilisations) the
reduction over workers of what each measured. Of several workers that report one GPU, one counts.
A window is closed when every live worker has come
past its end, or ``allowed_lateness_s`` after its newest sample arrived. What comes later makes
a row of its own.

A rate is of a whole window: of one that is cut, because whoever counted left before its end or the
run ended, it would be of a moment, and twelve thousand tokens of a step of twelve seconds would be
as many a second. So it is left out there, but where what was counted took as long as a window. Of
what is counted for the first time, a window may hold too little; it is then in the rate of the next
one. The totals have all.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

from otel_rl.bridge.align.room import Room
from otel_rl.bridge.align.series import Group, Stream
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.align.single import single_rows
from otel_rl.bridge.align.streams import StreamTable
from otel_rl.bridge.cumulative import Increment
from otel_rl.bridge.reduce import Cell, Distribution, Moments, merged, put_all, reduced, statistic
from otel_rl.records import HistogramPoint
from otel_rl.semconv import names
from otel_rl.semconv.spec import Reduction

__all__ = ["ClosedWindow", "OpenWindows"]

_NS_PER_S = 1_000_000_000

# Of a window, by exports that do not fall on its bounds: they hold at least as much.
_MIN_SHARE = 0.5

# A run of a millisecond would show a rate of thousands.
_MIN_RATE_S = 0.5


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """One row of time-driven values.

    Attributes:
        time_ns: Latest event time among its samples.
        values: Tracker key to value.
    """

    time_ns: int
    values: dict[str, float]


@dataclass(slots=True)
class _Counted:
    """What one worker counted in a window.

    Attributes:
        worker: Its role and label.
        from_ns: When it began to count what it reports in the window.
        to_ns: Through when.
        value: The finite part, which goes into the total: one NaN would be all that is ever known
            of it.
        seconds: In which it was counted.
        oddity: NaN or an infinity, if one was counted; the rate shows it.
    """

    worker: tuple[str, str]
    from_ns: int
    to_ns: int
    value: float = 0
    seconds: float = 0.0
    oddity: float = 0.0

    def add(self, increment: Increment, time_ns: int) -> None:
        """Fold in what was counted up to ``time_ns``."""
        self.from_ns = min(self.from_ns, time_ns - int(increment.seconds * _NS_PER_S))
        self.to_ns = max(self.to_ns, time_ns)
        if math.isfinite(increment.value):
            self.value += increment.value
        else:
            self.oddity += increment.value
        self.seconds += increment.seconds

    def joined(self, before: "_Counted") -> "_Counted":
        """With what the worker counted before."""
        return _Counted(
            self.worker,
            min(self.from_ns, before.from_ns),
            max(self.to_ns, before.to_ns),
            self.value + before.value,
            self.seconds + before.seconds,
            self.oddity + before.oddity,
        )

    def rate(self, cover_s: float) -> float:
        """Per second of a window that covers ``cover_s``.

        A worker that was there for most of the window is measured by its own time, because its
        exports do not fall on the window's bounds. One that came and went counted for a moment of
        the window only.
        """
        seconds = self.seconds if self.seconds > cover_s / 2 else cover_s
        return (self.value + self.oddity) / seconds


@dataclass(slots=True)
class _Window:
    """The samples of one window so far, by the numbers of their group and stream.

    Late if the window was closed before. ``devices`` has the GPU and the role of a stream, if it is
    about one that others may report as well.
    """

    late: bool
    time_ns: int = 0
    received_ns: int = 0
    levels: dict[int, dict[int, Cell]] = field(default_factory=dict)
    counted: dict[int, dict[int, _Counted]] = field(default_factory=dict)
    distributions: dict[int, Distribution] = field(default_factory=dict)
    single: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    devices: dict[int, tuple[str, str]] = field(default_factory=dict)

    def size(self) -> int:
        """How many values it is made of, about."""
        levels, counted = self.levels.values(), self.counted.values()
        of_streams = sum(map(len, levels)) + sum(map(len, counted)) + len(self.distributions)
        return 1 + of_streams + sum(map(len, self.single.values()))

    def groups(self, stream: Stream) -> Iterator[Group]:
        """What the samples of a stream are reduced into."""
        if stream.device:
            self.devices[stream.number] = stream.device, stream.worker.role
        yield stream.group
        if stream.own is not None:
            yield stream.own
        yield from stream.wider


class OpenWindows:
    """The windows of one experiment that still wait for samples."""

    def __init__(self) -> None:
        # By their end, which stays true when ``window_s`` is changed.
        self._open: dict[int, _Window] = {}
        self._first_end_ns = self._closed_through_ns = 0
        # What was counted for the first time, and for too short a time to have a rate, by group.
        self._unrated: dict[int, dict[int, _Counted]] = {}

    def add_levels(
        self,
        stream: Stream,
        values: Sequence[float],
        times_ns: Sequence[int],
        received_ns: int,
        settings: AlignSettings,
    ) -> int:
        """Fold in measurements of a level, in columns of one length.

        Returns:
            How many are late.
        """
        length_ns = int(settings.window_s * _NS_PER_S)
        late = start = 0
        for _, run in groupby(time_ns // length_ns for time_ns in times_ns):
            end = start + sum(1 for _ in run)
            window_values, window_times_ns = values[start:end], times_ns[start:end]
            start = end
            window = self._window(max(window_times_ns), received_ns, settings)
            late += window.late * len(window_values)
            for group in window.groups(stream):
                cells = window.levels.setdefault(group.number, {})
                put_all(cells, stream.number, window_values, window_times_ns, group.reduction)
            if stream.own is not None and settings.per_worker:
                single = window.single.setdefault(stream.own.number, [])
                single.extend(zip(window_times_ns, window_values, strict=True))
        return late

    def add_increment(
        self,
        stream: Stream,
        increment: Increment,
        time_ns: int,
        received_ns: int,
        settings: AlignSettings,
    ) -> bool:
        """Fold in what a counter counted. Returns whether it is late."""
        window = self._window(time_ns, received_ns, settings)
        for group in window.groups(stream):
            cells = window.counted.setdefault(group.number, {})
            cell = cells.get(stream.number)
            if cell is None:
                worker = stream.worker.role, stream.worker.label
                cell = cells[stream.number] = _Counted(worker, time_ns, time_ns)
            cell.add(increment, time_ns)
        return window.late

    def add_distribution(
        self, stream: Stream, point: HistogramPoint, received_ns: int, settings: AlignSettings
    ) -> bool:
        """Fold in a delta histogram. Returns whether it is late."""
        window = self._window(point.time_ns, received_ns, settings)
        for group in window.groups(stream):
            cell = window.distributions.get(group.number)
            if cell is None:
                cell = window.distributions[group.number] = Distribution()
            cell.add(
                count=point.count,
                total=point.total,
                minimum=point.minimum,
                maximum=point.maximum,
                buckets=point.buckets,
                bounds=point.bounds,
            )
        return window.late

    @property
    def is_open(self) -> bool:
        """Whether any sample waits."""
        return bool(self._open)

    def close_surplus(self, table: StreamTable, settings: AlignSettings) -> list[ClosedWindow]:
        """Take out the oldest windows if there are more than may wait."""
        rows: list[ClosedWindow] = []
        surplus = max(0, len(self._open) - settings.max_open_windows)
        for end_ns in sorted(self._open)[:surplus]:
            rows += self._closed(end_ns, table, settings, is_last=False)
        return rows

    def close(
        self,
        table: StreamTable,
        settings: AlignSettings,
        now_ns: int,
        *,
        everything: bool,
        room: Room | None = None,
    ) -> list[ClosedWindow]:
        """Take out every window that is over and finds room, in order of time."""
        room = room or Room()
        horizon_ns = now_ns - int(settings.lease_s * _NS_PER_S)
        young_ns = now_ns - int(settings.allowed_lateness_s * _NS_PER_S)
        # Whoever is new and has not said how far it has come may hold what belongs in any window.
        clock_ns = min(
            (
                worker.event_ns
                for worker in table.workers.values()
                if worker.received_ns >= horizon_ns
                and (worker.event_ns or worker.first_ns >= young_ns)
            ),
            default=0,
        )
        rows: list[ClosedWindow] = []
        surplus = len(self._open) - settings.max_open_windows
        for place, end_ns in enumerate(sorted(self._open)):
            window = self._open[end_ns]
            window.received_ns = min(window.received_ns, now_ns)  # the clock may be set back
            over = clock_ns >= end_ns
            overdue = now_ns - window.received_ns >= settings.allowed_lateness_s * _NS_PER_S
            if everything or over or overdue or place < surplus:
                if not room.take(window.size()):
                    break
                rows += self._closed(end_ns, table, settings, is_last=everything)
        return rows

    def _closed(
        self, end_ns: int, table: StreamTable, settings: AlignSettings, *, is_last: bool
    ) -> Iterator[ClosedWindow]:
        window = self._open.pop(end_ns)
        self._closed_through_ns = max(end_ns, self._closed_through_ns)
        length_ns = int(settings.window_s * _NS_PER_S)
        rates = self._rates(window, end_ns, length_ns, table, is_last=is_last)
        yield from _rows(window, table, rates)

    def _rates(
        self, window: _Window, end_ns: int, length_ns: int, table: StreamTable, *, is_last: bool
    ) -> dict[int, list[float]]:
        """What was counted per second, by each worker, of each group that has a rate."""
        rates: dict[int, list[float]] = {}
        if window.late or not window.counted:
            return rates
        # Whoever has come past the end has counted nothing else in the window. Not who came later,
        # in the place of one that left.
        beyond = {
            (worker.role, worker.label)
            for worker in table.workers.values()
            if worker.event_ns >= end_ns and worker.first_ns <= window.received_ns
        }
        is_whole_run = is_last and end_ns - self._first_end_ns <= length_ns
        for number, counted in window.counted.items():
            cells = _once(counted, window, _seconds)
            before = self._unrated.pop(number, None)
            is_known = before is None and table.groups[number].total != 0
            if before is not None:
                cells = before | {
                    stream: cell.joined(before[stream]) if stream in before else cell
                    for stream, cell in cells.items()
                }
            from_ns = min(cell.from_ns for cell in cells.values())
            goes_on = any(cell.worker in beyond for cell in cells.values())
            if goes_on:
                cover_ns = length_ns if is_known else end_ns - from_ns
                is_enough = cover_ns >= length_ns * _MIN_SHARE
            else:
                cover_ns = max(cell.to_ns for cell in cells.values()) - from_ns
                is_enough = cover_ns >= length_ns
                if is_whole_run and not is_known:
                    is_enough = cover_ns >= _MIN_RATE_S * _NS_PER_S
            if is_enough:
                cover_s = min(cover_ns, length_ns) / _NS_PER_S
                rates[number] = [cell.rate(cover_s) for cell in cells.values()]
            elif goes_on and not is_known:
                self._unrated[number] = cells
        return rates

    def _window(self, time_ns: int, received_ns: int, settings: AlignSettings) -> _Window:
        length_ns = int(settings.window_s * _NS_PER_S)
        end_ns = (time_ns // length_ns + 1) * length_ns
        window = self._open.get(end_ns)
        if window is None:
            window = self._open[end_ns] = _Window(late=end_ns <= self._closed_through_ns)
            self._first_end_ns = min(self._first_end_ns or end_ns, end_ns)
        window.time_ns = max(window.time_ns, time_ns)
        window.received_ns = max(window.received_ns, received_ns)
        return window


def _rows(
    window: _Window, table: StreamTable, rates: Mapping[int, Sequence[float]]
) -> Iterator[ClosedWindow]:
    """The single measurements as they were made, then everything that is reduced."""
    groups = table.groups
    values: dict[str, float] = {}
    for number, levels in window.levels.items():
        if number not in window.single:
            values.update(_level(groups[number], _once(levels, window, _samples)))
    for number, counted in window.counted.items():
        group = groups[number]
        group.total += sum(cell.value for cell in _once(counted, window, _seconds).values())
        values[group.key] = group.total
        rate = reduced(list(rates.get(number, ())), group.reduction)
        if rate is not None:
            values[f"{group.key}/rate"] = rate
    for number, distribution in window.distributions.items():
        values.update(_distribution(groups[number], distribution))
    values.update(_miss_ratios(window, table))
    values.update(_device_counts(window, table))
    values.update(_turns(window, table, rates))
    single = {groups[number].key: measured for number, measured in window.single.items()}
    yield from (ClosedWindow(*row) for row in single_rows(single))
    if values:
        yield ClosedWindow(window.time_ns, values)


_CellT = TypeVar("_CellT")


def _once(
    cells: dict[int, _CellT], window: _Window, weight: Callable[[_CellT], float]
) -> dict[int, _CellT]:
    """Without what other streams say of a GPU that the weightiest one speaks of, too."""
    if not window.devices or window.devices.keys().isdisjoint(cells):
        return cells
    chosen: dict[int | str, int] = {}
    for number, cell in cells.items():
        device, _ = window.devices.get(number, ("", ""))
        rival = chosen.setdefault(device or number, number)
        # Of two that say as much, it is the same one in every window.
        if (-weight(cell), number) < (-weight(cells[rival]), rival):
            chosen[device or number] = number
    return {number: cells[number] for number in chosen.values()}


def _samples(cell: Cell) -> float:
    return cell.count if isinstance(cell, Moments) else len(cell)


def _seconds(counted: _Counted) -> float:
    return counted.seconds


def _device_counts(window: _Window, table: StreamTable) -> Iterator[tuple[str, float]]:
    """How many GPUs were reported, in all and by the workers of each role."""
    roles: dict[str, set[str]] = {}
    for device, role in window.devices.values():
        roles.setdefault(role, set()).add(device)
    if roles:
        roles[""] = set().union(*roles.values())
    for role, devices in roles.items():
        group = table.group(role, names.RL_GPU_COUNT, (), Reduction.SUM)
        yield group.key, len(devices)


def _turns(
    window: _Window, table: StreamTable, rates: Mapping[int, Sequence[float]]
) -> Iterator[tuple[str, float]]:
    """For each GPU that processes take turns on, the share of time in which nobody held it.

    And by how much more than all of the time it was held. One hides the other within a window.
    """
    held: dict[str, float] = {}
    for number in window.counted:
        group = table.groups[number]
        uuid = dict(group.attributes).get("hw.id")
        if uuid and group.name == names.RL_GPU_OWNER_TIME:
            # Without the rate of one phase, nobody knows how much is left.
            held[uuid] = held.get(uuid, 0) + sum(rates.get(number, [math.nan]))
    for uuid, share in held.items():
        if math.isnan(share):
            continue
        for name, value in (
            (names.RL_GPU_OWNER_IDLE, max(0.0, 1 - share)),
            (names.RL_GPU_OWNER_OVERLAP, max(0.0, share - 1)),
        ):
            derived = table.device_group(uuid, name)
            if derived is not None:
                yield derived.key, value


def _level(group: Group, levels: dict[int, Cell]) -> Iterator[tuple[str, float]]:
    cell = merged(levels.values())
    value: float | None
    if group.reduction is Reduction.SUM:
        # Over workers, not over time: a queue that was looked at five times is not five queues.
        value = sum(reduced(own, Reduction.MEAN) or 0 for own in levels.values())
    else:
        value = reduced(cell, group.reduction)
    if value is not None:
        yield group.key, value
    for suffix in group.statistics:
        found = statistic(cell, suffix)
        if found is not None:
            yield f"{group.key}/{suffix}", found


def _distribution(group: Group, distribution: Distribution) -> Iterator[tuple[str, float]]:
    mean = distribution.statistic("mean")
    if mean is not None:
        yield group.key, mean
    for suffix in ("count", *group.statistics):
        found = distribution.statistic(suffix)
        if found is not None:
            yield f"{group.key}/{suffix}", found


def _miss_ratios(window: _Window, table: StreamTable) -> Iterator[tuple[str, float]]:
    """1 - hits / queries of each role's KV cache: a ratio of sums, never a mean of ratios."""
    queries: dict[str, float] = {}
    hits: dict[str, float] = {}
    for number, counted in window.counted.items():
        group = table.groups[number]
        if group.own:
            continue
        found = sum(cell.value for cell in counted.values())
        if group.name == names.RL_GENERATOR_KV_CACHE_QUERIES:
            queries[group.role] = queries.get(group.role, 0) + found
        elif group.name == names.RL_GENERATOR_KV_CACHE_HITS:
            hits[group.role] = hits.get(group.role, 0) + found
    for role, asked in queries.items():
        if asked > 0:
            group = table.group(role, names.RL_GENERATOR_KV_CACHE_MISS_RATIO, (), Reduction.MEAN)
            yield group.key, 1 - hits.get(role, 0) / asked
