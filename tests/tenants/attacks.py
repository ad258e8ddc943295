"""What a hostile or broken tenant sends, at the sizes at which bridges have fallen over.

Each attack is made of lanes that send side by side, each its requests in turn.
"""

import gzip
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from otel_rl.semconv.spec import STEP_SPAN
from tests.support.otlp_requests import delimited, gauge, key_values, metrics_request, point

ATTACKER = "attacker"
"""Where the names of its experiments begin, and the name of its token."""

MIB = 1 << 20
_STEP = "rl.loop.iteration"


@dataclass(frozen=True)
class Request:
    """One HTTP request.

    Attributes:
        path: Such as ``/v1/metrics``.
        body: As it is sent.
        encoding: Its ``Content-Encoding``; empty for none.
    """

    path: str
    body: bytes
    encoding: str = ""


Lane = Sequence[Request]


@dataclass(frozen=True)
class Attack:
    """What is sent beside a victim.

    Attributes:
        name: In the figures.
        lanes: Makes what is sent side by side; called in the process that sends.
        repeats: Whether a lane begins again when it has sent everything.
        headers_only: gRPC calls that send their headers and no message: connections every five
            seconds.
        comes_first: Whether it has begun before the victim sends for the first time.
        settings: Variables of the bridge.
    """

    name: str
    lanes: Callable[[], Sequence[Lane]] = list
    repeats: bool = True
    headers_only: int = 0
    comes_first: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)


def _resource(experiment: str = "one", **attributes: str | int) -> dict[str, str | int]:
    named = {"rl.experiment.name": f"{ATTACKER}/{experiment}", "rl.worker.role": "trainer"}
    return {**named, **{key.replace("_", "."): value for key, value in attributes.items()}}


def _metrics(request: ExportMetricsServiceRequest) -> Request:
    return Request("/v1/metrics", gzip.compress(request.SerializeToString(), 1), "gzip")


def _traces(request: ExportTraceServiceRequest) -> Request:
    return Request("/v1/traces", gzip.compress(request.SerializeToString(), 9), "gzip")


