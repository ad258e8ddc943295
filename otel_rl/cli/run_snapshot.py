"""What a terminal shows of a run, read from its journal again and again at little cost."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from otel_rl.bridge.counters import Counter
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import (
    KnownWorker,
    RunOverview,
    newest_history,
    state_of,
    total_steps,
)
from otel_rl.bridge.rows.stored_run import read_standing
from otel_rl.dashboard.resemblance import headlines
from otel_rl.goodput import Spent, duration
from otel_rl.records import ExperimentKey, KeySpec
from otel_rl.run_id import run_id
from otel_rl.semconv import names
from otel_rl.view.run_data import RunData, Series, read_part
from otel_rl.view.text import in_order

_REREAD: Final = 3  # times as many records, and the newest ones are read again
_FURTHER: Final = 10  # times as far back, for a run whose steps take minutes
_RATE_MS: Final = 30_000.0  # steps of this long make the rate
_NS_PER_S: Final = 1e9
_MS_PER_S: Final = 1e3

_DROPS: Final = frozenset(
    {
        str(Counter.SAMPLES_DROPPED),
        str(Counter.POINTS_REFUSED),
        names.OTEL_RL_WORKER_MEASUREMENTS_DROPPED,
        names.OTEL_RL_WORKER_SPANS_DROPPED,
    }
)

_STANDINGS: Final = ("new", "alive", "ended", "failed", "silent")  # by ``WorkerStanding``
_CURRENT: Final = {"new", "alive"}  # unknown without a bridge

_SLOW: Final = 1.5  # times as long as its peers
_BEHIND: Final = 2  # steps of a worker that is behind its role
_LATE_S: Final = 10.0  # of an export, or of a phase, at least, and three times the usual


class WorkerLine(NamedTuple):
    """A worker.

    Attributes:
        name: ``<role>/<index>``.
        standing: In one word; ``unknown`` in place of alive if the run is interrupted.
        step: Its newest step; None without steps.
        phase: Work in which it differs most from its peers, in the last minutes; empty if unknown.
        phase_s: Its mean time of that phase in a step; or for how long it is in it, if it hangs.
        ratio: How many times as long as for the median of its peers; None without peers.
        idle_s: Since its last export.
    """

    name: str
    standing: str
    step: int | None
    phase: str
    phase_s: float
    ratio: float | None
    idle_s: float

    @property
    def role(self) -> str:
        return self.name.rpartition("/")[0]


def worst_first(workers: Sequence[WorkerLine], cause: str = "") -> Sequence[WorkerLine]:
    """Return those that need a look before all others.

    That is: the one that the diagnosis names; failed and silent ones; those that are slow, late or
    behind their role, the slowest first; then the others in their order, and ended ones.

    Args:
        workers: In the order of roles and indexes.
        cause: First cause of the diagnosis, such as ``straggler trainer/1``.
    """
    newest: dict[str, int] = {}
    for one in workers:
        newest[one.role] = max(newest.get(one.role, 0), one.step or 0)
    usual_s = median(one.idle_s for one in workers) if workers else 0.0
    accused = cause.rpartition(" ")[2]

    def rank(one: WorkerLine) -> tuple[int, float]:
        if one.name == accused:
            return 0, 0.0
        if one.standing in {"failed", "silent"}:
            return 1, 0.0
        if one.standing == "ended":
            return 4, 0.0
        ratio = one.ratio or 0.0
        is_behind = one.step is not None and newest[one.role] - one.step >= _BEHIND
        is_late = one.idle_s > max(_LATE_S, 3 * usual_s)
        if ratio >= _SLOW or is_behind or is_late:
            return 2, -ratio
        return 3, 0.0

    return sorted(workers, key=rank)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment.

    Attributes:
        state: ``running``, ``stalled``, ``interrupted``, or how it has ended.
        step: The newest step; None before the first.
        steps_per_s: Of the last half a minute; None before the second step.
        reward: Mean reward of the last step; None without one.
        alive: Workers that live; None if the run is interrupted.
        expected: Workers that should live.
        drops: Values that were dropped or refused, all reasons.
        verdict: First cause of the last diagnosis by the bridge, such as ``straggler trainer/1``,
            else its verdict; empty before one.
        goodput: Time of its allocation, by role; nothing if it is unknown.
        age_s: Since the first data.
        idle_s: Since the last data.
        workers: In the order of roles and indexes.
        total_steps: Last step, by the configuration of the run; None if that does not tell it.
    """

    key: ExperimentKey
    state: str
    step: int | None
    steps_per_s: float | None
    reward: float | None
    alive: int | None
    expected: int
    drops: int
    verdict: str
    goodput: Mapping[str, Spent]
    age_s: float
    idle_s: float
    workers: Sequence[WorkerLine]
    total_steps: int | None = None

    @property
    def left_s(self) -> float | None:
        """Return how long the rest of the steps takes; None if that is unknown, or all are done."""
        if self.total_steps is None or self.step is None or not self.steps_per_s:
            return None
        left = self.total_steps - self.step
        return left / self.steps_per_s if left > 0 and self.state == "running" else None

    @property
    def is_faulty(self) -> bool:
        return self.verdict not in {"", "healthy"}

    @property
    def counted(self) -> str:
        """Return live and expected workers: ``3/4``; ``?/4`` if unknown, ``-`` if none is."""
        if not self.expected:
            return "-"
        return f"{'?' if self.alive is None else self.alive}/{self.expected}"


