"""Finds collectives that no name tells: spans that end together, whenever they have begun.

trainer/0   [ train ][ my_all_reduce ......]
trainer/1   [ train ....................][ ]        ends apart by 1, begins by 20
"""

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from otel_rl.records import SpanRecord

__all__ = ["collectives_in"]

_FEWEST_STEPS: Final = 3
_MOSTLY: Final = 0.8  # of the steps; spans may end together by chance
_TOGETHER: Final = 0.1  # times as far apart as the begins
_APART: Final = 0.1  # times as long as the longest: begins nearer to each other tell nothing

_Place = tuple[str, str]


def collectives_in(spans: Iterable[tuple[SpanRecord, int]]) -> AbstractSet[_Place]:
    """Return (role, name) of the spans in which each rank waits for the last one.

    Args:
        spans: With their steps.
    """
    by_place: dict[_Place, dict[int, list[SpanRecord]]] = defaultdict(lambda: defaultdict(list))
    for span, step in spans:
        by_place[span.role, span.name][step].append(span)
    return {place for place, steps in by_place.items() if _is_collective(steps.values())}


def _is_collective(steps: Iterable[list[SpanRecord]]) -> bool:
    told = [is_one for spans in steps if (is_one := _end_together(spans)) is not None]
    return len(told) >= _FEWEST_STEPS and sum(told) >= _MOSTLY * len(told)


def _end_together(spans: list[SpanRecord]) -> bool | None:
    """Return whether the ranks end at the same time; None where their begins tell nothing."""
    if len(spans) < 2 or len({span.worker for span in spans}) < len(spans):
        return None
    begins, ends = [span.start_ns for span in spans], [span.end_ns for span in spans]
    apart_ns = max(begins) - min(begins)
    if apart_ns < _APART * max(span.end_ns - span.start_ns for span in spans):
        return None
    return max(begins) <= min(ends) and max(ends) - min(ends) <= _TOGETHER * apart_ns
