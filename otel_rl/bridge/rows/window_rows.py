"""Window rows: time-driven samples in windows of event time.

Counters become totals and rates, histograms become quantiles, and levels (queue depths,
utilisations) become the reduction of their measurements over workers. Of several workers that
report one GPU, one counts. A window is closed when every live worker has come past its end, or
``wait_s`` after its newest sample arrived. Later samples make a row of their own.
Counts of steps have their rates and quantiles in rows of steps, see ``steps/step.py``.

A rate covers a whole window. The rate of a window that was cut, because its worker left before its
end or the run ended, would cover a moment: twelve thousand tokens of a step of twelve seconds would
appear as the rate of one second. So a cut window has a rate only where the counted interval is as
long as a window. The first window of a counter may hold too little; its count is then in the rate
of the next window. The totals have all counts.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from msgspec import Meta, field

from otel_rl.bridge.journal.state import Count, Int64, Number, Stored, check_places
from otel_rl.bridge.rows.reduce import (
    Cell,
    Distribution,
    Moments,
    merged,
    put,
    reduced,
)
from otel_rl.bridge.rows.row_values import miss_ratios, single_rows, statistics_of, take_earliest
from otel_rl.bridge.rows.series.cumulative import Increment
from otel_rl.bridge.rows.series.key_groups import GroupIdentity
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.streams import Group, Stream
from otel_rl.bridge.rows.series.worker_clock import tolerance_ns
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.turn import Turn
from otel_rl.records import HOST_ID, HistogramPoint
from otel_rl.semconv import names
from otel_rl.semconv.spec import Reduction

_NS_PER_S = 1_000_000_000

# Of a window, as exports do not fall on its bounds: they cover at least this part.
_MIN_SHARE = 0.5

# A run of a millisecond would show a rate of thousands.
_MIN_RATE_S = 0.5


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """One row of time-driven values.

    Attributes:
        received_ns: Arrival of the last sample; 0 for a row beside that of a window.
    """

    time_ns: int
    values: dict[str, float]
    received_ns: int = 0


class _Counted(Stored, gc=False):
    """One worker's count in a window.

    Attributes:
        worker: Role and label of the worker.
        from_ns: Time at which its counting starts in the window.
        to_ns: Time at which its counting ends in the window.
        value: The finite part, which goes into the total: a single NaN would make the total NaN for
            good.
        oddity: NaN or an infinity, if one was counted; the rate shows it.
    """

    worker: tuple[str, str]
    from_ns: Int64
    to_ns: Int64
    value: Number = 0
    seconds: float = 0.0
    oddity: Number = 0.0

    def add(self, increment: Increment, time_ns: int) -> None:
        from_ns = time_ns - int(increment.seconds * _NS_PER_S)
        if from_ns < self.from_ns:
            self.from_ns = from_ns
        if time_ns > self.to_ns:
            self.to_ns = time_ns
        if math.isfinite(increment.value):
            self.value += increment.value
        else:
            self.oddity += increment.value
        self.seconds += increment.seconds

    def joined(self, before: "_Counted") -> "_Counted":
        return _Counted(
            self.worker,
            min(self.from_ns, before.from_ns),
            max(self.to_ns, before.to_ns),
            self.value + before.value,
            self.seconds + before.seconds,
            self.oddity + before.oddity,
        )

    def rate(self, cover_s: float) -> float:
        """Return the rate per second in a window that covers ``cover_s``.

        A worker that was present for most of the window is measured by its own time, because its
        exports do not fall on the window's bounds. A worker that came and went counted only for a
        moment of the window.
        """
        seconds = self.seconds if self.seconds > cover_s / 2 else cover_s
        return (self.value + self.oddity) / seconds


_CountedOfGroups = dict[Count, Annotated[dict[Count, _Counted], Meta(min_length=1)]]


class _Window(Stored, gc=False):
    """Samples of one window so far, by the numbers of their groups and streams.

    The window is late if it was closed before. ``devices`` has the device and the role of a stream
    whose device other workers may report as well.
    """

    late: bool
    time_ns: Int64 = 0
    received_ns: Int64 = 0
    levels: dict[Count, dict[Count, Cell]] = field(default_factory=dict)
    counted: _CountedOfGroups = field(default_factory=dict)
    distributions: dict[Count, Distribution] = field(default_factory=dict)
    single: dict[Count, list[tuple[Int64, Number]]] = field(default_factory=dict)
    devices: dict[Count, tuple[str, str]] = field(default_factory=dict)

    def groups(self, stream: Stream) -> Iterator[Group]:
        if stream.device:
            self.devices[stream.number] = stream.device, stream.worker.role
        yield stream.group
        if stream.own is not None:
            yield stream.own
        yield from stream.wider


class OpenWindows(Stored):
    """Windows of one experiment that still wait for samples."""

    # By their end, which stays valid when ``window_s`` is changed.
    _open: dict[Int64, _Window] = field(default_factory=dict)
    _first_end_ns: Int64 = 0
    _closed_through_ns: Int64 = 0
    # First counts, over too short a time to have a rate, by group.
    _unrated: _CountedOfGroups = field(default_factory=dict)

    def check(self, groups: int) -> None:
        """Check state that was read from the journal; the run has ``groups`` groups."""
        for one in self._open.values():
            check_places(groups, one.levels, one.counted, one.distributions, one.single)

    def add_each(
        self,
        streams: Sequence[Stream],
        values: Sequence[float],
        times_ns: Sequence[int],
        received_ns: int,
        settings: AlignSettings,
    ) -> int:
        """Fold in measurements of levels, in columns. Returns the number of late ones."""
        length_ns = int(settings.window_s * _NS_PER_S)
        late, end_ns = 0, -1
        window = _Window(late=False)
        for stream, value, time_ns in zip(streams, values, times_ns, strict=True):
            time_ns += stream.worker.shift_ns  # by the clock of all workers
            if not end_ns - length_ns <= time_ns < end_ns:
                window = self._window(time_ns, received_ns, settings)
                end_ns = (time_ns // length_ns + 1) * length_ns
            elif time_ns > window.time_ns:
                window.time_ns = time_ns
            late += window.late
            number, own = stream.number, stream.own
            for group in window.groups(stream):
                cells = window.levels.get(group.number)
                if cells is None:
                    cells = window.levels[group.number] = {}
                put(cells, number, value, time_ns, group.reduction)
            if own is not None and settings.per_worker:
                window.single.setdefault(own.number, []).append((time_ns, value))
        return late

    def add_increment(
        self,
        stream: Stream,
        increment: Increment,
        time_ns: int,
        received_ns: int,
        settings: AlignSettings,
    ) -> bool:
        """Fold in an increment of a counter. Returns whether the increment is late."""
        time_ns += stream.worker.shift_ns
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
        time_ns = point.time_ns + stream.worker.shift_ns
        window = self._window(time_ns, received_ns, settings)
        for group in window.groups(stream):
            cell = window.distributions.get(group.number)
            if cell is None:
                cell = window.distributions[group.number] = Distribution()
            cell.add_point(point)
        return window.late

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def close_surplus(
        self, table: StreamTable, settings: AlignSettings, turn: Turn
    ) -> list[ClosedWindow]:
        rows: list[ClosedWindow] = []
        surplus = max(0, len(self._open) - settings.max_open_windows)
        for end_ns in sorted(self._open)[:surplus]:
            rows += self._first_rows(end_ns, table, turn)
            if turn.leaves_rest():
                break
            rows += self._closed(end_ns, table, settings, turn, is_last=False)
        return rows

    def close(
        self,
        table: StreamTable,
        settings: AlignSettings,
        now_ns: int,
        *,
        clock_ns: int,
        everything: bool,
        turn: Turn,
    ) -> list[ClosedWindow]:
        """Remove and return every window that is over, in order of time.

        Args:
            settings: Settings that say how long windows wait.
            now_ns: The bridge's clock without its downtime.
            everything: Whether no more data will come.
            turn: Windows that are left once the turn is over stay open until the next call.
        """
        horizon_ns = now_ns - int(settings.worker_timeout_s * _NS_PER_S)
        young_ns = now_ns - int(settings.wait_s * _NS_PER_S)
        # A new worker without reported progress may hold data of any window.
        come_ns = min(
            (
                worker.come_through_ns
                for worker in table.workers.states.values()
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
            over = come_ns >= end_ns
            overdue = now_ns - window.received_ns >= settings.wait_s * _NS_PER_S
            if everything or over or overdue or place < surplus:
                rows += self._first_rows(end_ns, table, turn)
                if turn.leaves_rest():
                    break
                # A window of the future, by a wrong clock, says nothing of those before it.
                is_past = over or end_ns <= clock_ns + tolerance_ns(settings.wait_s)
                rows += self._closed(
                    end_ns, table, settings, turn, is_last=everything, is_past=is_past
                )
        return rows

    def _first_rows(self, end_ns: int, table: StreamTable, turn: Turn) -> list[ClosedWindow]:
        """Return rows of the earliest measurements of a window with many, and remove those."""
        rows: list[ClosedWindow] = []
        single = self._open[end_ns].single
        while sum(map(len, single.values())) > turn.part and not turn.leaves_rest():
            first = [*_single_rows(take_earliest(single, int(turn.part)), table)]
            turn.made(_size(first))
            rows += first
        return rows

    def _closed(
        self,
        end_ns: int,
        table: StreamTable,
        settings: AlignSettings,
        turn: Turn,
        *,
        is_last: bool,
        is_past: bool = True,
    ) -> Sequence[ClosedWindow]:
        window = self._open.pop(end_ns)
        if is_past:
            self._closed_through_ns = max(end_ns, self._closed_through_ns)
        length_ns = int(settings.window_s * _NS_PER_S)
        rates = self._rates(window, end_ns, length_ns, table, is_last=is_last)
        rows = [*_rows(window, table, rates)]
        turn.made(_size(rows))
        return rows

    def _rates(
        self, window: _Window, end_ns: int, length_ns: int, table: StreamTable, *, is_last: bool
    ) -> dict[int, list[float]]:
        """Return the workers' rates, for each group that has rates."""
        rates: dict[int, list[float]] = {}
        if window.late or not window.counted:
            return rates
        # A worker past the end has counted nothing else in the window. Not a later one in the place
        # of one that left.
        beyond = {
            (worker.role, worker.label)
            for worker in table.workers.states.values()
            if worker.come_through_ns >= end_ns and worker.first_ns <= window.received_ns
        }
        is_whole_run = is_last and end_ns - self._first_end_ns <= length_ns
        for number, counted in window.counted.items():
            cells = _once(counted, window, _seconds)
            before = self._unrated.pop(number, None)
            is_known = before is None and table.keys.groups[number].total != 0
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
        if time_ns > window.time_ns:
            window.time_ns = time_ns
        if received_ns > window.received_ns:
            window.received_ns = received_ns
        return window


