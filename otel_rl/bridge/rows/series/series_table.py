"""Series of one experiment: they are found, created, and forgotten with their workers."""

from collections.abc import Iterable

from otel_rl.bridge.rows.series.series_groups import SeriesGroups, is_folded
from otel_rl.bridge.rows.series.streams import Stream
from otel_rl.bridge.rows.series.table_state import TableState
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Series

_NS_PER_S = 1_000_000_000

# Share of the bound on series above which dead workers are evicted: below it, a batch of new series
# fits.
_CROWDED = 0.9


class StreamTable:
    """Finds the stream of a series, and creates new streams.

    Args:
        state: State of a run that goes on.

    Attributes:
        state: State that is stored with the rows.
        keys: Tracker keys, each of one group.
        devices: GPUs and hosts that workers report.
        memory: Accepted points, by the number of their stream.
        ended: Series of forgotten workers.
        folded: Number of series without a key of their own.
        newly_folded: Number of new series without a key of their own since this was last read.
    """

    def __init__(self, state: TableState | None = None) -> None:
        self.state = state = state or TableState()
        self.workers = state.workers
        self.keys = state.keys
        self.devices = state.devices
        self.memory = state.memory
        self.ended = state.ended
        self.groups = SeriesGroups(state.keys, state.devices)
        self._streams = state.streams
        # The streams by role; None since one is new or forgotten.
        self._of_roles: dict[str, list[Stream]] | None = None
        self.folded = self._count_folded()
        self.newly_folded = 0

    def stream(self, series: Series, settings: AlignSettings) -> Stream | None:
        """Return the stream of ``series``; None if the experiment has reached a bound.

        A series with a known key is accepted even if there are too many keys.
        """
        stream = self._streams.get(series)
        if stream is not None or len(self._streams) >= settings.max_series:
            return stream
        if not self.groups.has_room(series, settings, folded=self.folded):
            return None
        stream = self._make(series, settings)
        self.state.add(series, stream)
        if is_folded(stream.group):
            self.folded += 1
            self.newly_folded += 1
        self._of_roles = None
        return stream

    def known(self, series: Iterable[Series]) -> list[Stream | None]:
        return [*map(self._streams.get, series)]

    @property
    def size(self) -> int:
        return len(self._streams)

    def streams_of(self, role: str) -> Iterable[Stream]:
        if self._of_roles is None:
            self._of_roles = {}
            for stream in self._streams.values():
                self._of_roles.setdefault(stream.worker.role, []).append(stream)
        return self._of_roles.get(role, ())

    def is_unknown(self, stream: Stream, time_ns: int, *, single: bool) -> bool:
        """Return whether a point of this time may repeat a forgotten point."""
        forgotten_ns = self.memory.forgotten_ns
        return time_ns <= stream.unknown_through_ns or (single and time_ns <= forgotten_ns)

    def make_room(self, settings: AlignSettings, now_ns: int) -> None:
        """Near the bound on series, forget all workers with an expired lease.

        Series of dead workers must not displace those of living ones.
        """
        if len(self._streams) > _CROWDED * settings.max_series:
            self.forget(settings, now_ns, away_s=settings.worker_timeout_s)

    def forget(self, settings: AlignSettings, now_ns: int, *, away_s: float | None = None) -> None:
        """Forget workers that have not exported for ``away_s`` seconds, and their streams.

        Their counts stay in the totals. Their accepted points are kept, for as many series as may
        live, in case a worker returns.
        """
        away_s = settings.forget_s if away_s is None else away_s
        gone = self.workers.forget(now_ns - int(away_s * _NS_PER_S))
        if not gone:
            return
        self._of_roles = None
        for series in [series for series in self._streams if series.worker in gone]:
            self.ended.end(series, self._streams.pop(series))
        self.folded = self._count_folded()
        self.ended.drop_surplus(settings.max_series, self.memory)

    def _count_folded(self) -> int:
        return sum(is_folded(stream.group) for stream in self._streams.values())

    def _make(self, series: Series, settings: AlignSettings) -> Stream:
        worker = self.workers.of(series.worker)
        group = self.groups.of_role(series, settings)
        wider, device = self.groups.of_device(series, worker, settings)
        own = self.groups.of_worker(series, worker, group, settings)
        stream = Stream(self.state.next_stream, worker, group, own, wider, device)
        if not self.ended.take(series, stream):
            stream.unknown_through_ns = self.ended.unknown_through_ns
        stream.seen = self.memory.of(stream.number)
        return stream
