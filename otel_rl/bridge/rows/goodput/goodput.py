"""Divides the time of a run's allocation into productive, overhead, idle and wasted. ADR 23. Pure.

Phases of a worker fill its place; the rest of the place's time is idle. Productive time becomes
wasted when its result is thrown away:

    attempt 1   ... 399 400 ... 500 (crash)     400 ... 500 is wasted
    attempt 2                                    gap   400 ... 500 501
"""

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Final, NamedTuple

from msgspec import field

from otel_rl.bridge.journal.state import Count, Int64, Stored, check_durations
from otel_rl.bridge.rows.goodput.allocation import Place, Places
from otel_rl.bridge.rows.goodput.waste import ThrownAway
from otel_rl.bridge.rows.goodput.work_over_time import WorkOverTime
from otel_rl.bridge.rows.series.streams import Group, Stream, WorkerState
from otel_rl.bridge.rows.steps.step_axis import ValueTimeline
from otel_rl.diagnose.classify import Work, goodput_part_of, work_of
from otel_rl.diagnose.history.run_history import PhaseKey
from otel_rl.goodput import Spent
from otel_rl.records import Attempt
from otel_rl.semconv import names
from otel_rl.semconv.names import RlGoodputPartValues

__all__ = ["TIMED", "Goodput"]

TIMED: Final = frozenset({names.RL_PHASE_DURATION, names.RL_ITERATION_DURATION})
"""Metrics that ``Goodput.measured`` takes."""

_NS_PER_S: Final = 1_000_000_000

_LONGEST_S: Final = 30 * 86_400.0
"""A longer duration is in another unit."""

_MAX_ROLES: Final = 256

# Kinds of productive work, by what may be thrown away with it; and what is none: a whole step only
# shows since when its worker lives.
_GENERATED, _SCORED, _LEARNED, _OVERHEAD, _IDLE, _STEP = range(6)
_KINDS: Final = {Work.GENERATION: _GENERATED, Work.REWARD: _SCORED}

_MAX_CLOCKS: Final = 65_536
"""Series whose place is known at once; it is found again for more."""

_EVERY_NS: Final = 10 * _NS_PER_S
"""Interval of values in rows."""


class _Role(Stored):
    """Account of a role.

    Attributes:
        places: Of its workers.
        has_work: Whether a phase of work was reported, and not only steps and waits: there are
            frameworks that report no more.
        worked_s: Productive seconds by kind of work.
        rolled_back_s: Productive seconds of repeated steps.
        over_time: Productive seconds by time, without these.
    """

    places: Places = field(default_factory=Places)
    has_work: bool = False
    worked_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    rolled_back_s: float = 0.0
    over_time: WorkOverTime = field(default_factory=WorkOverTime)

    def __post_init__(self) -> None:
        _generated_s, _scored_s, _learned_s = self.worked_s  # so many
        check_durations((*self.worked_s, self.rolled_back_s))

    def roll_back(self, from_ns: int, until_ns: int) -> None:
        self.rolled_back_s += self.over_time.take(from_ns, until_ns)

    def spent(self, away: ThrownAway) -> Spent:
        wall_s, productive_s, overhead_s = self.places.spent()
        wasted_s = productive_s * self._wasted(away)
        idle_s = max(0.0, wall_s - productive_s - overhead_s)
        return Spent(productive_s - wasted_s, overhead_s, idle_s, wasted_s)

    def _wasted(self, away: ThrownAway) -> float:
        """Return the share of productive time whose result was thrown away."""
        worked_s = fsum(self.worked_s)
        if worked_s <= 0:
            return 0.0
        kept = max(0.0, 1 - self.rolled_back_s / worked_s)
        samples = away.samples
        generated = 1 - (1 - samples) * (1 - away.requests)
        lost_s = self.worked_s[_GENERATED] * generated + self.worked_s[_SCORED] * samples
        return min(1.0, 1 - kept + kept * lost_s / worked_s)


class _Clock(NamedTuple):
    """A series of phases, and the part of the time that it adds to."""

    kind: int
    role: _Role
    place: Place

    def add(self, seconds: float, time_ns: int) -> None:
        """Add a phase that ended at a time. It runs for every phase of every step."""
        if not 0 <= seconds <= _LONGEST_S:
            return
        kind, role, place = self
        begun_ns = time_ns - int(seconds * _NS_PER_S)
        if begun_ns < place.begun_ns:
            place.begun_ns = begun_ns
        if time_ns > place.phase_ns:
            place.phase_ns = time_ns
        if place.starting_ns and kind != _STEP:
            place.reported_s += seconds
        if kind == _OVERHEAD:
            place.overhead_s += seconds
        elif kind < _OVERHEAD and seconds:
            place.productive_s += seconds
            role.worked_s[kind] += seconds
            role.over_time.add(time_ns, seconds)