def _rows(
    window: _Window, table: StreamTable, rates: Mapping[int, Sequence[float]]
) -> Iterator[ClosedWindow]:
    """Yield the rows of single measurements, then the row of reduced values."""
    groups = table.keys.groups
    values: dict[str, float] = {}
    for number, levels in window.levels.items():
        if number not in window.single:
            values.update(_level(groups[number], _once(levels, window, _samples)))
    for number, counted in window.counted.items():
        group = groups[number]
        grown = sum(cell.value for cell in _once(counted, window, _seconds).values())
        group.total = group.total + grown or 0  # a zero is not stored, and is an integer again
        values[group.key] = group.total
        if group.has_shares:
            continue  # the rate is in the rows of steps
        rate = reduced(list(rates.get(number, ())), group.reduction)
        if rate is not None:
            values[f"{group.key}/rate"] = rate
    for number, distribution in window.distributions.items():
        if not groups[number].has_shares:
            values.update(distribution.values(groups[number].key, groups[number].statistics))
    counts = (
        (groups[number], sum(cell.value for cell in counted.values()))
        for number, counted in window.counted.items()
        if not groups[number].has_shares
    )
    values.update(miss_ratios(counts, table))
    values.update(_device_counts(window, table))
    values.update(_turns(window, table, rates))
    yield from _single_rows(window.single, table)
    if values:
        yield ClosedWindow(window.time_ns, values, window.received_ns)


