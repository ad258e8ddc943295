"""Goodput of a run: how its workers spent their time, and how much of it was wasted."""

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Final

from msgspec import field

from otel_rl.bridge.journal.state import Count, Int64, Number, StateRefused, Stored, check_durations
from otel_rl.bridge.rows.pace import Pace
from otel_rl.bridge.rows.series.streams import Group, Stream, WorkerState
from otel_rl.bridge.rows.steps.step_axis import ValueTimeline
from otel_rl.diagnose.classify import Work, goodput_part_of, work_of
from otel_rl.diagnose.history.run_history import PhaseKey
from otel_rl.goodput import Spent
from otel_rl.records import Attempt
from otel_rl.semconv import names
from otel_rl.semconv.names import RlGoodputPartValues, RlOutcomeValues

_MAX_PARTS: Final = 1024
_FINEST: Final = 20  # 2**20 ns are a millisecond
_COARSEST: Final = 62


class WorkOverTime(Stored):
    """Seconds of work by time.

    Attributes:
        shift: Each part is 2**shift ns long.
        parts: Seconds of work by the number of the part.
    """

    shift: int = _FINEST
    parts: dict[int, Number] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _FINEST <= self.shift <= _COARSEST:
            raise StateRefused(f"it has work in parts of 2**{self.shift} ns")

    def add(self, time_ns: int, seconds: float) -> None:
        place = time_ns >> self.shift
        self.parts[place] = self.parts.get(place, 0.0) + seconds
        if len(self.parts) > _MAX_PARTS:
            self._join()

    def take(self, from_ns: int, until_ns: int) -> float:
        """Remove the work between two times, and return the removed seconds.

        The first part is removed as a whole, the last part proportionally up to ``until_ns``.
        """
        first, last = from_ns >> self.shift, until_ns >> self.shift
        taken = 0.0
        for place in [place for place in self.parts if first <= place <= last]:
            seconds = self.parts.pop(place)
            if place == last:
                share = (until_ns - (place << self.shift)) / (1 << self.shift)
                self.parts[place] = seconds * (1 - share)
                seconds *= share
            taken += seconds
        return taken

    def _join(self) -> None:
        while len(self.parts) > _MAX_PARTS // 2 and self.shift < _COARSEST:
            self.shift += 1
            joined: dict[int, float] = {}
            for place, seconds in self.parts.items():
                joined[place >> 1] = joined.get(place >> 1, 0.0) + seconds
            self.parts = joined


_NS_PER_S: Final = 1_000_000_000

MAX_PLACES: Final = 4_096
"""Places of a role that are known apart; of more, the oldest that is not held is added up. Workers
without an index have a place for each process, so there is no end to them."""


class Place(Stored, eq=False):
    """Place of a worker in its role, which a replacement takes over. Times are by its clock.

    Attributes:
        begun_ns: Time of the first sign of life.
        exported_ns: Time of the last export; 0 before the first.
        phase_ns: End of the last reported phase; 0 before the first.
        starting_ns: First sign of life of a process that has reported no phase yet; else 0.
        reported_s: Seconds that this process spent in reported phases.
        productive_s: Seconds of productive phases.
        is_held: Whether the place is kept for its silent worker, which has not reported its end.
    """

    begun_ns: Int64
    exported_ns: Int64 = 0
    phase_ns: Int64 = 0
    starting_ns: Int64 = 0
    reported_s: float = 0.0
    productive_s: float = 0.0
    overhead_s: float = 0.0
    is_held: bool = False

    @property
    def last_ns(self) -> int:
        return max(self.begun_ns, self.exported_ns, self.phase_ns)

    def exported(self, event_ns: int, *, is_first: bool, is_held: bool) -> None:
        """Record an export, after its phases. ``is_first`` says that it is the process's first."""
        if is_first:
            has_phases = self.phase_ns > self.exported_ns
            self.starting_ns = 0 if has_phases else event_ns
            self.reported_s = 0.0
        elif self.starting_ns and self.reported_s:
            # Phases before the first export with some follow one another without a gap.
            begun_ns = self.phase_ns - round(self.reported_s * _NS_PER_S)
            self.overhead_s += max(0, begun_ns - self.starting_ns) / _NS_PER_S
            self.starting_ns = 0
        self.exported_ns = max(self.exported_ns, event_ns)
        self.is_held = is_held

    def spent(self, until_ns: int) -> tuple[float, float, float]:
        """Return wall time, productive time and overhead, in seconds."""
        end_ns = max(self.last_ns, until_ns) if self.is_held else self.last_ns
        wall_s = (end_ns - self.begun_ns) / _NS_PER_S
        busy_s = self.productive_s + self.overhead_s
        if busy_s <= wall_s:
            return wall_s, self.productive_s, self.overhead_s
        # Rounding may make it more than all there is.
        productive_s = min(wall_s, self.productive_s * (wall_s / busy_s))
        return wall_s, productive_s, wall_s - productive_s