class Goodput(Stored, dict=True):
    """Account of one run.

    Attributes:
        written: As in its last row with goodput: role to its time.
    """

    _roles: dict[str, _Role] = field(default_factory=dict)
    _away: ThrownAway = field(default_factory=ThrownAway)
    _attempt: Count = 1
    _written_ns: Int64 = 0
    written: Mapping[str, Spent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # By number of the group: groups are never forgotten. None for phases within others.
        self._kinds: dict[int, int | None] = {}
        # By number of the stream, of places that are known.
        self._clocks: dict[int, _Clock] = {}

    def measured(self, stream: Stream, values: Sequence[float], times_ns: Sequence[int]) -> None:
        """Take measurements of phases, and of steps.

        Args:
            stream: Of a worker's ``rl.phase.duration`` or ``rl.iteration.duration``.
            values: In seconds.
            times_ns: When each ended.
        """
        clock = self._clocks.get(stream.number)
        if clock is None:
            clock = self._clock(stream, times_ns[0])
            if clock is None:
                return
        if len(values) == 1:  # nearly always
            clock.add(values[0], times_ns[0])
            return
        for seconds, time_ns in zip(values, times_ns, strict=True):
            clock.add(seconds, time_ns)

    def counted(self, group: Group, growth: float) -> None:
        """Take the growth of any counter."""
        self._away.count(group, growth)

    def exported(self, worker: WorkerState, event_ns: int, *, is_held: bool) -> None:
        """Take an export, after its points and before its worker's state does.

        Args:
            worker: That has sent it.
            event_ns: Its time by the worker's clock; 0 if unknown.
            is_held: Whether its place stays its own while it is silent: it has an index, by which
                its replacement gets the same place, and has not reported its end.
        """
        if not event_ns:
            return
        found = self._found(worker, event_ns)
        if found is not None:
            found[1].exported(event_ns, is_first=not worker.first_ns, is_held=is_held)

    def left(self, worker: WorkerState) -> None:
        """Take a worker's report of its end: nothing holds its place any more."""
        role = self._roles.get(worker.role)
        place = None if role is None else role.places.of.get(worker.label)
        if place is not None:
            place.is_held = False

    def follow(self, attempts: Sequence[Attempt], steps: ValueTimeline) -> None:
        """Roll back for attempts that are new.

        Args:
            attempts: The last ones, in order.
            steps: First time of each step, of all attempts.
        """
        for attempt in attempts:
            if attempt.number > self._attempt:
                self._attempt = attempt.number
                from_ns = _begin_of(attempt, steps)
                for role in self._roles.values():
                    role.roll_back(from_ns, attempt.since_ns)

    def spent(self) -> Mapping[str, Spent]:
        """Return the time of each role with work, and of the run, whose role is empty."""
        of_roles = {
            name: role.spent(self._away)
            for name, role in sorted(self._roles.items())
            if role.has_work
        }
        if not of_roles:
            return {}
        return {"": Spent(*map(fsum, zip(*of_roles.values(), strict=True))), **of_roles}

    def take(self, now_ns: int, *, is_over: bool) -> Mapping[str, Spent]:
        """Return the time for a row that is written now; nothing if it was written recently.

        Of a run with one role, only the run's.

        Args:
            now_ns: The bridge's clock.
            is_over: Whether this may be the last row: do not wait.
        """
        if not is_over and 0 <= now_ns - self._written_ns < _EVERY_NS:
            return {}
        spent = self.spent()
        if len(spent) == 2:
            spent = {"": spent[""]}
        if not spent or spent == self.written:
            return {}
        self._written_ns, self.written = now_ns, spent
        return spent

    def _clock(self, stream: Stream, time_ns: int) -> _Clock | None:
        """Return the part that a series adds to; None for a phase within another."""
        kind = self._kind(stream.group)
        found = None if kind is None else self._found(stream.worker, time_ns)
        if kind is None or found is None:
            return None
        role, place = found
        role.has_work |= kind < _OVERHEAD
        if len(self._clocks) >= _MAX_CLOCKS:
            self._clocks.clear()
        clock = self._clocks[stream.number] = _Clock(kind, role, place)
        return clock

    def _kind(self, group: Group) -> int | None:
        if group.number not in self._kinds:
            self._kinds[group.number] = _kind_of(group)
        return self._kinds[group.number]

    def _found(self, worker: WorkerState, time_ns: int) -> tuple[_Role, Place] | None:
        role = self._roles.get(worker.role)
        if role is None:
            if len(self._roles) >= _MAX_ROLES:
                return None
            role = self._roles[worker.role] = _Role()
        place = role.places.of.get(worker.label)
        if place is None:
            place = role.places.add(worker.label, time_ns)
            self._clocks.clear()  # another place may be forgotten for it
        return role, place


def _kind_of(group: Group) -> int | None:
    if group.name == names.RL_ITERATION_DURATION:
        return _STEP
    attributes = dict(group.attributes)
    place = PhaseKey(group.role, attributes.get(names.RL_PHASE, ""))
    match goodput_part_of(place, attributes.get(names.RL_PHASE_CLASS, "")):
        case None:
            return None
        case RlGoodputPartValues.PRODUCTIVE:
            return _KINDS.get(work_of(place), _LEARNED)
        case RlGoodputPartValues.OVERHEAD:
            return _OVERHEAD
    return _IDLE


def _begin_of(attempt: Attempt, steps: ValueTimeline) -> int:
    """Return the first report of the attempt's first step in the passes before it.

    0 if all that is known of them is repeated. Later passes may be known, too: they are at or after
    that step, or have an attempt of their own that repeats more.
    """
    begun_ns = attempt.since_ns
    for time_ns, step in zip(reversed(steps.times_ns), reversed(steps.values), strict=True):
        if step < attempt.first_step:
            return begun_ns
        begun_ns = time_ns
    return 0