def _single_rows(
    single: Mapping[int, Sequence[tuple[int, float]]], table: StreamTable
) -> Iterator[ClosedWindow]:
    groups = table.keys.groups
    of_keys = {groups[number].key: measured for number, measured in single.items()}
    return (ClosedWindow(*row) for row in single_rows(of_keys))


def _size(rows: Sequence[ClosedWindow]) -> int:
    return sum(len(row.values) for row in rows)


_CellT = TypeVar("_CellT")


def _once(
    cells: dict[int, _CellT], window: _Window, weight: Callable[[_CellT], float]
) -> dict[int, _CellT]:
    """Keep one stream for each device: the stream with the largest weight."""
    if not window.devices or window.devices.keys().isdisjoint(cells):
        return cells
    chosen: dict[int | str, int] = {}
    for number, cell in cells.items():
        device, _ = window.devices.get(number, ("", ""))
        rival = chosen.setdefault(device or number, number)
        # Ties are decided alike in every window.
        if (-weight(cell), number) < (-weight(cells[rival]), rival):
            chosen[device or number] = number
    return {number: cells[number] for number in chosen.values()}


def _samples(cell: Cell) -> float:
    return cell.count if isinstance(cell, Moments) else len(cell)


def _seconds(counted: _Counted) -> float:
    return counted.seconds


