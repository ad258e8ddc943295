"""A small run of two trainers, as OTLP batches, and a bridge without its network that takes it.

``leave`` makes a journal with the first steps; a test sends the others.
"""

from collections.abc import Callable
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Metric,
)

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.rows.scheduler import Around, Pace, Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Batch, ExperimentKey, Signal
from tests.support.otlp_requests import (
    Attributes,
    event,
    gauge,
    key_values,
    logs_request,
    metrics_request,
    point,
)

S = 1_000_000_000
T0 = 1_700_000_000 * S

LIVE, ENDED = ExperimentKey("live"), ExperimentKey("ended")
RANKS, STEPS = 2, 10
HALF = 5
"""The step in whose middle the journal is left: rank 0 has made it, and rank 1 has not."""


class Life:
    """The journal of a directory, and what makes rows in it. Time is an argument.

    Args:
        directory: Of the journal.
        clock_ns: Tells when the run changed last.
    """

    def __init__(self, directory: Path, *, clock_ns: Callable[[], int] = lambda: T0) -> None:
        self.journal = SqliteJournal(directory)
        self.spool, self.runs = Spool(self.journal), RunStore(self.journal, clock_ns=clock_ns)
        self.counters = Counters()
        self.processor = Scheduler(
            self.spool,
            self.runs,
            AlignSettings(per_worker=True, window_s=2, spans_wait_s=2),
            self.counters,
            around=Around(archive_room=lambda: True),
            pace=Pace(clock_s=lambda: 0.0),
        )

    def take(self, *batches: Batch, now_ns: int) -> None:
        """Accept batches, and make rows of them."""
        self.spool.append(batches)
        while self.processor.round(now_ns):
            pass


def leave(directory: Path) -> None:
    """Leave a journal in the middle of a run, beside a run that has ended."""
    life = Life(directory)
    for key in (ENDED, LIVE):
        life.take(*(begin(key, rank) for rank in range(RANKS)), now_ns=start_ns(key))
        for number in range(STEPS):
            for rank in range(RANKS):
                if key == ENDED or number < HALF or (number == HALF and rank == 0):
                    now_ns = start_ns(key) + (number + 1) * S
                    life.take(*step(key, rank, number), now_ns=now_ns)
        if key == ENDED:
            end_ns = start_ns(key) + (STEPS + 1) * S
            life.take(*(end(key, rank, end_ns) for rank in range(RANKS)), now_ns=end_ns)
    # Accepted, and in no row yet.
    life.spool.append([begin(LIVE, 0)])
    life.journal.close()


def start_ns(key: ExperimentKey) -> int:
    """When a run starts: the second after the first has ended."""
    return T0 if key == ENDED else T0 + 20 * S


def begin(key: ExperimentKey, rank: int) -> Batch:
    """A trainer starts."""
    config: Attributes = {
        "rl.experiment.config": {"lr": 0.1, "layers": [1, 2], "name": None, "seed": 2**62},
        "rl.experiment.tags": ["small"],
    }
    return _events(key, rank, "rl.experiment.start", config, start_ns(key))


def end(key: ExperimentKey, rank: int, now_ns: int) -> Batch:
    """A trainer says goodbye."""
    return _events(key, rank, "rl.worker.end", {"rl.worker.status": "complete"}, now_ns)


def step(key: ExperimentKey, rank: int, number: int) -> list[Batch]:
    """All that one trainer sends after one step: metrics, spans, a sample."""
    now_ns = start_ns(key) + (number + 1) * S
    attributes: Attributes = {"rl.loop.iteration": number}
    loss = point(number + rank / 2, now_ns)
    loss.attributes.extend(key_values(attributes))
    depth = gauge(point(float("nan") if number == 2 else 7.0, now_ns), name="depth")
    metrics = metrics_request(
        gauge(loss),
        depth,
        _tokens(start_ns(key), number),
        _latency(start_ns(key), number),
        *_counts_of_steps(start_ns(key), number),
        resource=_resource(key, rank),
    )
    text: Attributes = {"answer": f"{rank}-{number}", "reward": 0.5, "list": [1, None]}
    sample = event(
        "rl.rollout.sample", {**attributes, "rl.sample.table": "answers"}, text, time_ns=now_ns
    )
    return [
        Batch(key, Signal.METRICS, metrics.SerializeToString(), now_ns),
        _spans(key, rank, number, now_ns),
        Batch(
            key,
            Signal.LOGS,
            logs_request(sample, resource=_resource(key, rank)).SerializeToString(),
            now_ns,
        ),
    ]


def gpu(key: ExperimentKey, rank: int, use: float, now_ns: int) -> Batch:
    """How busy the GPU of a trainer is."""
    of_gpu = point(use, now_ns)
    of_gpu.attributes.extend(
        key_values({"hw.id": f"GPU-{rank}", "hw.name": "gpu0", "host.name": f"host-{rank}"})
    )
    request = metrics_request(
        gauge(of_gpu, name="hw.gpu.utilization"), resource=_resource(key, rank)
    )
    return Batch(key, Signal.METRICS, request.SerializeToString(), now_ns)


