"""CPU time of short operations, in rounds in which all contenders take turns.

CPU time, because a shared machine has other load; turns, because the speed of a CPU changes with
that load: contenders are compared within the same second.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Turn:
    """Work of one contender in a round.

    Attributes:
        run: Timed; given the number of repetitions.
        times: Repetitions in a round, by which the time is divided.
        before: Untimed.
        after: Untimed; empties what the calls filled.
    """

    run: Callable[[int], object]
    times: int
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None


class Rounds:
    """CPU microseconds of this thread for one repetition, by contender and round."""

    def __init__(self, turns: Mapping[str, Turn], rounds: int) -> None:
        self._us: dict[str, list[float]] = {name: [] for name in turns}
        for turn in turns.values():
            _timed(turn)  # warm-up: caches fill, first calls import
        for number in range(rounds):
            names = list(turns)
            first = number % len(names)
            for name in names[first:] + names[:first]:
                self._us[name].append(_timed(turns[name]))

    def us(self, name: str) -> float:
        """Return the median."""
        return median(self._us[name])

    def ratio(self, name: str, against: str) -> float:
        """Return the median over rounds of the ratio within a round."""
        return median(self._ratios(name, against))

    def spread(self, name: str, against: str) -> tuple[float, float]:
        """Return the lowest and the highest of these ratios."""
        ratios = self._ratios(name, against)
        return min(ratios), max(ratios)

    def _ratios(self, name: str, against: str) -> list[float]:
        pairs = zip(self._us[name], self._us[against], strict=True)
        return [ours / theirs for ours, theirs in pairs]


def calls(call: Callable[[int], object]) -> Callable[[int], None]:
    """Return a ``Turn.run`` of single calls, each given its number."""

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
