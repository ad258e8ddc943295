"""Workers that measure, and the collector between them and the bridge that repeats and reorders."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from otel_rl.errors import OtelRLError
from otel_rl.records import ExperimentKey
from tests.simulation import otlp

_MS = 1_000_000

MOST_VALUES = 1 << 20
"""Of a world."""


def distinct_values() -> Iterator[int]:
    """Values such that the sum of some says which, and that a float holds the sum of many."""
    chance = random.Random(0)
    return (chance.getrandbits(26) * MOST_VALUES + n for n in range(1, MOST_VALUES))


@dataclass(slots=True)
class Measured:
    """What the workers of an experiment have measured, all of which is to be in its run.

    Attributes:
        values: Each measurement's value, which no other has, and its step if it carries one.
        stepped: Those that carry a step, by role and step.
        counts: What was counted, by role and metric.
    """

    values: dict[int, int | None] = field(default_factory=dict)
    stepped: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


class Process:
    """One worker process, from its start to its end.

    Args:
        key: Its run.
        measured: Where it takes note of what it measures.
        role: Its role.
        index: Its place among the workers of the role.
        number: No other process has it.
        is_ours: Whether it uses otel_rl; else the SDK alone.
        skew_ns: How far its clock is from the bridge's.
        values: Gives values that nobody else has.
        chance: Decides how much it measures.
    """

    def __init__(
        self,
        key: ExperimentKey,
        measured: Measured,
        *,
        role: str,
        index: int,
        number: int,
        is_ours: bool,
        skew_ns: int,
        now_ns: int,
        values: Iterator[int],
        chance: random.Random,
    ) -> None:
        self.key = key
        self.role = role
        self.index = index
        self.skew_ns = skew_ns
        self._measured = measured
        self._is_ours = is_ours
        self._values = values
        self._chance = chance
        self._step = chance.randint(0, 3)
        self._start_ns = self._exported_ns = now_ns + skew_ns
        self._tiled_ns = dict.fromkeys(("stepped", "timed"), self._start_ns)
        self._counted = 0
        self._resource: dict[str, str | int] = {
            "rl.experiment.name": key.experiment,
            "rl.worker.role": role,
            "rl.worker.index": index,
            "service.instance.id": f"process-{number}",
        }
        if is_ours:
            self._resource["telemetry.distro.name"] = "otel_rl"

    def export(self, now_ns: int) -> list[bytes]:
        """Measure a few things, and give them away as pieces of one point each."""
        # No two exports happen in the same nanosecond, not even by a clock that was set back.
        now_ns += self.skew_ns + self._chance.randrange(_MS)
        stepped = [self._measure(now_ns, step=True) for _ in range(self._chance.randint(0, 3))]
        timed = [self._measure(now_ns, step=False) for _ in range(self._chance.randint(0, 2))]
        metrics = []
        if self._is_ours:
            for name, marks in (("stepped", stepped), ("timed", timed)):
                if marks:
                    start_ns = self._tiled_ns[name]
                    end_ns = self._tiled_ns[name] = max(now_ns, start_ns + 1)
                    metrics.append(otlp.measurements(name, start_ns, end_ns, marks))
        else:
            # A stock SDK keeps the last measurement of a series.
            metrics += [otlp.level("stepped", *mark) for mark in stepped]
            metrics += [otlp.level("timed", *mark) for mark in timed]
        metrics += self._counters(now_ns)
        if self._is_ours:
            metrics.append(otlp.heartbeat(now_ns))
        return [otlp.piece(self._resource, metric) for metric in metrics]

    def _measure(self, now_ns: int, *, step: bool) -> tuple[int, int, int | None]:
        value = next(self._values)
        if step:
            self._step += self._chance.choice([0, 1, 1, 2])
            self._measured.stepped.setdefault((self.role, self._step), []).append(value)
        self._measured.values[value] = self._step if step else None
        # No two measurements are made at the same time.
        time_ns = now_ns - self._chance.randrange(500) * _MS + value % MOST_VALUES
        return time_ns, value, self._step if step else None

    def _counters(self, now_ns: int) -> list[Metric]:
        new = self._chance.randint(0, 4)
        self._counted += new
        counts, start_ns, end_ns = self._measured.counts, self._exported_ns, now_ns
        if self._is_ours:
            end_ns = max(now_ns, start_ns + 1)
        self._exported_ns = end_ns
        counts[f"{self.role}/cumulative"] += new
        counts[f"{self.role}/delta"] += new
        metrics = [
            otlp.counted("cumulative", self._start_ns, now_ns, self._counted, otlp.CUMULATIVE),
            otlp.counted("delta", start_ns, end_ns, new, otlp.DELTA),
        ]
        if new:
            counts[f"{self.role}/spread"] += new
            metrics.append(otlp.distribution("spread", start_ns, end_ns, new))
        return metrics


class Collector:
    """Takes what workers export, and sends it until it is acknowledged; some of it again later.

    Args:
        accept: The bridge: returns if it has taken a request.
        chance: Decides what is lost, repeated, joined, cut and overtaken.
        events: Counts what has happened.

    Attributes:
        is_calm: Whether everything arrives, once, and so does every answer.
        waiting: Requests that were not acknowledged, as pieces.
        repeated: Requests that were sent again after they were taken.
    """

    def __init__(
        self, accept: Callable[[bytes], None], chance: random.Random, events: Counter[str]
    ) -> None:
        self._accept = accept
        self._chance = chance
        self._events = events
        self.is_calm = False
        self.waiting: list[list[bytes]] = []
        self.repeated = 0
        self._acknowledged: list[list[bytes]] = []

    def take(self, pieces: list[bytes]) -> None:
        self.waiting.append(pieces)

    def send(self) -> None:
        """Send something."""
        if self.is_calm:
            if self.waiting:
                self._send(self.waiting, 0)
            return
        self._cut_and_join(self.waiting)
        if self._acknowledged and self._chance.random() < 0.15:
            # It was in flight when the collector stopped, or its answer was lost.
            self._cut_and_join(self._acknowledged)
            self.repeated += 1
            self._send(self._acknowledged, self._chance.randrange(len(self._acknowledged)))
        elif self.waiting:
            is_overtaken = self._chance.random() < 0.3
            place = self._chance.randrange(len(self.waiting)) if is_overtaken else 0
            self._events["a request was overtaken"] += place > 0
            self._send(self.waiting, place)

    def _send(self, requests: list[list[bytes]], place: int) -> None:
        pieces = requests[place]
        lost = 0.0 if self.is_calm else self._chance.random()
        if lost > 0.9:
            self._events["a request was lost"] += 1
            return
        try:
            self._accept(b"".join(pieces))
        except OtelRLError:
            return
        if lost > 0.75:
            self.repeated += 1
            self._events["an answer was lost"] += 1
            return
        del requests[place]
        self._acknowledged.append(pieces)

    def _cut_and_join(self, requests: list[list[bytes]]) -> None:
        if len(requests) > 1 and self._chance.random() < 0.2:
            taken = requests.pop(self._chance.randrange(len(requests)))
            pieces = taken + requests.pop(self._chance.randrange(len(requests)))
            self._chance.shuffle(pieces)
            cut = self._chance.randrange(len(pieces) + 1)
            requests += [part for part in (pieces[:cut], pieces[cut:]) if part]