def console(key: ExperimentKey, rank: int, text: str, now_ns: int) -> Batch:
    """What a trainer has printed."""
    line = event("rl.worker.console", {"log.iostream": "stdout"}, text, time_ns=now_ns)
    request = logs_request(line, resource=_resource(key, rank))
    return Batch(key, Signal.LOGS, request.SerializeToString(), now_ns)


def _tokens(begun_ns: int, number: int) -> Metric:
    """A total of 100 a step."""
    tokens = Metric(name="tokens")
    tokens.sum.is_monotonic = True
    tokens.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    tokens.sum.data_points.add(
        as_int=100 * (number + 1),
        start_time_unix_nano=begun_ns,
        time_unix_nano=begun_ns + (number + 1) * S,
    )
    return tokens


def _latency(begun_ns: int, number: int) -> Metric:
    """Three measurements a step, in two buckets."""
    latency, n = Metric(name="latency"), number + 1
    latency.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    latency.histogram.data_points.add(
        start_time_unix_nano=begun_ns,
        time_unix_nano=begun_ns + n * S,
        count=3 * n,
        sum=2.5 * n,
        explicit_bounds=[1.0],
        bucket_counts=[2 * n, n],
    )
    return latency


def _counts_of_steps(begun_ns: int, number: int) -> list[Metric]:
    """What a step counted: 10 updates, and two waits."""
    updates, waits = Metric(name="updates"), Metric(name="waits")
    updates.sum.is_monotonic = True
    updates.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    waits.exponential_histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
    before_ns, now_ns = begun_ns + number * S, begun_ns + (number + 1) * S
    step: Attributes = {"rl.loop.iteration": number}
    total = updates.sum.data_points.add(
        as_int=10 * (number + 1), start_time_unix_nano=begun_ns, time_unix_nano=now_ns
    )
    marks: Attributes = {**step, "otel_rl.step.share": S, "otel_rl.step.duration": S}
    total.exemplars.add(as_int=10, time_unix_nano=now_ns, filtered_attributes=key_values(marks))
    spread = waits.exponential_histogram.data_points.add(
        start_time_unix_nano=before_ns, time_unix_nano=now_ns, count=2, sum=3.0, min=1.0, max=2.0
    )
    spread.positive.offset = -1
    spread.positive.bucket_counts.extend([1, 1])
    for measured in (1.0, 2.0):
        spread.exemplars.add(
            as_double=measured,
            time_unix_nano=now_ns,
            filtered_attributes=key_values({**step, "otel_rl.step.count": 1}),
        )
    return [updates, waits]


def _spans(key: ExperimentKey, rank: int, number: int, end_ns: int) -> Batch:
    """A step of a second, of which half was training."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.extend(key_values(_resource(key, rank)))
    spans = resource_spans.scope_spans.add().spans
    trace, root = (number + 1).to_bytes(16), bytes(6) + bytes([rank, 1])
    for name, span_id, took_ns in ("rl.loop", root, S), ("train", root[:7] + b"\2", S // 2):
        span = spans.add(
            name=name,
            trace_id=trace,
            span_id=span_id,
            parent_span_id=b"" if span_id == root else root,
            start_time_unix_nano=end_ns - S,
            end_time_unix_nano=end_ns - S + took_ns,
        )
        known: Attributes = {"rl.loop.iteration": number}
        if name == "train":
            known = {**known, "rl.phase": "train", "rl.phase_class": "compute"}
        span.attributes.extend(key_values(known))
    return Batch(key, Signal.TRACES, request.SerializeToString(), end_ns)


def load(key: ExperimentKey, rank: int, number: int, took_s: float) -> Batch:
    """What a trainer has read before a step, as a phase."""
    request = ExportTraceServiceRequest()
    of = request.resource_spans.add()
    of.resource.attributes.extend(key_values(_resource(key, rank)))
    begun_ns = start_ns(key) + number * S
    span = of.scope_spans.add().spans.add(
        name="load",
        trace_id=(number + 1).to_bytes(16),
        span_id=bytes(6) + bytes([rank, 3]),
        start_time_unix_nano=begun_ns,
        end_time_unix_nano=begun_ns + int(took_s * S),
    )
    known: Attributes = {"rl.loop.iteration": number, "rl.phase": "load", "rl.phase_class": "io"}
    span.attributes.extend(key_values(known))
    return Batch(key, Signal.TRACES, request.SerializeToString(), begun_ns + S)


def _events(
    key: ExperimentKey, rank: int, name: str, attributes: Attributes, time_ns: int
) -> Batch:
    request = logs_request(event(name, attributes, time_ns=time_ns), resource=_resource(key, rank))
    return Batch(key, Signal.LOGS, request.SerializeToString(), time_ns)


def _resource(key: ExperimentKey, rank: int) -> Attributes:
    return {
        "rl.experiment.name": key.experiment,
        "rl.worker.role": "trainer",
        "rl.worker.index": rank,
        "rl.worker.count": RANKS,
        "service.instance.id": f"rank-{rank}",
        "host.name": f"host-{rank}",
    }
