"""Which training step and which policy version was current at a time.

Time-driven measurements (a queue's depth, a GPU's power) know no step. They get the step that the
training loop was at, so that every chart of a run has the same axis.
"""

import bisect
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from otel_rl.bridge.align.series import WorkerState

__all__ = ["StepAxis", "Timeline", "is_integral"]

# Two hours of two steps a second, and 256 KB of every commit. Late data older than this gets no
# step at all, like data from before the first.
_MAX_CHANGES = 16_000


@dataclass(slots=True)
class Timeline:
    """A 64-bit integer that changes now and then, in order of event time.

    Arrays, because they are pickled as they lie in memory, with every commit.
    """

    times_ns: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[int]" = field(default_factory=lambda: array("q"))

    def observe(self, observed: Iterable[tuple[int, int]]) -> None:
        """Remember what the integer was, as (time, value). Any order, repeats are free."""
        times_ns, values, find = self.times_ns, self.values, bisect.bisect_right
        for time_ns, value in observed:
            place = find(times_ns, time_ns)
            if place and values[place - 1] == value:
                continue
            if place < len(values) and values[place] == value:
                times_ns[place] = time_ns  # it began earlier than was known
                continue
            times_ns.insert(place, time_ns)
            values.insert(place, value)
            if len(times_ns) > _MAX_CHANGES:
                del times_ns[: _MAX_CHANGES // 2], values[: _MAX_CHANGES // 2]

    def at(self, time_ns: int) -> int | None:
        """The latest value at or before ``time_ns``; before the first, None."""
        place = bisect.bisect_right(self.times_ns, time_ns)
        return self.values[place - 1] if place else None


@dataclass(slots=True)
class StepAxis:
    """The step and the policy version over time, as one worker of the training role tells them.

    One worker, because two ranks never report the same step at the same instant and an axis must
    not jump back and forth between them. That worker is the first of the ``trainer`` role; in a run
    without trainers, the first of the role that reported a step first, and until one did, a policy
    version. A worker that was first heard of after that one was last heard of takes its place:
    without an index, a restarted process has another label. The axis may go back: a run that is
    resumed from a checkpoint repeats steps.

    Attributes:
        role: Of the worker that tells the steps.
        label: Its label.
        heard_ns: When it last did, by the bridge's clock.
        steps: What it told.
        versions: The policy versions that it told.
    """

    role: str = ""
    label: str = ""
    heard_ns: int = 0
    steps: Timeline = field(default_factory=Timeline)
    versions: Timeline = field(default_factory=Timeline)

    def clock_is(self, now_ns: int) -> None:
        """If the bridge's clock was set back, nobody knows when that worker was heard.

        Whoever reports may take its place. It takes it back if it is still there.
        """
        if self.heard_ns > now_ns:
            self.heard_ns = 0

    def leads(self, worker: WorkerState, received_ns: int, *, is_step: bool) -> bool:
        """Whether ``worker`` tells the steps, which told one or a version at ``received_ns``."""
        role, label = worker.role, worker.label
        first_ns = worker.first_ns or received_ns
        # A generator may well have a version before anybody has made a step.
        is_first_step = is_step and role != self.role and not self.steps.values
        if not self.role or (self.role != "trainer" and (role == "trainer" or is_first_step)):
            self.steps, self.versions = Timeline(), Timeline()
            self.role, self.label = role, label
        elif role == self.role and (_rank(label) < _rank(self.label) or first_ns > self.heard_ns):
            self.label = label
        if role != self.role or label != self.label:
            return False
        self.heard_ns = received_ns
        return True

    def step_at(self, time_ns: int) -> int:
        """The step in progress; 0 before the first."""
        return self.steps.at(time_ns) or 0

    def version_at(self, time_ns: int) -> int | None:
        """The policy version; None before the first that was reported."""
        return self.versions.at(time_ns)


def is_integral(value: float) -> bool:
    """Whether ``value`` can be an integer of 64 bits: no NaN, no infinity, nothing absurd."""
    return -(2**63) <= value < 2**63


def _rank(label: str) -> tuple[int, str]:
    return (int(label), "") if label.isdigit() else (1 << 62, label)