def gzip_members() -> Sequence[Lane]:
    """Two bodies of 40 MB that are nothing but empty gzip members."""
    member = gzip.compress(b"", mtime=0)
    body = member * (40_000_000 // len(member))
    return [[Request("/v1/metrics", body, "gzip")]] * 2


def empty_scopes() -> Sequence[Lane]:
    """1.9 million scopes with nothing in them, a few kilobytes on the wire; four at a time."""
    resource = metrics_request(gauge(), resource=_resource()).resource_metrics[0].resource
    inner = delimited(0x0A, resource.SerializeToString()) + delimited(0x12, b"") * 1_900_000
    return [[Request("/v1/metrics", gzip.compress(delimited(0x0A, inner), 9), "gzip")]] * 4


def long_names() -> Sequence[Lane]:
    """Names of metrics as long as a request can be, each another one."""
    return [[_named("m" * (62 * MIB) + str(n)) for n in range(8)]]


def _named(name: str) -> Request:
    request = metrics_request(gauge(point(), name=name), resource=_resource())
    return Request("/v1/metrics", gzip.compress(request.SerializeToString(), 1), "gzip")


def heavy_spans() -> Sequence[Lane]:
    """2,400 spans of 660 kB: their names, phases and links; 1.5 MiB on the wire."""
    return [[_heavy(n) for n in range(25)]]


def _heavy(part: int) -> Request:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.extend(key_values(_resource(rl_worker_index=0)))
    spans = resource_spans.scope_spans.add().spans
    for n in range(96):
        now_ns = time.time_ns()
        span = spans.add(
            name="n" * 300_000,
            trace_id=(part + 1).to_bytes(16),
            span_id=(part * 96 + n + 1).to_bytes(8),
            start_time_unix_nano=now_ns - 1_000_000,
            end_time_unix_nano=now_ns,
        )
        span.attributes.extend(key_values({"rl.phase": "p" * 300_000, _STEP: part}))
        for _ in range(1_500):
            span.links.add(trace_id=b"\1" * 16, span_id=b"\2" * 8)
    return _traces(request)


def newest_first() -> Sequence[Lane]:
    """Two requests of 100,000 points of one series, the newest first."""
    now_ns = time.time_ns()
    halves = (range(100_000), range(100_000, 200_000))
    return [[_aged(now_ns, ages) for ages in halves]]


def _aged(now_ns: int, ages: range) -> Request:
    points = (point(1.0, now_ns - age * 1000) for age in ages)
    return _metrics(metrics_request(gauge(*points), resource=_resource(rl_worker_index=0)))


def many_roles() -> Sequence[Lane]:
    """4,000 roles, a worker each."""
    return [_many(lambda n: {"rl.worker.role": f"role-{n}", "rl.worker.index": 0}, 4_000)]


def many_workers() -> Sequence[Lane]:
    """9,000 workers that do not know their index."""
    return [_many(lambda n: {"service.instance.id": f"worker-{n}"}, 9_000)]


def _many(attributes: Callable[[int], Mapping[str, str | int]], n: int) -> Lane:
    """Three steps of so many workers, a thousand workers a request."""
    lane = []
    for step in range(3):
        for first in range(0, n, 1000):
            request = ExportMetricsServiceRequest()
            for worker in range(first, min(n, first + 1000)):
                one = point()
                one.attributes.extend(key_values({_STEP: step}))
                resource = {**_resource(), **attributes(worker)}
                request.MergeFrom(metrics_request(gauge(one), resource=resource))
            lane.append(_metrics(request))
    return lane


def many_spans() -> Sequence[Lane]:
    """100,000 spans of ten workers over 500 steps, for diagnosis to look at."""
    first = point()
    first.attributes.extend(key_values({_STEP: 0}))
    leader = metrics_request(gauge(first), resource=_resource(rl_worker_index=0))
    return [[_metrics(leader), *(_phases(first) for first in range(0, 500, 50))]]


def _phases(first: int) -> Request:
    request = ExportTraceServiceRequest()
    now_ns = time.time_ns()
    for worker in range(10):
        resource_spans = request.resource_spans.add()
        resource_spans.resource.attributes.extend(key_values(_resource(rl_worker_index=worker)))
        spans = resource_spans.scope_spans.add().spans
        for step in range(first, first + 50):
            trace_id, ids = (step + 1).to_bytes(16), (step * 10 + worker) * 20 + 1
            for n in range(20):
                start_ns = now_ns + (step * 20 + n) * 1_000_000
                # The first one is the step, the others are in it.
                span = spans.add(
                    name="rl.phase" if n else STEP_SPAN,
                    trace_id=trace_id,
                    span_id=(ids + n).to_bytes(8),
                    parent_span_id=ids.to_bytes(8) if n else b"",
                    start_time_unix_nano=start_ns,
                    end_time_unix_nano=start_ns + (900_000 if n else 19_900_000),
                )
                phase = {"rl.phase": f"part-{n}"} if n else {}
                span.attributes.extend(key_values({**phase, _STEP: step}))
    return _traces(request)


def many_runs() -> Sequence[Lane]:
    """1,000 experiments at a time."""
    return [
        [
            _metrics(metrics_request(gauge(), resource=_resource(f"run-{n}", rl_worker_index=0)))
            for n in range(lane, 1_000, 4)
        ]
        for lane in range(4)
    ]


def dense_points() -> Sequence[Lane]:
    """190,000 points in one request, six such requests at a time."""
    return [[_dense(lane)] for lane in range(6)]


def _dense(lane: int) -> Request:
    now_ns = time.time_ns()
    metrics = [
        gauge(*(point(float(n), now_ns - n) for n in range(1_900)), name=f"metric.{lane}.{number}")
        for number in range(100)
    ]
    return _metrics(metrics_request(*metrics, resource=_resource(rl_worker_index=lane)))


def many_experiments() -> Sequence[Lane]:
    """More experiments than a bridge keeps, four hundred a request."""
    return [[_experiments(first) for first in range(0, 2_000, 400)]]


def _experiments(first: int) -> Request:
    request = ExportMetricsServiceRequest()
    for n in range(first, first + 400):
        request.MergeFrom(metrics_request(gauge(), resource=_resource(f"run-{n}")))
    return _metrics(request)


def full_journal() -> Sequence[Lane]:
    """More than the journal holds, incompressible, over many experiments."""
    noise = _noise()
    return [[_noisy(f"run-{n % 100}", next(noise)) for n in range(200)] for _ in range(2)]


def _noise() -> Iterator[str]:
    n = 0
    while True:
        n += 1
        yield str(n)


def _noisy(experiment: str, text: str) -> Request:
    metrics = []
    for number in range(400):
        one = point(float(number))
        one.attributes.extend(key_values({"text": text * 100, "n": number}))
        metrics.append(Metric(name=f"m.{text}.{number}"))
        metrics[-1].gauge.data_points.append(one)
    return _metrics(metrics_request(*metrics, resource=_resource(experiment)))


ATTACKS: Sequence[Attack] = [
    Attack("nothing"),
    Attack("gzip_members", gzip_members),
    Attack("heavy_spans", heavy_spans),
    Attack("empty_scopes", empty_scopes),
    Attack("long_names", long_names),
    Attack("newest_first", newest_first, repeats=False),
    Attack("many_roles", many_roles),
    Attack("many_workers", many_workers),
    Attack("many_spans", many_spans, settings={"OTEL_RL_BRIDGE__DIAGNOSE__EVERY": "5"}),
    Attack("many_runs", many_runs),
    Attack("dense_points", dense_points),
    Attack("headers_only", headers_only=8),
    Attack("many_experiments", many_experiments, comes_first=True),
    Attack(
        "full_journal",
        full_journal,
        comes_first=True,
        settings={"OTEL_RL_BRIDGE__JOURNAL__MAX_BYTES": str(8 * MIB)},
    ),
]
"""What the issues of other bridges and ours have shown, and nothing at all to compare with."""
