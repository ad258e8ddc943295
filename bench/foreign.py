"""Workers of other SDKs: their requests are written from the OTLP specification.

Each worker exports once a second. No request has exemplars, a scope of otel_rl's or anything else
that our worker adds: gauges have the step as an attribute, counters and histograms are cumulative.
Figures are cores of the bridge's processes, from loopback to a stored row of JSON lines, and the
time from the request that completes a step to its row.
"""

import random
import statistics
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, ScopeMetrics

from bench.family import family_cpu_s
from bench.figures import Figure, Limits
from bench.sites import RowWatch
from bench.sparse import SETTINGS, sent_anew, settle, wait_for
from otel_rl.run_id import run_id
from tests.lab.running import Bridge

EXPERIMENT: Final = "foreign"
LARGE, SMALL = 512, 32
SECONDS, WARM = 20, 12
ROUNDS = 3
LATE_GOAL_S = 0.6
REPEATS_GOAL = 1.5
"""CPU of a sample by that of one which is sent once."""

_S: Final = 1_000_000_000
_CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_BOUNDS: Final = (0, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000)
"""Default bounds of the specification."""


class Shape(NamedTuple):
    """Series of a worker, each measured once a second, and a histogram 16 times.

    Attributes:
        gauges: Number of them.
        counters: Number of them.
        histograms: Number of them.
        steps: Steps whose gauges a request has: one that is cumulative repeats earlier ones.
    """

    gauges: int
    counters: int = 0
    histograms: int = 0
    steps: int = 1

    @property
    def series(self) -> int:
        """Number of series that are measured each second."""
        return self.gauges + self.counters + self.histograms


GAUGES: Final = Shape(40)
MIXED: Final = Shape(20, 10, 10)
REPEATED: Final = Shape(40, steps=5)


class Worker:
    """A program with a stock SDK."""

    def __init__(self, number: int, workers: int, shape: Shape, begun_ns: int) -> None:
        self._shape, self._begun_ns, self._number = shape, begun_ns, number
        self._random = random.Random(number)
        self._counts = [[0] * (len(_BOUNDS) + 1) for _ in range(shape.histograms)]
        self._sums = [0.0] * shape.histograms
        request = ExportMetricsServiceRequest()
        resource = request.resource_metrics.add().resource
        attributes: dict[str, str | int] = {
            "service.name": "trainer",
            "service.instance.id": f"7c1d5b2a-0000-4000-8000-{number:012d}",
            "telemetry.sdk.language": "python",
            "telemetry.sdk.name": "opentelemetry",
            "telemetry.sdk.version": "1.45.2",
            "rl.experiment.name": EXPERIMENT,
            "rl.worker.role": "trainer",
            "rl.worker.index": number,
            "rl.worker.count": workers,
        }
        resource.attributes.extend(_attribute(*pair) for pair in attributes.items())
        self._head = request.SerializeToString()

    def request(self, second: int) -> bytes:
        """Build the export of a second; call it for one second after the other."""
        request = ExportMetricsServiceRequest.FromString(self._head)
        scope = request.resource_metrics[0].scope_metrics.add()
        scope.scope.name = "train"
        self._add_gauges(scope, second)
        now_ns = self._time_ns(second) + 900_000
        for n in range(self._shape.counters):
            metric = scope.metrics.add(name=f"rl.train.count_{n}", unit="{token}")
            metric.sum.aggregation_temporality = _CUMULATIVE
            metric.sum.is_monotonic = True
            metric.sum.data_points.add(
                start_time_unix_nano=self._begun_ns,
                time_unix_nano=now_ns,
                as_int=100 * (second + 1) + n,
            )
        for n in range(self._shape.histograms):
            self._add_histogram(scope, n, now_ns)
        return request.SerializeToString()

    def _add_gauges(self, scope: ScopeMetrics, second: int) -> None:
        for n in range(self._shape.gauges):
            points = scope.metrics.add(name=f"rl.train.metric_{n}", unit="1").gauge.data_points
            for step in range(max(0, second - self._shape.steps + 1), second + 1):
                point = points.add(time_unix_nano=self._time_ns(step) + n, as_double=step * 0.5 + n)
                point.attributes.append(_attribute("rl.loop.iteration", step))

    def _add_histogram(self, scope: ScopeMetrics, number: int, now_ns: int) -> None:
        counts = self._counts[number]
        for _ in range(16):
            value = self._random.lognormvariate(5, 1)
            counts[bisect_left(_BOUNDS, value)] += 1
            self._sums[number] += value
        metric = scope.metrics.add(name=f"rl.train.spread_{number}", unit="ms")
        metric.histogram.aggregation_temporality = _CUMULATIVE
        metric.histogram.data_points.add(
            start_time_unix_nano=self._begun_ns,
            time_unix_nano=now_ns,
            count=sum(counts),
            sum=self._sums[number],
            bucket_counts=counts,
            explicit_bounds=_BOUNDS,
        )

    def _time_ns(self, second: int) -> int:
        return self._begun_ns + second * _S + self._number * 1000