class Places(Stored):
    """Places of a role by label, the oldest first.

    Attributes:
        past: Wall time, productive time and overhead of forgotten places, in seconds.
    """

    of: dict[str, Place] = field(default_factory=dict)
    past: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        check_durations(self.past)
        for one in self.of.values():
            check_durations((one.reported_s, one.productive_s, one.overhead_s))

    def add(self, label: str, time_ns: int) -> Place:
        """Add a place that begins at ``time_ns``. Older places may be forgotten."""
        place = self.of[label] = Place(time_ns)
        if len(self.of) > MAX_PLACES:
            self._forget(but=label)
        return place

    def _forget(self, but: str) -> None:
        for label, place in self.of.items():
            if not place.is_held and label != but:
                self.past = _sum((self.past, self.of.pop(label).spent(0)))
                return

    def spent(self) -> tuple[float, float, float]:
        """Return wall time, productive time and overhead of all places, in seconds."""
        last_ns = max((place.last_ns for place in self.of.values()), default=0)
        return _sum([self.past, *(place.spent(last_ns) for place in self.of.values())])


def _sum(spent: Iterable[tuple[float, float, float]]) -> tuple[float, float, float]:
    wall_s = productive_s = overhead_s = 0.0
    for one in spent:
        wall_s += one[0]
        productive_s += one[1]
        overhead_s += one[2]
    return wall_s, productive_s, overhead_s


_ABORTED: Final = "aborted"

_COUNTED: Final = frozenset(
    {
        names.RL_GENERATOR_REQUESTS,
        names.RL_REPLAY_BUFFER_EVICTIONS,
        names.RL_REPLAY_BUFFER_WRITES,
        names.RL_SAMPLE_DROPPED,
        names.RL_SAMPLE_SAMPLES,
    }
)

_REASONS: Final = ("finished_reason", "finish_reason")
"""Attributes of inference servers."""


class ThrownAway(Stored):
    """Counts of samples and requests that were thrown away in the run so far.

    Attributes:
        counted: Count by the name of its counter; aborted requests under ``aborted``.
    """

    counted: dict[str, Number] = field(default_factory=dict)

    def count(self, group: Group, growth: float) -> None:
        if group.name not in _COUNTED or not 0 < growth < float("inf"):
            return
        self._add(group.name, growth)
        if group.name == names.RL_GENERATOR_REQUESTS and _is_aborted(dict(group.attributes)):
            self._add(_ABORTED, growth)

    @property
    def samples(self) -> float:
        """Return the share of the samples that were not trained on."""
        dropped = self._most(names.RL_REPLAY_BUFFER_EVICTIONS, names.RL_SAMPLE_DROPPED)
        return _share(dropped, self._most(names.RL_SAMPLE_SAMPLES, names.RL_REPLAY_BUFFER_WRITES))

    @property
    def requests(self) -> float:
        """Return the share of the requests that were aborted or have failed."""
        return _share(self._most(_ABORTED), self._most(names.RL_GENERATOR_REQUESTS))

    def _add(self, name: str, growth: float) -> None:
        self.counted[name] = self.counted.get(name, 0.0) + growth

    def _most(self, *counters: str) -> float:
        return max(self.counted.get(name, 0.0) for name in counters)


def _is_aborted(attributes: Mapping[str, str]) -> bool:
    outcome = attributes.get(names.RL_OUTCOME, RlOutcomeValues.SUCCESS)
    is_cut = any(attributes.get(name) == "abort" for name in _REASONS)
    return is_cut or outcome != RlOutcomeValues.SUCCESS


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0


TIMED: Final = frozenset({names.RL_PHASE_DURATION, names.RL_ITERATION_DURATION})
"""Metrics that ``Goodput.measured`` takes."""


_LONGEST_S: Final = 30 * 86_400.0
"""A longer duration is in another unit."""

_MAX_ROLES: Final = 256

# Kinds of productive work, by what may be thrown away with it; and what is none: a whole step only
# shows since when its worker lives.
_GENERATED, _SCORED, _LEARNED, _OVERHEAD, _IDLE, _STEP = range(6)
_KINDS: Final = {Work.GENERATION: _GENERATED, Work.REWARD: _SCORED}

_EVERY_NS: Final = 10 * _NS_PER_S
"""Interval of values in rows."""


