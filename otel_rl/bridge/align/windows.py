"""Window rows: time-driven samples in windows of event time.

Counters become totals and rates, histograms quantiles, levels (queue depths, utilisations) the
reduction over workers of what each measured. A window is closed when every live worker's clock has
come past its end, or ``allowed_lateness_s`` after its newest sample arrived. What comes later makes
a row of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.align.streams import Group, Stream, StreamTable
from otel_rl.bridge.cumulative import Increment
from otel_rl.bridge.reduce import Cell, Distribution, Moments, merged, put_all, reduced, statistic
from otel_rl.records import HistogramPoint
from otel_rl.semconv import names
from otel_rl.semconv.spec import Reduction

__all__ = ["ClosedWindow", "OpenWindows"]

_NS_PER_S = 1_000_000_000

# A counter that was made a millisecond before its first export would show a rate of thousands.
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
    """What one worker counted in a window."""

    value: float = 0
    seconds: float = 0.0

    def rate(self) -> float | None:
        return self.value / self.seconds if self.seconds >= _MIN_RATE_S else None


@dataclass(slots=True)
class _Window:
    """The samples of one window so far, by the numbers of their group and stream."""

    time_ns: int = 0
    received_ns: int = 0
    levels: dict[int, dict[int, Cell]] = field(default_factory=dict)
    counted: dict[int, dict[int, _Counted]] = field(default_factory=dict)
    distributions: dict[int, Distribution] = field(default_factory=dict)
    single: dict[int, list[tuple[int, float]]] = field(default_factory=dict)


class OpenWindows:
    """The windows of one experiment that still wait for samples."""

    def __init__(self) -> None:
        self._open: dict[int, _Window] = {}
        self._closed_through = -1

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
            window, is_late = self._window(max(window_times_ns), received_ns, settings)
            late += is_late
            for group in _groups(stream):
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
        window, late = self._window(time_ns, received_ns, settings)
        for group in _groups(stream):
            cells = window.counted.setdefault(group.number, {})
            cell = cells.get(stream.number)
            if cell is None:
                cell = cells[stream.number] = _Counted()
            cell.value += increment.value
            cell.seconds += increment.seconds
        return late

    def add_distribution(
        self, stream: Stream, point: HistogramPoint, received_ns: int, settings: AlignSettings
    ) -> bool:
        """Fold in a delta histogram. Returns whether it is late."""
        window, late = self._window(point.time_ns, received_ns, settings)
        for group in _groups(stream):
            cell = window.distributions.get(group.number)
            if cell is None:
                cell = window.distributions[group.number] = Distribution()
            cell.add(
                count=point.count,
                total=point.total,
                minimum=point.minimum,
                maximum=point.maximum,
                buckets=point.buckets,
            )
        return late

    def close(
        self, table: StreamTable, settings: AlignSettings, now_ns: int, *, everything: bool
    ) -> list[ClosedWindow]:
        """Take out every window that is over, in order of time."""
        horizon_ns = now_ns - int(settings.lease_s * _NS_PER_S)
        clock_ns = min(
            (w.event_ns for w in table.workers.values() if w.received_ns >= horizon_ns),
            default=0,
        )
        length_ns = int(settings.window_s * _NS_PER_S)
        rows: list[ClosedWindow] = []
        for index in sorted(self._open):
            window = self._open[index]
            over = clock_ns >= (index + 1) * length_ns
            overdue = now_ns - window.received_ns >= settings.allowed_lateness_s * _NS_PER_S
            if everything or over or overdue:
                del self._open[index]
                self._closed_through = max(index, self._closed_through)
                rows.extend(_rows(window, table))
        return rows

    def _window(
        self, time_ns: int, received_ns: int, settings: AlignSettings
    ) -> tuple[_Window, bool]:
        index = time_ns // int(settings.window_s * _NS_PER_S)
        window = self._open.get(index)
        late = False
        if window is None:
            window = self._open[index] = _Window()
            late = index <= self._closed_through
        window.time_ns = max(window.time_ns, time_ns)
        window.received_ns = max(window.received_ns, received_ns)
        return window, late


def _groups(stream: Stream) -> Iterator[Group]:
    yield stream.group
    if stream.own is not None:
        yield stream.own


def _rows(window: _Window, table: StreamTable) -> Iterator[ClosedWindow]:
    """The single measurements as they were made, then everything that is reduced."""
    groups = table.groups
    values: dict[str, float] = {}
    for number, levels in window.levels.items():
        if number not in window.single:
            values.update(_level(groups[number], levels))
    for number, counted in window.counted.items():
        values.update(_rate(groups[number], counted))
    for number, distribution in window.distributions.items():
        values.update(_distribution(groups[number], distribution))
    values.update(_miss_ratios(window, table))
    yield from _single_rows(
        {groups[number].key: measured for number, measured in window.single.items()}
    )
    if values:
        yield ClosedWindow(window.time_ns, values)


def _single_rows(single: dict[str, list[tuple[int, float]]]) -> Iterator[ClosedWindow]:
    """Rows that hold every measurement once, in order of time.

    Measurements of different series share a row as long as no series would be in it twice: few wide
    rows cost a tracker far less than many narrow ones.
    """
    ordered = sorted(
        (time_ns, place, key, value)
        for key, measured in single.items()
        for place, (time_ns, value) in enumerate(measured)
    )
    row: dict[str, float] = {}
    row_ns = 0
    for time_ns, _, key, value in ordered:
        if key in row:
            yield ClosedWindow(row_ns, row)
            row = {}
        row[key] = value
        row_ns = time_ns
    if row:
        yield ClosedWindow(row_ns, row)


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


def _rate(group: Group, counted: dict[int, _Counted]) -> Iterator[tuple[str, float]]:
    group.total += sum(cell.value for cell in counted.values())
    yield group.key, group.total
    rates = Moments()
    for cell in counted.values():
        rate = cell.rate()
        if rate is not None:
            rates.add(rate)
    reduced = rates.result(group.reduction)
    if reduced is not None:
        yield f"{group.key}/rate", reduced


def _distribution(group: Group, distribution: Distribution) -> Iterator[tuple[str, float]]:
    mean = distribution.statistic("mean")
    if mean is not None:
        yield group.key, mean
    for suffix in group.statistics:
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
