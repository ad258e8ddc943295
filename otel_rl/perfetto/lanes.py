"""Places the spans of one process in lanes, each of which a viewer draws as one thread.

Slices of a thread have to nest. A process works on many requests at once, so its spans overlap; a
span shares the lane of its parent if it fits inside, and else begins another one.

    lane 1   [ step .............................]
                [ wait ][ train .............]
    lane 2   [ request 1 ......]   [ request 3 ]
    lane 3        [ request 2 ......]
"""

from heapq import heappop, heappush

__all__ = ["Lanes"]


class Lanes:
    """Lanes of one process, numbered from 0. The lowest free one is taken."""

    def __init__(self) -> None:
        self._stacks: list[list[tuple[int, int]]] = []  # open spans: id and end
        self._lane_of: dict[int, int] = {}  # of the open spans
        self._busy: list[tuple[int, int]] = []  # heap of ends of outermost spans, with the lane
        self._free: list[int] = []  # heap

    def place(
        self, span_id: int, parent_id: int | None, start_ns: int, end_ns: int
    ) -> tuple[int, bool]:
        """Return the lane of a span, and whether the span is within its parent there.

        Args:
            span_id: Unique.
            parent_id: Of any process; None for a root.
            start_ns: Not before that of the last one; of two with one start, the longer is first.
            end_ns: Not before ``start_ns``.
        """
        self._end_through(start_ns)
        lane = self._lane_of.get(parent_id) if parent_id is not None else None
        is_within = lane is not None and self._fits(lane, parent_id, start_ns, end_ns)
        if lane is None or not is_within:
            lane = self._free_lane()
            heappush(self._busy, (end_ns, lane))
        self._stacks[lane].append((span_id, end_ns))
        self._lane_of[span_id] = lane
        return lane, is_within

    def _end_through(self, start_ns: int) -> None:
        while self._busy and self._busy[0][0] <= start_ns:
            _, lane = heappop(self._busy)
            self._pop_through(lane, start_ns)
            heappush(self._free, lane)

    def _fits(self, lane: int, parent_id: int | None, start_ns: int, end_ns: int) -> bool:
        self._pop_through(lane, start_ns)
        stack = self._stacks[lane]
        return bool(stack) and stack[-1][0] == parent_id and end_ns <= stack[-1][1]

    def _pop_through(self, lane: int, start_ns: int) -> None:
        stack = self._stacks[lane]
        while stack and stack[-1][1] <= start_ns:
            span_id, _ = stack.pop()
            self._lane_of.pop(span_id, None)

    def _free_lane(self) -> int:
        if self._free:
            return heappop(self._free)
        self._stacks.append([])
        return len(self._stacks) - 1
