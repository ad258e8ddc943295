"""A whole deployment in one thread: workers, a collector, a bridge, a tracker, and bad luck.

Everything that happens is decided by one seed, so what went wrong once goes wrong again. Time
passes only when somebody waits.
"""

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from otel_rl.bridge.counters import Counter as Counted
from otel_rl.errors import JournalError, JournalUnavailable
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from tests.simulation.bridge import Bridge, Writer
from tests.simulation.clock import Clock
from tests.simulation.history import CHUNK_LINES, History
from tests.simulation.journal import Crash, MemoryJournal, Way
from tests.simulation.knobs import Knobs
from tests.simulation.library import Library, installed
from tests.simulation.senders import Collector, Measured, Process, distinct_values

_START_NS = 1_700_000_000_000_000_000
_NS_PER_S = 1_000_000_000

_EXPERIMENTS = (ExperimentKey("a"), ExperimentKey("b"))

_EVENTS = 150

_SLEEPS = 4
"""Of bridges, at most: each is long, and the others go on meanwhile."""

# Everything is well by then, and most of it is over in a tenth of that.
_CALM_S = 300


@dataclass(slots=True)
class Verdict:
    """What a simulation has shown.

    Attributes:
        wrong: What is not as it should be, in words; empty if all is well.
        measured: Measurements and counted things that were acknowledged.
        events: What has happened, in words, and how often.
        writers: How many writers there were.
    """

    wrong: list[str] = field(default_factory=list)
    measured: int = 0
    events: Counter[str] = field(default_factory=Counter)
    writers: int = 0


def simulate(seed: int) -> Verdict:
    """Let one world run to its end, and look at what its tracker has."""
    world = _World(random.Random(seed))
    with installed(world.library, world.clock):
        return world.run()


@dataclass(slots=True, eq=False)
class _Seat:
    """The place of one bridge, whichever process has it.

    Attributes:
        number: Of the place.
        bridge: The process.
        is_asleep: Whether the process is stopped in the middle of something.
        is_busy: Whether the process does something, unless it is asleep.
        may_sleep: Whether that is something in which it may be stopped.
        writers: What its processes have started.
    """

    number: int
    bridge: Bridge = field(init=False)
    is_asleep: bool = False
    is_busy: bool = False
    may_sleep: bool = False
    writers: list[Writer] = field(default_factory=list)