def summary(snapshot: Snapshot) -> str:
    """Return a run in one line, what is wrong with it first: the end may be cut off."""
    return "  ".join([*([snapshot.verdict] if snapshot.is_faulty else []), figures(snapshot)])


def figures(snapshot: Snapshot) -> str:
    """Return how far a run is, in one line."""
    of = "" if snapshot.total_steps is None else f"/{snapshot.total_steps}"
    parts = ["no step yet" if snapshot.step is None else f"step {snapshot.step}{of}"]
    if snapshot.steps_per_s is not None:
        parts.append(f"{snapshot.steps_per_s:.2g} steps/s")
    if snapshot.left_s is not None:
        parts.append(f"{duration(snapshot.left_s)} left")
    if snapshot.reward is not None:
        parts.append(f"reward {snapshot.reward:.3g}")
    parts.append(f"workers {snapshot.counted}")
    if snapshot.drops:
        parts.append(f"dropped {snapshot.drops}")
    return "  ".join(parts)


class RunWatch:
    """Reads the newest part of one run, and then what is new. One thread.

    Args:
        records: How many of the history are enough, each of about a second. Once there are three
            times as many, the newest ones are read again: that bounds memory, and how far the
            times of phases go back.
    """

    def __init__(self, records: int = 120) -> None:
        self._records = records
        self._data = RunData()
        self._read = self._most = 0  # records of these data

    def look(
        self, connection: Connection, overview: RunOverview, now_ns: int | None = None
    ) -> Snapshot:
        """Return the run as it is now.

        Args:
            now_ns: Nanoseconds since the epoch; default: the clock.
        """
        now_ns = time.time_ns() if now_ns is None else now_ns
        run = run_id(*overview.key)
        self._read_on(connection, run)
        standing = read_standing(connection, run)
        roles = overview.roles.values()
        idle_s = max(0.0, (now_ns - overview.changed_ns) / _NS_PER_S)
        begun_ns = overview.begun_ns or overview.changed_ns
        return Snapshot(
            key=overview.key,
            state=state_of(overview, standing, now_ns),
            step=self._step() if overview.step is None else overview.step,
            steps_per_s=self._rate(),
            reward=self._reward(),
            alive=None if overview.is_interrupted else sum(role.alive for role in roles),
            expected=sum(role.expected for role in roles),
            drops=self._drops(),
            verdict=standing.cause or standing.verdict,
            goodput=standing.goodput,
            age_s=max(idle_s, (now_ns - begun_ns) / _NS_PER_S),
            idle_s=idle_s,
            workers=worker_lines(
                standing.workers, self._data, now_ns, is_interrupted=overview.is_interrupted
            ),
            total_steps=total_steps(overview.description.config),
        )

    def _read_on(self, connection: Connection, run: str) -> None:
        if not self._read or self._read > self._most:
            self._begin(connection, run, self._records)
            self._read_new(connection, run)
            if not self._data.series:
                self._begin(connection, run, _FURTHER * self._records)
        self._read_new(connection, run)

    def _begin(self, connection: Connection, run: str, records: int) -> None:
        self._data, self._read, self._most = RunData(), 0, _REREAD * records
        self._data.number = newest_history(connection, run, records=records)

    def _read_new(self, connection: Connection, run: str) -> None:
        while records := read_part(connection, run, self._data):
            self._read += records

    def _step(self) -> int | None:
        """Return the newest step of a run without rows of steps, from its spans alone."""
        return max((one.step for one in self._data.steps), default=None)

    def _rate(self) -> float | None:
        series = max(self._data.series.values(), key=lambda one: len(one.steps), default=Series())
        steps: list[tuple[float, float]] = []  # numbers that grow, with their times
        for step, time_ms in zip(series.steps, series.times_ms, strict=True):
            if not steps or step > steps[-1][0]:
                steps.append((step, time_ms))
        if len(steps) < 2:
            return None
        last, ended_ms = steps[-1]
        recent = [one for one in steps[:-1] if ended_ms - one[1] <= _RATE_MS]
        first, begun_ms = recent[0] if recent else steps[-2]
        took_s = (ended_ms - begun_ms) / _MS_PER_S
        return (last - first) / took_s if took_s > 0 else None

    def _reward(self) -> float | None:
        for word, spec in headlines(self._data.names.specs):
            if word == "reward" and spec.key in self._data.series:
                return self._newest(spec)
        return None

    def _drops(self) -> int:
        counts = [
            spec
            for spec in self._data.names.specs
            if spec.name in _DROPS
            and spec.statistic in {"value", "total"}
            and spec.key in self._data.series
        ]
        return int(sum(map(self._newest, counts)))

    def _newest(self, spec: KeySpec) -> float:
        return self._data.series[spec.key].values[-1] * spec.own_scale


