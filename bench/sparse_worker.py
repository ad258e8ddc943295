"""A worker of the sparse shape: it measures each of its series once a second, and exports."""

import random
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.semconv.names import OTEL_RL_WORKER_HEARTBEAT
from otel_rl.signals import Signal
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.buffer import Measured
from otel_rl.worker.metrics.expander import Expander
from otel_rl.worker.metrics.exponential import ExponentialBuckets
from otel_rl.worker.otlp import protobuf
from otel_rl.worker.otlp.gauges import Stream, encode_heartbeat
from otel_rl.worker.otlp.intervals import Intervals
from otel_rl.worker.otlp.request_packer import RequestPacker, encode_resource
from otel_rl.worker.otlp.step_shares import Share, ShareStream, encode_shares

__all__ = ["EXPERIMENT", "GAUGES", "MIXED", "SERIES", "Instruments", "S", "Worker", "traffic"]

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
_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_SCOPE = InstrumentationScope("bench")


class Worker:
    """A worker of otel_rl. Its counters and histograms send steps' shares, and the SDK's totals."""

    def __init__(
        self,
        number: int,
        workers: int,
        instruments: Instruments,
        begun_ns: int,
        experiment: str = EXPERIMENT,
    ) -> None:
        self._streams = [Stream(_SCOPE, f"rl.train.metric_{n}") for n in range(instruments.gauges)]
        self._counters = [_share(f"count_{n}") for n in range(instruments.counters)]
        self._histograms = [
            _share(f"spread_{n}", is_histogram=True) for n in range(instruments.histograms)
        ]
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
        self._expander = Expander(Guard(Drops()), self._intervals)

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
        self._expander.pack(entries, packer)
        if self._counters or self._histograms:
            self._pack_counts(seconds, packer)
        return [request.payload for request in packer.requests()]

    def _time_ns(self, second: int) -> int:
        return self._begun_ns + second * S + self._number * 1000

    def _pack_counts(self, seconds: range, packer: RequestPacker) -> None:
        shares: list[Share] = []
        spreads: list[ExponentialBuckets] = []
        for second in seconds:
            begun_ns, ended_ns = self._time_ns(second - 1), self._time_ns(second)
            shares += [Share(s, b"", second, begun_ns, ended_ns, 100) for s in self._counters]
            for stream in self._histograms:
                spread = ExponentialBuckets()
                spread.extend([self._random.lognormvariate(5, 1) for _ in range(_VALUES)])
                spreads.append(spread)
                amount = spread.taken()
                shares.append(Share(stream, b"", second, begun_ns, ended_ns, amount or 0))
        encode_shares(shares, self._intervals, packer)
        last = seconds[-1]
        for counter in self._counters:
            _pack(packer, counter, self._total(counter.name, last))
        for histogram, spread in zip(self._histograms, spreads[::-1], strict=False):
            _pack(packer, histogram, self._spread(histogram.name, spread, last))
        packer.add(_HEARTBEAT.scope_head, *encode_heartbeat(_HEARTBEAT, self._time_ns(last)), 0)

    def _total(self, name: str, second: int) -> Metric:
        metric = Metric(name=name)
        metric.sum.aggregation_temporality, metric.sum.is_monotonic = _CUMULATIVE, True
        time_ns = self._time_ns(second) + 5000
        point = metric.sum.data_points.add(
            start_time_unix_nano=self._begun_ns, time_unix_nano=time_ns, as_int=100 * (second + 1)
        )
        point.exemplars.add(time_unix_nano=time_ns - 2000, as_int=100)
        return metric

    def _spread(self, name: str, spread: ExponentialBuckets, second: int) -> Metric:
        metric = Metric(name=name)
        metric.exponential_histogram.aggregation_temporality = _DELTA
        key = b"total", name.encode()
        start_ns, time_ns = self._intervals.following(key, self._time_ns(second) + 5000)
        point = metric.exponential_histogram.data_points.add(
            start_time_unix_nano=start_ns,
            time_unix_nano=time_ns,
            count=spread.count,
            sum=spread.total,
            scale=spread.scale,
            min=spread.minimum,
            max=spread.maximum,
        )
        first, last = min(spread.counts), max(spread.counts)
        point.positive.offset = first
        counts = [spread.counts.get(n, 0) for n in range(first, last + 1)]
        point.positive.bucket_counts.extend(counts)
        point.negative.bucket_counts.append(0)
        point.exemplars.add(time_unix_nano=time_ns - 2000, as_double=spread.maximum)
        return metric


def _pack(packer: RequestPacker, stream: ShareStream, metric: Metric) -> None:
    encoded = protobuf.field(2, metric.SerializeToString())
    packer.add(stream.encoded.scope_head, (encoded,), len(encoded))


_HEARTBEAT = Stream(InstrumentationScope("otel_rl"), OTEL_RL_WORKER_HEARTBEAT, "1")


def _share(name: str, *, is_histogram: bool = False) -> ShareStream:
    return ShareStream(_SCOPE, f"rl.train.{name}", "", "", is_histogram)


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
