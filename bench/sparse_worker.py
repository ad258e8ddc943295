"""A worker of the sparse shape: it measures each of its series once a second, and exports."""

import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.semconv.names import (
    OTEL_RL_STEP_COUNT,
    OTEL_RL_STEP_DURATION,
    OTEL_RL_STEP_SHARE,
    RL_LOOP_ITERATION,
)
from otel_rl.signals import Signal
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.gauges import GaugeEncoder, Measured, Stream, pack_heartbeat
from otel_rl.worker.otlp.requests import Intervals, RequestPacker, encode_resource, encode_scope

S = 1_000_000_000
EXPERIMENT = "sparse"


class Instruments(NamedTuple):
    """Series of a worker: each is measured once a second, and a histogram 16 times."""

    gauges: int
    counters: int = 0
    histograms: int = 0


SERIES = 40
GAUGES = Instruments(SERIES)
MIXED = Instruments(32, 6, 2)

_VALUES = 16
_SCALE = 4
_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_SCOPE = InstrumentationScope("bench")


class Worker:
    """A worker of otel_rl. Exemplars of its counters and histograms tell of steps."""

    def __init__(
        self,
        number: int,
        workers: int,
        instruments: Instruments,
        begun_ns: int,
        experiment: str = EXPERIMENT,
    ) -> None:
        self._streams = [Stream(_SCOPE, f"rl.train.metric_{n}") for n in range(instruments.gauges)]
        self._counters = [f"rl.train.count_{n}" for n in range(instruments.counters)]
        self._histograms = [f"rl.train.spread_{n}" for n in range(instruments.histograms)]
        self._number, self._begun_ns = number, begun_ns
        self._random = random.Random(number)
        self._resource = encode_resource(
            Resource(
                {
                    "rl.experiment.name": experiment,
                    "rl.worker.role": "trainer",
                    "rl.worker.index": number,
                    "rl.worker.count": workers,
                    "service.instance.id": f"4f6b2d9e-0000-4000-8000-{number:012d}",
                    "service.name": "trainer",
                    "host.name": f"node-{number // 8}",
                    "telemetry.distro.name": "otel_rl",
                }
            )
        )
        self._intervals = Intervals(begun_ns - 1)
        self._gauges = GaugeEncoder(Guard(Drops()), self._intervals)

    def request(self, second: int) -> bytes:
        """Build the export of a second; call it for one second after the other."""
        (only,) = self.requests(range(second, second + 1))
        return only

    def requests(self, seconds: range) -> Sequence[bytes]:
        """Build the requests of one export that has all measurements of some seconds."""
        packer = RequestPacker(self._resource, Signal.METRICS)
        entries: list[Measured] = []
        for second in seconds:
            time_ns = self._time_ns(second)
            entries += [
                (stream, second * 0.5 + n, {"rl.loop.iteration": second}, time_ns + n, Context())
                for n, stream in enumerate(self._streams)
            ]
        self._gauges.pack(entries, packer)
        if self._counters or self._histograms:
            self._pack_counts(seconds, packer)
        return [request.payload for request in packer.requests()]

    def _time_ns(self, second: int) -> int:
        return self._begun_ns + second * S + self._number * 1000

    def _pack_counts(self, seconds: range, packer: RequestPacker) -> None:
        for name in self._counters:
            _pack(packer, self._total(name, seconds))
        for name in self._histograms:
            _pack(packer, self._spread(name, seconds))
        last_ns = self._time_ns(seconds[-1])
        pack_heartbeat(packer, last_ns)

    def _total(self, name: str, seconds: range) -> Metric:
        metric = Metric(name=name)
        metric.sum.aggregation_temporality, metric.sum.is_monotonic = _CUMULATIVE, True
        last = seconds[-1]
        point = metric.sum.data_points.add(
            start_time_unix_nano=self._begun_ns,
            time_unix_nano=self._time_ns(last) + 5000,
            as_int=100 * (last + 1),
        )
        for second in seconds:
            point.exemplars.add(
                time_unix_nano=self._time_ns(second),
                as_int=100,
                filtered_attributes=_marks(
                    {RL_LOOP_ITERATION: second, OTEL_RL_STEP_SHARE: S, OTEL_RL_STEP_DURATION: S}
                ),
            )
        return metric

    def _spread(self, name: str, seconds: range) -> Metric:
        metric = Metric(name=name)
        metric.exponential_histogram.aggregation_temporality = _DELTA
        last_ns = self._time_ns(seconds[-1])
        start_ns, time_ns = self._intervals.following((b"total", name, b""), last_ns + 5000)
        point = metric.exponential_histogram.data_points.add(
            start_time_unix_nano=start_ns, time_unix_nano=time_ns, scale=_SCALE
        )
        values: list[float] = []
        for second in seconds:
            for n in range(_VALUES):
                marks = {RL_LOOP_ITERATION: second}
                if not n:
                    marks[OTEL_RL_STEP_COUNT] = 1
                values.append(self._random.lognormvariate(5, 1))
                point.exemplars.add(
                    time_unix_nano=self._time_ns(second) - 2000,
                    as_double=values[-1],
                    filtered_attributes=_marks(marks),
                )
        point.count, point.sum, point.min, point.max = (
            *(len(values), sum(values)),
            *(min(values), max(values)),
        )
        counts = Counter(math.ceil(math.log2(value) * 2**_SCALE) - 1 for value in values)
        point.positive.offset = min(counts)
        point.positive.bucket_counts.extend(counts[n] for n in range(min(counts), max(counts) + 1))
        point.negative.bucket_counts.append(0)
        return metric


def _marks(marks: Mapping[str, int]) -> Sequence[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(int_value=value)) for key, value in marks.items()]


def _pack(packer: RequestPacker, metric: Metric) -> None:
    packer.add(encode_scope(_SCOPE).head, metric.SerializeToString())


def traffic(
    workers: int, seconds: int, instruments: Instruments = GAUGES
) -> Sequence[Sequence[bytes]]:
    """Build the requests of all workers, by second; the last one is now."""
    begun_ns = time.time_ns() - seconds * S
    senders = [Worker(number, workers, instruments, begun_ns) for number in range(workers)]
    return [*_by_second(senders, seconds)]


def _by_second(senders: Sequence[Worker], seconds: int) -> Iterator[Sequence[bytes]]:
    for second in range(seconds):
        yield [sender.request(second) for sender in senders]
