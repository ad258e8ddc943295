"""CPU time of what is too short to be timed alone, in rounds in which everybody takes a turn.

CPU time, because a shared machine has other things to do; turns, because how fast a CPU is changes
while others use it: what is compared is measured within the same second.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Turn:
    """What one contender does in a round.

    Attributes:
        run: Timed; told how many times to do it.
        times: How many times a round: what the time is divided by.
        before: Untimed.
        after: Untimed; empties what the calls filled.
    """

    run: Callable[[int], object]
    times: int
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None


class Rounds:
    """Microseconds of this thread's CPU for one time, by contender and round."""

    def __init__(self, turns: Mapping[str, Turn], rounds: int) -> None:
        self._us: dict[str, list[float]] = {name: [] for name in turns}
        for turn in turns.values():
            _timed(turn)  # once for nothing: caches fill, first calls import
        for number in range(rounds):
            names = list(turns)
            first = number % len(names)
            for name in names[first:] + names[:first]:
                self._us[name].append(_timed(turns[name]))

    def us(self, name: str) -> float:
        """The median."""
        return median(self._us[name])

    def ratio(self, name: str, against: str) -> float:
        """The median over rounds of the ratio within a round."""
        pairs = zip(self._us[name], self._us[against], strict=True)
        return median(ours / theirs for ours, theirs in pairs)


def calls(call: Callable[[int], object]) -> Callable[[int], None]:
    """A ``Turn.run`` of single calls, each given its number."""

    def run(times: int) -> None:
        for number in range(times):
            call(number)

    return run


def _timed(turn: Turn) -> float:
    turn.before()
    gc.collect()
    start_ns = time.thread_time_ns()
    turn.run(turn.times)
    used_ns = time.thread_time_ns() - start_ns
    turn.after()
    return used_ns / turn.times / 1000
