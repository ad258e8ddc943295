"""Training step, policy version and attempt over time.

Time-driven measurements (a queue's depth, a GPU's power) carry no step. They get the current step
of the training loop, so that every chart of a run has the same axis.
"""

import bisect
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec import field

from otel_rl.bridge.journal.state import Int64, Integers, StateRefused, Stored
from otel_rl.bridge.rows.series.streams import WorkerState
from otel_rl.records import Attempt

# Two hours of two steps a second, and 256 KB of every commit. Late data older than this gets no
# step, like data from before the first.
_MAX_CHANGES = 16_000


class ValueTimeline(Stored, dict=True):
    """A 64-bit integer that changes now and then, in order of event time.

    Columns are arrays, because they are stored with every commit as they lie in memory.

    Attributes:
        times_ns: Times at which the values begin.
        newest: The latest value, or the greater one if a clock was set back; None before the first
            value since a restart of the bridge.
    """

    times_ns: Integers = field(default_factory=lambda: array("q"))
    values: Integers = field(default_factory=lambda: array("q"))

    def __post_init__(self) -> None:
        self.newest: int | None = None
        self._newest_ns = 0
        if {self.times_ns.typecode, self.values.typecode} != {"q"}:
            raise StateRefused("a timeline has something else than integers")
        if len(self.times_ns) != len(self.values):
            raise StateRefused("a timeline has more times than values, or fewer")

    def observe(self, observed: Iterable[tuple[int, int]]) -> None:
        """Record values of the integer as (time, value), in any order; repeats change nothing."""
        times_ns, values, find = self.times_ns, self.values, bisect.bisect_right
        for time_ns, value in observed:
            if self.newest is None or time_ns >= self._newest_ns or value > self.newest:
                self.newest, self._newest_ns = value, time_ns
            place = find(times_ns, time_ns)
            if place and values[place - 1] == value:
                continue
            if place < len(values) and values[place] == value:
                times_ns[place] = time_ns  # it began earlier than known
                continue
            times_ns.insert(place, time_ns)
            values.insert(place, value)
            if len(times_ns) > _MAX_CHANGES:
                del times_ns[: _MAX_CHANGES // 2], values[: _MAX_CHANGES // 2]

    def at(self, time_ns: int) -> int | None:
        """Return the latest value at or before ``time_ns``; None before the first value."""
        place = bisect.bisect_right(self.times_ns, time_ns)
        return self.values[place - 1] if place else None


class StepAxis(Stored):
    """Step and policy version over time, as one worker of the training role reports them.

    Only one worker counts, because two ranks never report the same step at the same instant and an
    axis must not jump back and forth between them. That worker is the first of the ``trainer``
    role; in a run without trainers, the first of the role that reported a step first, and until a
    role did, the first that reported a policy version. A worker that appeared after that worker's
    last report takes its place: without an index, a restarted process has another label. The axis
    may go back: a run that is resumed from a checkpoint repeats steps.

    Attributes:
        role: Role of the worker that reports the steps.
        heard_ns: That worker's last report, by the bridge's clock.
    """

    role: str = ""
    label: str = ""
    heard_ns: Int64 = 0
    steps: ValueTimeline = field(default_factory=ValueTimeline)
    versions: ValueTimeline = field(default_factory=ValueTimeline)

    @property
    def leader(self) -> tuple[str, str]:
        return self.role, self.label

    def clock_is(self, now_ns: int) -> None:
        """Adjust to a bridge's clock that was set back, as the last report's time is unknown.

        Another reporting worker may take the leader's place. The leader takes it back if it still
        reports.
        """
        if self.heard_ns > now_ns:
            self.heard_ns = 0

    def leads(self, worker: WorkerState, received_ns: int, *, is_step: bool) -> bool:
        """Return whether ``worker``, with a report from ``received_ns``, leads the axis."""
        role, label = worker.role, worker.label
        first_ns = worker.first_ns or received_ns
        # A generator may have a version before any worker has made a step.
        is_first_step = is_step and role != self.role and not self.steps.values
        if not self.role or (self.role != "trainer" and (role == "trainer" or is_first_step)):
            self.steps, self.versions = ValueTimeline(), ValueTimeline()
            self.role, self.label = role, label
        elif role == self.role and (_rank(label) < _rank(self.label) or first_ns > self.heard_ns):
            self.label = label
        if role != self.role or label != self.label:
            return False
        self.heard_ns = received_ns
        return True

    def step_at(self, time_ns: int) -> int:
        return self.steps.at(time_ns) or 0

    def version_at(self, time_ns: int) -> int | None:
        return self.versions.at(time_ns)


_MAX_ATTEMPTS = 100
"""Attempts whose beginnings are known; older rows are of the oldest of them."""


class Attempts(Stored):
    """Passes over the steps of one run by the role that leads its axis (ADR 17), after the first.

        attempt 1   401 ... 500 (crash)
        attempt 2               400 401 ... 520

    A row belongs to the attempt of its pass if its role leads the axis, else to the attempt at the
    row's time.

    Attributes:
        begun: The last attempts, in order; an attempt without a row has a ``first_row`` of -1.
    """

    begun: list[Attempt] = field(default_factory=list)

    @property
    def newest(self) -> int:
        return self.begun[-1].number if self.begun else 1

    @property
    def with_rows(self) -> Sequence[Attempt]:
        return tuple(one for one in self.begun if one.first_row >= 0)

    def at(self, time_ns: int) -> int:
        for one in reversed(self.begun):
            if time_ns > one.since_ns:
                return one.number
        return self.begun[0].number - 1 if self.begun else 1

    def begin(self, first_step: int, since_ns: int) -> None:
        """Begin the next attempt.

        Args:
            first_step: The step that the attempt goes back to.
            since_ns: Time after which values belong to the new attempt.
        """
        self.begun.append(Attempt(self.newest + 1, first_step, -1, since_ns))
        del self.begun[:-_MAX_ATTEMPTS]

    def has_row(self, attempt: int, number: int) -> None:
        for place in range(len(self.begun) - 1, -1, -1):
            one = self.begun[place]
            if one.number == attempt and one.first_row < 0:
                self.begun[place] = replace(one, first_row=number)
            if one.number <= attempt:
                return


def is_integral(value: float) -> bool:
    """Return whether ``value`` fits a 64-bit integer: not NaN, not infinite, not too large."""
    return -(2**63) <= value < 2**63


def _rank(label: str) -> tuple[int, str]:
    return (int(label), "") if label.isdigit() else (1 << 62, label)
