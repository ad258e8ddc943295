"""Slowdown of a CPU-bound training loop by telemetry, its export included.

Each contender is a process that trains the same small network and measures 20 metrics a step. They
take turns of 100 ms, so that all see the same machine, and export after each second of the loop.
Two answers:

* *accounted*: the CPU that the calls and all other threads took, by the CPU of the loop's own work;
* *beside nothing*: the CPU of the whole process, by that of the same loop without telemetry. It
  includes everything, and is as exact as two equal loops are equal on this machine.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.contenders.loop import METRICS, Network
from bench.figures import Figure, Limits
from bench.sink import sink

TURN_S = 0.1
TURNS = 10
"""Between two exports: a second of the loop."""

GOALS = {10_000: 1.5, 1_000: 1.0}
"""Per cent, by points a second."""

KINDS = {"gauges": "gauge.set", "mlogger": "mlogger.log"}
CONTENDERS = [(name, rate) for rate in GOALS for name in ("nothing", *KINDS, "stock SDK")]


@dataclass(slots=True)
class Spent:
    """CPU seconds of a contender between two exports, one of them included."""

    work: float = 0.0
    calls: float = 0.0
    others: float = 0.0

    @property
    def all(self) -> float:
        return self.work + self.calls + self.others

    def add(self, work: float, calls: float, others: float) -> None:
        self.work += work
        self.calls += calls
        self.others += others


@dataclass(slots=True)
class Contender:
    """Process that runs the loop on request."""

    process: "subprocess.Popen[str]"
    spent: list[Spent] = field(default_factory=list)

    def tell(self, command: str) -> list[float]:
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("The contender has no pipes.")
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return [float(word) for word in self.process.stdout.readline().split()]


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Yield both answers for each rate and way of measuring."""
    exports, turns = (1, 1) if tiny else (9, TURNS)
    found = _spent(exports, turns)
    for rate, goal in GOALS.items():
        nothing, stock = found["nothing", rate], found["stock SDK", rate]
        for kind, call in KINDS.items():
            ours, name = found[kind, rate], f"loop slowed: {rate:,} points/s, {call}"
            yield _figure(name, _accounted(ours, nothing), _accounted(stock, nothing), goal)
            name += ", beside nothing"
            yield _figure(name, _beside(ours, nothing), _beside(stock, nothing), None)


def _figure(
    name: str, ours: Sequence[float], theirs: Sequence[float], goal: float | None
) -> Figure:
    ratio = median(ours) / median(theirs) if median(theirs) > 0 else None
    return Figure(
        name,
        "%",
        median(ours),
        median(theirs),
        "stock SDK + exact_view",
        ratio,
        goal,
        Limits.OURS,
        (min(ours), max(ours)),
    )


def _accounted(spent: Sequence[Spent], nothing: Sequence[Spent]) -> list[float]:
    """Return the accounted slowdown in per cent. The cost of reading the clock is in both."""
    return [
        100 * (one.calls + one.others - none.calls - none.others) / one.work
        for one, none in zip(spent, nothing, strict=True)
    ]


def _beside(spent: Sequence[Spent], nothing: Sequence[Spent]) -> list[float]:
    """Return the slowdown beside no telemetry, in per cent."""
    return [100 * (one.all / none.all - 1) for one, none in zip(spent, nothing, strict=True)]


def _spent(exports: int, turns: int) -> Mapping[tuple[str, int], list[Spent]]:
    with sink() as url, contextlib.ExitStack() as stack:
        contenders = {
            (name, rate): stack.enter_context(_contender(name, url)) for name, rate in CONTENDERS
        }
        for number in range(exports + 1):
            # Calibrated each time, so that a second of the loop is one on the present machine.
            per_s = _updates_per_s()
            for contender in contenders.values():
                contender.spent.append(Spent())
            for turn in range(1, turns):
                _each(contenders, per_s, turn)
            _each(contenders, per_s, number, is_last=True)
    # The first one imports, connects and makes its series.
    return {key: contender.spent[1:] for key, contender in contenders.items()}


def _each(
    contenders: Mapping[tuple[str, int], Contender],
    updates_per_s: float,
    first: int,
    *,
    is_last: bool = False,
) -> None:
    """Let every contender take a turn, in rotating order. After the last one it exports."""
    order = list(contenders.items())
    first %= len(order)
    for (_, rate), contender in order[first:] + order[:first]:
        steps_per_s = rate / METRICS
        turn = f"turn {int(updates_per_s / steps_per_s)} {int(steps_per_s * TURN_S)}"
        contender.spent[-1].add(*contender.tell(turn))
        if is_last:
            contender.spent[-1].add(*contender.tell("export"))


@contextlib.contextmanager
def _contender(name: str, url: str) -> Iterator[Contender]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.contenders.loop", name, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    ) as process:
        try:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise SystemExit(f"The contender {name!r} did not start.")
            yield Contender(process)
        finally:
            process.kill()


def _updates_per_s() -> float:
    """Return the updates of a network in a second on this machine."""
    network, trial = Network(), 3000
    network.train(trial)
    start_s = time.thread_time()
    network.train(trial)
    return trial / (time.thread_time() - start_s)