def _device_counts(window: _Window, table: StreamTable) -> Iterator[tuple[str, float]]:
    """Yield the number of reported GPUs, overall and by the workers of each role."""
    roles: dict[str, set[str]] = {}
    for device, role in window.devices.values():
        if not device.startswith(HOST_ID):
            roles.setdefault(role, set()).add(device)
    if roles:
        roles[""] = set().union(*roles.values())
    for role, devices in roles.items():
        group = table.keys.group(GroupIdentity(role, names.RL_GPU_COUNT, (), Reduction.SUM))
        yield group.key, len(devices)


def _turns(
    window: _Window, table: StreamTable, rates: Mapping[int, Sequence[float]]
) -> Iterator[tuple[str, float]]:
    """Yield the idle share of time, and the excess, of each GPU that processes use in turns."""
    held: dict[str, float] = {}
    for number in window.counted:
        group = table.keys.groups[number]
        uuid = dict(group.attributes).get("hw.id")
        if uuid and group.name == names.RL_GPU_OWNER_TIME:
            # Without the rate of one phase, the rest is unknown.
            held[uuid] = held.get(uuid, 0) + sum(rates.get(number, [math.nan]))
    for uuid, share in held.items():
        if math.isnan(share):
            continue
        for name, value in (
            (names.RL_GPU_OWNER_IDLE, max(0.0, 1 - share)),
            (names.RL_GPU_OWNER_OVERLAP, max(0.0, share - 1)),
        ):
            derived = table.groups.derived_of_device(uuid, name)
            if derived is not None:
                yield derived.key, value


def _level(group: Group, levels: dict[int, Cell]) -> Iterator[tuple[str, float]]:
    cell = merged(levels.values())
    value: float | None
    if group.reduction is Reduction.SUM:
        # Over workers, not over time: a queue that was measured five times is not five queues.
        value = sum(reduced(own, Reduction.MEAN) or 0 for own in levels.values())
    else:
        value = reduced(cell, group.reduction)
    if value is not None:
        yield group.key, value
    yield from statistics_of(cell, group)