class _Role(Stored):
    """Account of a role.

    Attributes:
        has_work: Whether a phase of work was reported, beside steps and waits: some frameworks
            report only those two.
        worked_s: Productive seconds by kind of work.
        rolled_back_s: Productive seconds of repeated steps.
        over_time: Productive seconds by time, without repeated steps.
        paces: Productive seconds of each phase, by the number of the phase's group.
    """

    places: Places = field(default_factory=Places)
    has_work: bool = False
    worked_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    rolled_back_s: float = 0.0
    over_time: WorkOverTime = field(default_factory=WorkOverTime)
    paces: dict[int, Pace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _generated_s, _scored_s, _learned_s = self.worked_s  # so many
        check_durations((*self.worked_s, self.rolled_back_s))

    def worked(
        self, place: Place, group: Group, kind: int, *, seconds: float, time_ns: int
    ) -> None:
        place.begun_ns = min(place.begun_ns, time_ns - int(seconds * _NS_PER_S))
        place.phase_ns = max(place.phase_ns, time_ns)
        if place.starting_ns and kind != _STEP:
            place.reported_s += seconds
        if kind == _OVERHEAD:
            place.overhead_s += seconds
        elif kind < _OVERHEAD and seconds:
            place.productive_s += seconds
            self.worked_s[kind] += seconds
            self.over_time.add(time_ns, seconds)
            pace = self.paces.get(group.number)
            if pace is None:
                pace = self.paces[group.number] = Pace()
            pace.add(seconds)

    def roll_back(self, from_ns: int, until_ns: int) -> None:
        self.rolled_back_s += self.over_time.take(from_ns, until_ns)

    def spent(self, away: ThrownAway) -> Spent:
        wall_s, productive_s, overhead_s = self.places.spent()
        wasted_s = productive_s * self._wasted(away)
        idle_s = max(0.0, wall_s - productive_s - overhead_s)
        return Spent(productive_s - wasted_s, overhead_s, idle_s, wasted_s)

    def _wasted(self, away: ThrownAway) -> float:
        """Return the share of productive time that was wasted.

        The result of that time was thrown away, or it went into being slower than the best window.
        """
        worked_s = fsum(self.worked_s)
        if worked_s <= 0:
            return 0.0
        kept = max(0.0, 1 - self.rolled_back_s / worked_s)
        samples = away.samples
        generated = 1 - (1 - samples) * (1 - away.requests)
        lost_s = self.worked_s[_GENERATED] * generated + self.worked_s[_SCORED] * samples
        kept *= 1 - min(1.0, lost_s / worked_s)
        slowed_s = fsum(pace.lost_s for pace in self.paces.values())
        return 1 - kept * (1 - min(1.0, slowed_s / worked_s))


class Goodput(Stored, dict=True):
    """Account of one run.

    Attributes:
        written: Time of each role, as in the last row with goodput.
    """

    _roles: dict[str, _Role] = field(default_factory=dict)
    _away: ThrownAway = field(default_factory=ThrownAway)
    _attempt: Count = 1
    _written_ns: Int64 = 0
    written: Mapping[str, Spent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # By number of the group: groups are never forgotten. None for phases within others.
        self._kinds: dict[int, int | None] = {}

    def measured(self, stream: Stream, values: Sequence[float], times_ns: Sequence[int]) -> None:
        """Add measurements of phases or of steps.

        Args:
            stream: A worker's series of ``rl.phase.duration`` or ``rl.iteration.duration``.
            values: Durations in seconds.
            times_ns: Time at which each phase or step ended.
        """
        kind = self._kind(stream.group)
        found = None if kind is None else self._found(stream.worker, times_ns[0])
        if kind is None or found is None:
            return
        role, place = found
        role.has_work |= kind < _OVERHEAD
        for seconds, time_ns in zip(values, times_ns, strict=True):
            if 0 <= seconds <= _LONGEST_S:
                role.worked(place, stream.group, kind, seconds=seconds, time_ns=time_ns)

    def counted(self, group: Group, growth: float) -> None:
        self._away.count(group, growth)

    def exported(self, worker: WorkerState, event_ns: int, *, is_held: bool) -> None:
        """Add an export, after its points and before the worker's state is updated.

        Args:
            event_ns: Time of the export by the worker's clock; 0 if unknown.
            is_held: Whether the worker's place is kept while the worker is silent: the worker has
                an index, by which its replacement gets the same place, and has not reported its
                end.
        """
        if not event_ns:
            return
        found = self._found(worker, event_ns)
        if found is not None:
            found[1].exported(event_ns, is_first=not worker.first_ns, is_held=is_held)

    def left(self, worker: WorkerState) -> None:
        """Record that a worker reported its end, so that its place is not kept any more."""
        role = self._roles.get(worker.role)
        place = None if role is None else role.places.of.get(worker.label)
        if place is not None:
            place.is_held = False

    def follow(self, attempts: Sequence[Attempt], steps: ValueTimeline) -> None:
        """Count the work of repeated steps as wasted, for each new attempt."""
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
        """Return the time for a row that is written now; nothing if a row had it recently.

        For a run with one role, return only the run's time.

        Args:
            is_over: Whether this may be the last row, so that nothing is postponed.
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
    """Return when the passes before an attempt first reported the attempt's first step.

    Return 0 if the attempt repeats all that is known of those passes. Later passes may be known,
    too: they start at or after that step, or have an attempt of their own that repeats more.
    """
    begun_ns = attempt.since_ns
    for time_ns, step in zip(reversed(steps.times_ns), reversed(steps.values), strict=True):
        if step < attempt.first_step:
            return begun_ns
        begun_ns = time_ns
    return 0
