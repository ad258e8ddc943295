"""Values that rows of steps and rows of windows have in common."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter

from otel_rl.bridge.rows.reduce import Cell, statistics
from otel_rl.bridge.rows.series.key_groups import GroupIdentity
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.streams import Group
from otel_rl.semconv import names
from otel_rl.semconv.spec import Reduction


def statistics_of(cell: Cell, group: Group) -> Iterator[tuple[str, float]]:
    for suffix, found in statistics(cell, group.statistics):
        yield f"{group.key}/{suffix}", found


def miss_ratios(
    grown: Iterable[tuple[Group, float]], table: StreamTable
) -> Iterator[tuple[str, float]]:
    """Yield 1 - hits / queries of each role's KV cache: a ratio of sums, never a mean of ratios."""
    queries: dict[str, float] = {}
    hits: dict[str, float] = {}
    for group, growth in grown:
        if group.own:
            continue
        if group.name == names.RL_GENERATOR_KV_CACHE_QUERIES:
            queries[group.role] = queries.get(group.role, 0) + growth
        elif group.name == names.RL_GENERATOR_KV_CACHE_HITS:
            hits[group.role] = hits.get(group.role, 0) + growth
    name = names.RL_GENERATOR_KV_CACHE_MISS_RATIO
    for role, asked in queries.items():
        if asked > 0:
            ratio = table.keys.group(GroupIdentity(role, name, (), Reduction.MEAN))
            yield ratio.key, 1 - hits.get(role, 0) / asked


def single_rows(
    single: Mapping[str, Sequence[tuple[int, float]]],
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield rows that hold every measurement once, in order of time.

    Measurements of different series share a row as long as no series would be in the row twice: few
    wide rows cost a tracker far less than many narrow ones.

    Args:
        single: Tracker key to (time in ns, value) of each measurement, in the order of arrival.

    Yields:
        Time of the latest measurement in the row, and the row's values by key.
    """
    if set(map(len, single.values())) == {1}:  # nearly always, and much faster
        row = {key: value for key, ((_, value),) in single.items()}
        yield max(time_ns for ((time_ns, _),) in single.values()), row
        return
    ordered = sorted(
        (time_ns, place, key, value)
        for key, measured in single.items()
        for place, (time_ns, value) in enumerate(measured)
    )
    row = {}
    row_ns = 0
    for time_ns, _, key, value in ordered:
        if key in row:
            yield row_ns, row
            row = {}
        row[key] = value
        row_ns = time_ns
    if row:
        yield row_ns, row


def take_earliest(
    single: Mapping[int, list[tuple[int, float]]], at_most: int
) -> Mapping[int, Sequence[tuple[int, float]]]:
    """Remove and return the earliest measurements, and all others of the same time as the last one.

    Args:
        single: (time in ns, value) of each measurement, in the order of arrival, by the number of
            their group.
        at_most: Number of measurements, at least one.
    """
    for made in single.values():
        made.sort(key=itemgetter(0))
    *_, (last_ns, _) = islice(merge(*single.values(), key=itemgetter(0)), at_most)
    taken = {}
    for number, made in single.items():
        place = bisect_right(made, last_ns, key=itemgetter(0))
        taken[number] = made[:place]
        del made[:place]
    return taken