class _World:
    def __init__(self, chance: random.Random) -> None:
        self._verdict = Verdict()
        self._events = self._verdict.events
        self.clock = Clock()
        self.clock.meanwhile = self._meanwhile
        self._chance = chance
        self._knobs = Knobs.draw(chance)
        self._journal = MemoryJournal(chance, self.clock, self._events)
        self._histories = {key: History(chance, self.clock, self._events) for key in _EXPERIMENTS}
        self.library = Library(
            {run_id(key.experiment, key.trial): one for key, one in self._histories.items()},
            self.clock,
            chance,
        )
        self._measured = {key: Measured() for key in _EXPERIMENTS}
        self._values = distinct_values()
        self._started = itertools.count(1)
        self._jump_ns = 0
        self._death_rate = self._sleep_rate = 0.0
        self._sleeps_left = _SLEEPS
        self._late_lease_rate = 0.3
        self._processes = [
            self._process(key, role, index)
            for key in _EXPERIMENTS
            for role, index in (("trainer", 0), ("trainer", 1), ("generator", 0))
        ]
        self._last_owners: dict[ExperimentKey, int] = {}
        self._seats: list[_Seat] = []
        for number in range(self._knobs.bridges):
            seat = _Seat(number)
            seat.bridge = self._start_bridge(seat)
            self._seats.append(seat)
        self._collector = Collector(self._accept, chance, self._events)
        happenings: list[tuple[Callable[[], None], int]] = [
            (self._export, 30),
            (self._collector.send, 40),
            (self._make_rows, 30),
            (self._deliver, 30),
            (self._restart_process, 2),
            (self._restart_bridge, 1),
            (self._change_luck, 6),
            (self._change_clocks, 2),
        ]
        self._actions = [action for action, _ in happenings]
        self._weights = [weight for _, weight in happenings]

    def run(self) -> Verdict:
        for _ in range(_EVENTS):
            self._happen([0.0, 0.1, 0.3, 1.0])
        self._calm_down()
        self._judge()
        return self._verdict

    def _happen(self, pauses_s: Sequence[float]) -> None:
        (action,) = self._chance.choices(self._actions, self._weights)
        action()
        self.clock.sleep(self._chance.choice(pauses_s))

    # Bridges.

    def _start_bridge(self, seat: _Seat) -> Bridge:
        def pause() -> None:
            self._may_sleep(seat)

        def writer() -> Writer:
            made = Writer(self.library, self._chance, lambda: self._death_rate, pause)
            seat.writers.append(made)
            return made

        def gained(key: ExperimentKey) -> None:
            if self._last_owners.setdefault(key, seat.number) != seat.number:
                self._last_owners[key] = seat.number
                self._events["a run was taken over"] += 1

        return Bridge(
            Way(self._journal, pause),
            self._knobs,
            self.clock,
            lambda: self._true_ns() + self._jump_ns,
            writer,
            owner=f"bridge-{next(self._started)}" if self._knobs.bridges > 1 else "",
            gained=gained,
        )

    def _awake(self) -> _Seat | None:
        awake = [seat for seat in self._seats if not seat.is_asleep]
        return self._chance.choice(awake) if awake else None

    def _of_a_bridge(self, action: Callable[[Bridge], object], *, may_sleep: bool) -> None:
        seat = self._awake()
        if seat is not None:
            self._survive(seat, action, may_sleep=may_sleep)

    def _survive(self, seat: _Seat, action: Callable[[Bridge], object], *, may_sleep: bool) -> bool:
        """Let a bridge act; another takes its place if it dies of it. Returns whether it lives."""
        seat.is_busy, seat.may_sleep = True, may_sleep
        try:
            action(seat.bridge)
        except Crash:
            self._events["a bridge died"] += 1
            self._replace(seat)
            return False
        except JournalError:
            pass  # tried again later
        finally:
            seat.is_busy = seat.may_sleep = False
        return True

    def _replace(self, seat: _Seat) -> None:
        seat.bridge.die()
        self._retire(seat.bridge)
        seat.bridge = self._start_bridge(seat)

    def _retire(self, bridge: Bridge) -> None:
        """Take note of what a bridge that has ended had counted."""
        if bridge.failures():
            self._verdict.wrong.append(f"{bridge.failures()} exceptions that nobody foresaw")
        counted = bridge.counters.snapshot()
        for (name, _), n in counted.items():
            if name == Counted.SAMPLES_LATE:
                self._events["a sample came late"] += n
            elif name == Counted.SAMPLES_DUPLICATE:
                self._events["a point was known when it came again"] += n

    def _may_sleep(self, seat: _Seat) -> None:
        """Stop a process where it stands, perhaps with its writers, while others go on."""
        if not (self._sleeps_left and seat.may_sleep and self._chance.random() < self._sleep_rate):
            return
        self._sleeps_left -= 1
        before, writers = seat.bridge.owned(), {*seat.writers}
        is_machine = self._chance.random() < 0.5
        if is_machine:
            self.library.asleep |= writers
        seat.is_asleep, seat.may_sleep = True, False
        lease_s = self._knobs.lease_s
        until_s = self.clock() + self._chance.choice([0.3, 1.2, 2.5]) * lease_s
        while self.clock() < until_s:
            self._happen([0.01 * lease_s, 0.03 * lease_s, 0.1 * lease_s])
        seat.is_asleep = False
        self.library.asleep -= writers
        if before - seat.bridge.owned():
            self._events["a bridge slept through its lease"] += 1
            if is_machine:
                self._events["a machine slept through its lease"] += 1

    def _keep_leases(self) -> None:
        """Each bridge does so in a thread of its own, while it works and waits."""
        for seat in self._seats:
            if seat.is_asleep or self._chance.random() < self._late_lease_rate:
                continue
            if seat.is_busy:
                may_sleep, seat.may_sleep = seat.may_sleep, False
                seat.bridge.keep()
                seat.may_sleep = may_sleep
            else:
                self._survive(seat, Bridge.keep, may_sleep=False)

    def _process(self, key: ExperimentKey, role: str, index: int) -> Process:
        number = next(self._started)
        return Process(
            key,
            self._measured[key],
            role=role,
            index=index,
            number=number,
            is_ours=self._chance.random() < 0.6,
            skew_ns=self._chance.choice([0, 0, -60, 60]) * _NS_PER_S,
            now_ns=self._true_ns(),
            values=self._values,
            chance=self._chance,
        )

    def _true_ns(self) -> int:
        return _START_NS + int(self.clock() * _NS_PER_S)

    # What happens.

    def _export(self) -> None:
        process = self._chance.choice(self._processes)
        self._collector.take(process.export(self._true_ns()))

    def _accept(self, request: bytes) -> None:
        seat = self._awake()
        if seat is None:
            raise JournalUnavailable("Every simulated bridge is stopped.")
        full = False

        def accept(bridge: Bridge) -> None:
            nonlocal full
            try:
                bridge.accept(request)
            except JournalError:
                full = True

        if not self._survive(seat, accept, may_sleep=False) or full:
            raise JournalUnavailable("The simulated bridge does not answer.")

    def _make_rows(self) -> None:
        self._of_a_bridge(Bridge.round, may_sleep=True)

    def _deliver(self) -> None:
        self._of_a_bridge(Bridge.deliver, may_sleep=True)

    def _restart_process(self) -> None:
        place = self._chance.randrange(len(self._processes))
        before = self._processes[place]
        self._events["a worker was restarted"] += 1
        self._processes[place] = self._process(before.key, before.role, before.index)

    def _restart_bridge(self) -> None:
        seat = self._awake()
        if seat is not None and self._survive(seat, Bridge.stop, may_sleep=True):
            self._events["a bridge was restarted"] += 1
            self._replace(seat)

    def _change_luck(self) -> None:
        chance = self._chance
        self._journal.crash_rate = chance.choice([0.0, 0.0, 0.02, 0.1])
        self._journal.is_full = chance.random() < 0.1
        self._death_rate = chance.choice([0.0, 0.0, 0.02, 0.1])
        self._sleep_rate = chance.choice([0.0, 0.02, 0.1]) if self._knobs.bridges > 1 else 0.0
        history = self._histories[chance.choice(_EXPERIMENTS)]
        history.is_away = chance.random() < 0.2
        history.is_refusing = chance.random() < 0.1
        history.answers_lost = chance.choice([0.0, 0.0, 0.3])
        history.lag_s = chance.choice([0.0, 0.5, 0.9])

    def _change_clocks(self) -> None:
        self._events["a clock was set"] += 1
        self._jump_ns += self._chance.randint(-5, 5) * _NS_PER_S
        process = self._chance.choice(self._processes)
        process.skew_ns += self._chance.randint(-5, 5) * _NS_PER_S

    def _meanwhile(self) -> None:
        for history in self._histories.values():
            history.tick()
        self.library.upload()
        self._keep_leases()

    def _calm_down(self) -> None:
        """Everything is well from now on, and there is time for everything."""
        self._journal.crash_rate = self._death_rate = self._sleep_rate = 0.0
        self._late_lease_rate = 0.0
        self._journal.is_full = False
        self._collector.is_calm = True
        for history in self._histories.values():
            history.is_away = history.is_refusing = False
            history.answers_lost = 0.0
        while self._collector.waiting:
            self._collector.send()
        # Whatever has no owner finds one.
        for _ in range(5 + int(2 * self._knobs.lease_s) * (self._knobs.bridges > 1)):
            for seat in self._seats:
                while seat.bridge.round():
                    self.clock.sleep(0.1)
            self.clock.sleep(1)
        for seat in self._seats:
            seat.bridge.finish_rows()
        end_s = self.clock() + _CALM_S
        more = 3
        while more and self.clock() < end_s:
            for seat in self._seats:
                seat.bridge.deliver()
            self.clock.sleep(1)
            more = more - 1 if self._all_is_there() else 3
        for seat in self._seats:
            self._retire(seat.bridge)

    def _all_is_there(self) -> bool:
        return all(
            len(history.lines) == self._seats[0].bridge.run_store.next_row(key)
            for key, history in self._histories.items()
        )

    # What is looked at in the end.

    def _judge(self) -> None:
        verdict = self._verdict
        verdict.writers = self.library.sessions
        # The server may have a chunk whose answer the uploader has not got.
        if self.library.most_waiting > self._knobs.delivery.max_unconfirmed_rows + CHUNK_LINES:
            verdict.wrong.append(f"{self.library.most_waiting} rows in the memory of a writer")
        for key in _EXPERIMENTS:
            verdict.wrong += [f"{key}: {what}" for what in self._wrong_with(key)]
            verdict.measured += len(self._measured[key].values) + self._measured[key].counts.total()

    def _wrong_with(self, key: ExperimentKey) -> Iterator[str]:
        history, measured = self._histories[key], self._measured[key]
        yield from history.wrong
        numbered = self._seats[0].bridge.run_store.next_row(key)
        if len(history.lines) != numbered:
            yield f"{len(history.lines)} lines of {numbered} rows"
        rows = [json.loads(line) for line in history.lines]
        if not all({"step", "_timestamp"} <= row.keys() for row in rows):
            yield "a row without step or time"
        values, stepped, counts = _found(rows)
        for what, found in (
            ("lost", measured.values.keys() - values.keys()),
            ("doubled", {value for value, steps in values.items() if len(steps) > 1}),
            ("unexpected", values.keys() - measured.values.keys()),
            ("at a wrong step", _at_wrong_steps(values, measured.values)),
        ):
            if found:
                yield f"{what}: {sorted(found)}"
        for place in stepped.keys() | measured.stepped.keys():
            of_step = measured.stepped.get(place, [])
            in_rows = [_parts(total, of_step) for total in stepped.get(place, [])]
            if None in in_rows:
                yield f"a sum of {place} is of no measurements, or has one twice"
            newest = _newest([row for row in in_rows if row])
            if sorted(value for row in newest for value in row) != sorted(of_step):
                yield f"the newest rows of {place} have {newest}, measured were {of_step}"
        if counts != +measured.counts:
            yield f"counted are {dict(counts)}, not {dict(measured.counts)}"


