"""The history of one W&B run on its server, and the uploader that sends it lines.

As wandb-core and the server do it: lines are posted with their offset, and a line that comes again
overwrites. Answers are lost, a count is read from a replica that is behind, and what a killed
uploader had sent may arrive long after its death.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

CHUNK_LINES = 7
"""The most that an uploader sends at once."""

# A write that was under way when its sender died.
_LATE_S = 8.0


class Away(Exception):
    """No answer: what was asked may have been done."""


class Refused(Exception):
    """401, 404: asking again does not help."""


class History:
    """The lines of a run, from 0.

    Args:
        chance: Decides what is lost and how old an answer is.
        clock: Seconds.
        events: Counts what has happened.

    Attributes:
        lines: What it has, as JSON, by line.
        config: As the first session has set it.
        is_away: Whether it answers at all.
        is_refusing: Whether it takes nothing from anybody.
        answers_lost: How many of the answers do not arrive.
        lag_s: How old a count may be.
        wrong: What no right client does, in words.
    """

    def __init__(
        self, chance: random.Random, clock: Callable[[], float], events: Counter[str]
    ) -> None:
        self._chance = chance
        self._clock = clock
        self._events = events
        self.lines: list[str] = []
        self.is_away = False
        self.is_refusing = False
        self.answers_lost = 0.0
        self.lag_s = 0.0
        self.wrong: list[str] = []
        self.config: Mapping[str, str] = {}
        self._counts: list[tuple[float, int]] = [(0.0, 0)]
        self._late: list[tuple[float, int, Sequence[str]]] = []

    def post(self, offset: int, lines: Sequence[str]) -> None:
        """Put lines at their place.

        Raises:
            Away: It may have done so.
            Refused: It has not.
        """
        self.ask()
        self._put(offset, lines)
        if self._chance.random() < self.answers_lost:
            self._events["the tracker's answer was lost"] += 1
            raise Away

    def post_late(self, offset: int, lines: Sequence[str]) -> None:
        """Its sender is dead, but the request is under way."""
        self._late.append((self._clock() + self._chance.uniform(0, _LATE_S), offset, lines))

    def ask(self) -> None:
        """Any request: is it answered?"""
        if self.is_away:
            self._events["the tracker was away"] += 1
            raise Away
        if self.is_refusing:
            self._events["the tracker refused"] += 1
            raise Refused

    def count(self) -> int:
        """How many lines it has, or had a moment ago."""
        self.ask()
        seen_at = self._clock() - self._chance.uniform(0, self.lag_s)
        count = next(count for at, count in reversed(self._counts) if at <= seen_at or not count)
        if count < len(self.lines):
            self._events["the tracker's count was old"] += 1
        return count

    def tick(self) -> None:
        """Time has passed: take what was under way."""
        due = [late for late in self._late if late[0] <= self._clock()]
        self._late = [late for late in self._late if late[0] > self._clock()]
        for _, offset, lines in due:
            self._events["an upload came after its sender's death"] += 1
            self._put(offset, lines)

    def _put(self, offset: int, lines: Sequence[str]) -> None:
        if offset > len(self.lines):
            self.wrong.append(f"lines from {offset} on, when it had {len(self.lines)}")
        for place, line in enumerate(lines, offset):
            step = json.loads(line)["_step"]
            if step != place:
                self.wrong.append(f"row {step} in line {place}")
            if place >= len(self.lines):
                self.lines.append(line)
            elif self.lines[place] == line:
                self._events["the tracker got a line again"] += 1
            else:
                self.wrong.append(f"line {place} was overwritten by another row")
                self.lines[place] = line
        self._counts.append((self._clock(), len(self.lines)))


class Uploader:
    """wandb-core of one session: sends lines from where it was told that the history ends.

    Attributes:
        offset: The line of the first one that it has no answer for.
        waiting: Lines that it has no answer for.
        most_waiting: The most that ever waited: they are in its memory.
        has_stopped: Whether it was refused and has given up, silently.
    """

    def __init__(self, history: History, offset: int, chance: random.Random) -> None:
        self._history = history
        self._chance = chance
        self.offset = offset
        self.waiting: list[str] = []
        self.most_waiting = 0
        self.has_stopped = False

    def add(self, line: str) -> None:
        self.waiting.append(line)
        self.most_waiting = max(self.most_waiting, len(self.waiting))

    def upload(self) -> None:
        """Send some of what waits."""
        if self.has_stopped or not self.waiting:
            return
        chunk = self._chunk()
        try:
            self._history.post(self.offset, chunk)
        except Away:
            return
        except Refused:
            self.has_stopped = True
            return
        self.offset += len(chunk)
        del self.waiting[: len(chunk)]

    def kill(self) -> None:
        """End it. What it was just sending may arrive."""
        if self.waiting and not self.has_stopped and self._chance.random() < 0.5:
            self._history.post_late(self.offset, self._chunk())
        self.has_stopped = True

    def _chunk(self) -> Sequence[str]:
        return self.waiting[: self._chance.randint(1, CHUNK_LINES)]