class Cost(NamedTuple):
    """What a load took.

    Attributes:
        cores: CPU of all processes of the bridge, by the time that the load took.
        us: CPU microseconds of a series and second.
        seconds: From the first request to the last row; more than those sent if it fell behind.
        late_s: For each step, from the request that completes it to its row.
    """

    cores: float
    us: float
    seconds: float
    late_s: Sequence[float]


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Measure the bridge under workers of other SDKs; medians over rounds."""
    large, small, seconds, rounds = (4, 4, 4, 1) if tiny else (LARGE, SMALL, SECONDS, ROUNDS)
    for shape, what, goal in ((GAUGES, "gauges", 0.6), (MIXED, "counters and histograms", 0.9)):
        found = [load(large, seconds, shape) for _ in range(rounds)]
        cores = [one.cores for one in found]
        yield Figure(
            f"foreign: {large} workers, {what}",
            *("cores", statistics.median(cores), None, "", None, goal, Limits.OURS),
            (min(cores), max(cores)),
        )
        late_s = [late for one in found for late in one.late_s]
        yield Figure(
            f"foreign: {large} workers, {what}, request to row, 99 of 100",
            *("s", statistics.quantiles(late_s, n=100, method="inclusive")[98], None, "", None),
            *(LATE_GOAL_S, Limits.OURS, (min(late_s), max(late_s))),
        )
    once, repeated = (
        [load(small, seconds, shape).us for _ in range(rounds)] for shape in (GAUGES, REPEATED)
    )
    ratios = [ours / theirs for ours, theirs in zip(repeated, once, strict=True)]
    yield Figure(
        f"foreign: {small} workers, gauges that repeat five steps",
        "us",
        statistics.median(repeated),
        statistics.median(once),
        "gauges of one step",
        statistics.median(ratios),
        REPEATS_GOAL,
        spread=(min(ratios), max(ratios)),
    )


def load(workers: int, seconds: int, shape: Shape) -> Cost:
    """Run a bridge under so many workers, and measure it once it is warm."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        begun_ns = time.time_ns() - (WARM + seconds) * _S
        senders = [Worker(number, workers, shape, begun_ns) for number in range(workers)]
        requests = [[one.request(second) for one in senders] for second in range(WARM + seconds)]
        with Bridge(directory / "bridge", SETTINGS) as bridge:
            run = directory / "bridge" / "data" / f"{run_id(EXPERIMENT, 'default')}.jsonl"
            sent_anew(bridge.url, requests[:WARM], directory)
            wait_for(run, WARM - 1)  # the newest step waits for its workers
            settle(bridge.pid)
            watch, before_s, begun_s = RowWatch(run), family_cpu_s(bridge.pid), time.monotonic()
            answered = sent_anew(bridge.url, requests[WARM:], directory, 1.0)
            wait_for(run, WARM + seconds - 1)
            took_s, used_s = time.monotonic() - begun_s, family_cpu_s(bridge.pid) - before_s
            seen = watch.stop()
    last_sent_s: dict[int, float] = {}
    for one in answered:
        step = WARM + one.second
        last_sent_s[step] = max(one.sent_s, last_sent_s.get(step, 0.0))
    late_s = [
        seen[step] - last_sent_s[step + 1]
        for step in last_sent_s
        if step in seen and step + 1 in last_sent_s
    ]
    samples = workers * seconds * shape.series
    return Cost(used_s / took_s, used_s / samples * 1e6, took_s, late_s)


def _attribute(key: str, value: str | int) -> KeyValue:
    if isinstance(value, int):
        return KeyValue(key=key, value=AnyValue(int_value=value))
    return KeyValue(key=key, value=AnyValue(string_value=value))
