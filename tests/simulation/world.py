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

from otel_rl.records import ExperimentKey
from otel_rl.semconv.run_id import run_id
from tests.simulation.bridge import DELIVERY, Bridge, Writer
from tests.simulation.clock import Clock
from tests.simulation.history import CHUNK_LINES, History
from tests.simulation.journal import Crash, MemoryJournal
from tests.simulation.library import Library, installed
from tests.simulation.senders import Collector, Measured, Process

__all__ = ["Verdict", "simulate"]

_START_NS = 1_700_000_000_000_000_000
_NS_PER_S = 1_000_000_000

_EXPERIMENTS = (ExperimentKey("a"), ExperimentKey("b"))

_EVENTS = 150

# Everything is well by then, and most of it is over in a tenth of that.
_CALM_S = 300


@dataclass(slots=True)
class Verdict:
    """What a simulation has shown.

    Attributes:
        wrong: What is not as it should be, in words; empty if all is well.
        measured: Measurements and counted things that were acknowledged.
        crashes: How often the bridge died.
        writers: How many writers there were.
        repeated: Requests that the bridge had taken and got again.
        rewritten: Lines that the tracker had and got again.
    """

    wrong: list[str] = field(default_factory=list)
    measured: int = 0
    crashes: int = 0
    writers: int = 0
    repeated: int = 0
    rewritten: int = 0


def simulate(seed: int) -> Verdict:
    """Let one world run to its end, and look at what its tracker has."""
    world = _World(random.Random(seed))
    with installed(world.library, world.clock):
        return world.run()