def worker_lines(
    known: Sequence[KnownWorker], data: RunData, now_ns: int, *, is_interrupted: bool = False
) -> Sequence[WorkerLine]:
    """Return the workers of a run, in the order of roles and indexes.

    Args:
        known: Its processes, in the order of appearance; of a name the last one counts.
        data: The newest part of its history.
        is_interrupted: Whether no bridge works on the run, so that nothing is known of now.
    """
    times = _phase_times(data)
    peers: dict[tuple[str, str], list[float]] = defaultdict(list)
    for worker, phases in times.items():
        for phase, mean_s in phases.items():
            peers[worker.rpartition("/")[0], phase].append(mean_s)
    usual = {of: median(means) for of, means in peers.items() if len(means) > 1}
    lines = []
    last = {one.name: one for one in known}
    for name, process in sorted(last.items(), key=lambda item: in_order(item[0])):
        word = _STANDINGS[process.standing]
        if is_interrupted and word in _CURRENT:
            word = "unknown"
        role, phases = name.rpartition("/")[0], times.get(name, {})
        more = {phase: mean_s - usual.get((role, phase), 0.0) for phase, mean_s in phases.items()}
        phase = max(more, key=more.__getitem__, default="")
        phase_s = phases.get(phase, 0.0)
        lasting = data.last_phases.get(name)
        if lasting is not None and not lasting.is_over and word in _CURRENT:
            age_s = (now_ns - lasting.time_ns) / _NS_PER_S
            if age_s > max(_LATE_S, 3 * phases.get(lasting.phase, 0.0)):
                phase, phase_s = lasting.phase, age_s
        of_peers = usual.get((role, phase), 0.0)
        ratio = phase_s / of_peers if of_peers > 0 else None
        idle_s = max(0.0, (now_ns - process.received_ns) / _NS_PER_S)
        lines.append(WorkerLine(name, word, process.newest_step, phase, phase_s, ratio, idle_s))
    return lines


def _phase_times(data: RunData) -> Mapping[str, Mapping[str, float]]:
    """Return by worker the mean time of each phase in a step; waiting is no work."""
    names = {place: name for name, place in data.workers.items()}
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (role, phase), cells in data.phases.items():
        if (role, phase) in data.waits:
            continue
        total_s: dict[int, float] = defaultdict(float)
        steps: dict[int, set[int]] = defaultdict(set)
        for worker, step, seconds in zip(cells.workers, cells.steps, cells.seconds, strict=True):
            total_s[worker] += seconds
            steps[worker].add(step)
        for worker, of_worker in steps.items():
            found[names[worker]][phase] = total_s[worker] / len(of_worker)
    return found