def _at_wrong_steps(
    found: Mapping[int, Sequence[float]], measured: Mapping[int, int | None]
) -> set[int]:
    """The values that carry a step and stand in a row of another one."""
    return {
        value
        for value, steps in found.items()
        if measured.get(value) is not None and {*steps} != {measured[value]}
    }


def _parts(total: int, values: Sequence[int]) -> frozenset[int] | None:
    """The values that add up to a total; None if none do."""
    if not total:
        return frozenset()
    for place, value in enumerate(values):
        if value <= total:
            rest = _parts(total - value, values[place + 1 :])
            if rest is not None:
                return rest | {value}
    return None


def _newest(rows: Sequence[frozenset[int]]) -> Sequence[frozenset[int]]:
    """Without each row whose measurements are all in a later one, which replaces it."""
    return [row for place, row in enumerate(rows) if not any(row <= of for of in rows[place + 1 :])]


def _found(
    rows: Sequence[Mapping[str, float]],
) -> tuple[Mapping[int, Sequence[float]], Mapping[tuple[str, int], Sequence[int]], Counter[str]]:
    """Of a history: the steps of each single value, sums by role and step, and what was counted."""
    values: dict[int, list[float]] = {}
    stepped: dict[tuple[str, int], list[int]] = {}
    counts: Counter[str] = Counter()
    for row in rows:
        for key, value in row.items():
            role, _, name = key.partition("/")
            if role == "workers":
                if name.endswith(("/stepped", "/timed")):
                    values.setdefault(int(value), []).append(row["step"])
            elif name == "stepped":
                stepped.setdefault((role, int(row["step"])), []).append(int(value))
            elif name in {"cumulative", "delta"}:
                # A total that falls would be seen: the last one counts.
                counts[key] = int(value)
            elif name == "spread/count":
                counts[f"{role}/spread"] += int(value)
    return values, stepped, +counts