class _World:
    def __init__(self, chance: random.Random) -> None:
        self.clock = Clock()
        self.clock.meanwhile = self._meanwhile
        self._chance = chance
        self._journal = MemoryJournal(chance)
        self._histories = {key: History(chance, self.clock) for key in _EXPERIMENTS}
        self.library = Library(
            {run_id(key.experiment, key.trial): one for key, one in self._histories.items()},
            self.clock,
            chance,
        )
        self._measured = {key: Measured() for key in _EXPERIMENTS}
        self._values = itertools.count(1)
        self._started = itertools.count(1)
        self._jump_ns = 0
        self._death_rate = 0.0
        self._verdict = Verdict()
        self._processes = [
            self._process(key, role, index)
            for key in _EXPERIMENTS
            for role, index in (("trainer", 0), ("trainer", 1), ("generator", 0))
        ]
        self._bridge = self._start_bridge()
        self._collector = Collector(lambda request: self._bridge.accept(request), chance)

    def run(self) -> Verdict:
        happenings: list[tuple[Callable[[], None], int]] = [
            (self._export, 30),
            (self._send, 40),
            (self._make_rows, 30),
            (self._deliver, 30),
            (self._restart_process, 2),
            (self._restart_bridge, 1),
            (self._change_luck, 6),
            (self._change_clocks, 2),
        ]
        actions, weights = zip(*happenings, strict=True)
        for action in self._chance.choices(actions, weights, k=_EVENTS):
            self._survive(action)
            self.clock.sleep(self._chance.choice([0.0, 0.1, 0.3, 1.0]))
        self._calm_down()
        self._judge()
        return self._verdict

    def _start_bridge(self) -> Bridge:
        def writer() -> Writer:
            return Writer(self.library, self._chance, lambda: self._death_rate)

        return Bridge(self._journal, self.clock, lambda: self._true_ns() + self._jump_ns, writer)

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

    def _send(self) -> None:
        self._collector.send()

    def _make_rows(self) -> None:
        self._bridge.round()

    def _deliver(self) -> None:
        self._bridge.deliver()

    def _restart_process(self) -> None:
        place = self._chance.randrange(len(self._processes))
        before = self._processes[place]
        self._processes[place] = self._process(before.key, before.role, before.index)

    def _restart_bridge(self) -> None:
        self._bridge.stop()
        self._bridge = self._start_bridge()

    def _change_luck(self) -> None:
        chance = self._chance
        self._journal.crash_rate = chance.choice([0.0, 0.0, 0.02, 0.1])
        self._journal.is_full = chance.random() < 0.1
        self._death_rate = chance.choice([0.0, 0.0, 0.02, 0.1])
        history = self._histories[chance.choice(_EXPERIMENTS)]
        history.is_away = chance.random() < 0.2
        history.is_refusing = chance.random() < 0.1
        history.answers_lost = chance.choice([0.0, 0.0, 0.3])
        history.lag_s = chance.choice([0.0, 0.5, 0.9])

    def _change_clocks(self) -> None:
        self._jump_ns += self._chance.randint(-5, 5) * _NS_PER_S
        process = self._chance.choice(self._processes)
        process.skew_ns += self._chance.randint(-5, 5) * _NS_PER_S

    def _survive(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Crash:
            self._verdict.crashes += 1
            self._bridge.die()
            self._bridge = self._start_bridge()

    def _meanwhile(self) -> None:
        for history in self._histories.values():
            history.tick()
        self.library.upload()

    def _calm_down(self) -> None:
        """Everything is well from now on, and there is time for everything."""
        self._journal.crash_rate = self._death_rate = 0.0
        self._journal.is_full = False
        self._collector.is_calm = True
        for history in self._histories.values():
            history.is_away = history.is_refusing = False
            history.answers_lost = 0.0
        while self._collector.waiting:
            self._collector.send()
        for _ in range(5):
            while self._bridge.round():
                self.clock.sleep(0.1)
            self.clock.sleep(1)
        self._bridge.finish_rows()
        end_s = self.clock() + _CALM_S
        while self._bridge.deliver() and self.clock() < end_s:
            self.clock.sleep(1)

    # What is looked at in the end.

    def _judge(self) -> None:
        verdict = self._verdict
        verdict.writers = self.library.sessions
        verdict.repeated = self._collector.repeated
        # The server may have a chunk whose answer the uploader has not got.
        if self.library.most_waiting > DELIVERY.max_unconfirmed_rows + CHUNK_LINES:
            verdict.wrong.append(f"{self.library.most_waiting} rows in the memory of a writer")
        for key in _EXPERIMENTS:
            verdict.wrong += [f"{key}: {what}" for what in self._wrong_with(key)]
            verdict.measured += len(self._measured[key].values) + self._measured[key].counts.total()
            verdict.rewritten += self._histories[key].rewritten

    def _wrong_with(self, key: ExperimentKey) -> Iterator[str]:
        history, measured = self._histories[key], self._measured[key]
        yield from history.wrong
        numbered = self._bridge.ledger.next_row(key)
        if len(history.lines) != numbered:
            yield f"{len(history.lines)} lines of {numbered} rows"
        rows = [json.loads(line) for line in history.lines]
        if not all({"step", "_timestamp"} <= row.keys() for row in rows):
            yield "a row without step or time"
        values, stepped, counts = _found(rows)
        for what, found in (
            ("lost", measured.values - values.keys()),
            ("doubled", {value for value, n in values.items() if n > 1}),
            ("unexpected", values.keys() - measured.values),
        ):
            if found:
                yield f"{what}: {sorted(found)}"
        if stepped != measured.stepped:
            yield f"sums over the steps are {dict(stepped)}, not {dict(measured.stepped)}"
        if counts != +measured.counts:
            yield f"counted are {dict(counts)}, not {dict(measured.counts)}"


def _found(
    rows: Sequence[Mapping[str, float]],
) -> tuple[Counter[int], Counter[str], Counter[str]]:
    """Of a history: how often each single value is there, sums by role, and what was counted."""
    values: Counter[int] = Counter()
    stepped: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for row in rows:
        for key, value in row.items():
            role, _, name = key.partition("/")
            if role == "workers":
                if name.endswith(("/stepped", "/timed")):
                    values[int(value)] += 1
            elif name == "stepped":
                stepped[role] += int(value)
            elif name in {"cumulative", "delta"}:
                # A total that falls would be seen: the last one counts.
                counts[key] = int(value)
            elif name == "spread/count":
                counts[f"{role}/spread"] += int(value)
    return values, stepped, +counts
