"""``python -m bench.capacity``: the size of site that one bridge serves, and its first bottleneck.

Two halves. The costs of the bridge's work are measured here, as CPU time of the stages with real
requests: a request, a worker in it, a series of a worker, a further measurement of a series. The
model adds them up for sites of 8 to 10,000 workers, second by second: workers export, gateways
queue and batch, the bridge makes rows in one Python process, which is one core, and a writer
process per run hands them to W&B. In the middle the bridge is down for ten minutes.

The model omits the network, W&B's server, and gateways that are short of CPU.
"""

import argparse
import http.client
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Exemplar

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.ingest.admission.experiments import Experiments
from otel_rl.bridge.ingest.http.server import HttpServer
from otel_rl.bridge.ingest.limits import ReceiveLimits
from otel_rl.bridge.ingest.pipeline import IngestPipeline
from otel_rl.bridge.ingest.security.tokens import AuthSettings, Tokens
from otel_rl.bridge.ingest.validation.validate import validate
from otel_rl.bridge.journal.run_store import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.rows.aligner import AlignSettings
from otel_rl.bridge.rows.processor import RowProcessor
from otel_rl.signals import Signal

S = 1_000_000_000

OUTAGE_AT_S, OUTAGE_S, HORIZON_S = 60, 600, 7200


@dataclass(frozen=True)
class Costs:
    """CPU microseconds of one core, and bytes.

    Attributes:
        request_us: A request by itself, HTTP included.
        worker_us: A worker in a request.
        series_us: A series of a worker that has a measurement.
        measurement_us: Each further measurement of it.
        value_us: A value of a row in the writer process.
        series_bytes: Of a series in a request.
        measurement_bytes: Of a further measurement.
    """

    request_us: float
    worker_us: float
    series_us: float
    measurement_us: float
    value_us: float
    series_bytes: float
    measurement_bytes: float


@dataclass(frozen=True)
class Site:
    """Senders of a site.

    Attributes:
        workers: All of them, in ``experiments`` runs.
        experiments: Runs at a time.
        series: Of each worker.
        measurements_per_s: Of each series.
        export_interval_s: Of each worker.
        keys: Values of a row.
        rows_per_s: Of each run.
        workers_per_request: Workers that a gateway joins; 1 without one.
        queue_bytes: Of the gateways' disks, for each worker.
    """

    workers: int
    experiments: int = 1
    series: int = 40
    measurements_per_s: float = 1.0
    export_interval_s: float = 1.0
    keys: int = 200
    rows_per_s: float = 1.0
    workers_per_request: int = 1
    queue_bytes: float = 100e6


@dataclass(frozen=True)
class Found:
    """Result of the model for a site.

    Attributes:
        bridge_cores: Cores that the bridge needs.
        writer_cores: Cores that the busiest writer needs.
        mb_per_s: Into the bridge's journal.
        requests_per_s: Of the bridge.
        caught_up_s: After the outage, until nothing waits any more; None for never.
        lost: Whether a gateway's queue was full, so that senders were refused and dropped data.
        breaks_first: The bottleneck.
    """

    bridge_cores: float
    writer_cores: float
    mb_per_s: float
    requests_per_s: float
    caught_up_s: float | None
    lost: bool
    breaks_first: str


def simulate(site: Site, costs: Costs) -> Found:
    """Simulate two hours of a site, in steps of a second."""
    exports_per_s = site.workers / site.export_interval_s
    requests_per_s = exports_per_s / site.workers_per_request
    per_export = max(1.0, site.measurements_per_s * site.export_interval_s)
    series_per_s = exports_per_s * site.series
    further_per_s = series_per_s * (per_export - 1)
    bridge_us = (
        requests_per_s * costs.request_us
        + exports_per_s * costs.worker_us
        + series_per_s * costs.series_us
        + further_per_s * costs.measurement_us
    )
    bytes_per_s = series_per_s * costs.series_bytes + further_per_s * costs.measurement_bytes
    writer_us = site.rows_per_s * site.keys * costs.value_us
    bridge_cores, writer_cores = bridge_us / 1e6, writer_us / 1e6
    waiting_s = 0.0  # of pending work for the bridge, in the gateways and in its spool
    caught_up_s: float | None = None
    lost = False
    for second in range(HORIZON_S):
        is_away = OUTAGE_AT_S <= second < OUTAGE_AT_S + OUTAGE_S
        waiting_s = max(0.0, waiting_s + bridge_cores - (0.0 if is_away else 1.0))
        held_bytes = waiting_s / max(bridge_cores, 1e-9) * bytes_per_s
        if held_bytes > site.queue_bytes * site.workers:
            lost = True
            waiting_s = site.queue_bytes * site.workers / bytes_per_s * bridge_cores
        if second >= OUTAGE_AT_S + OUTAGE_S and caught_up_s is None and waiting_s <= bridge_cores:
            caught_up_s = second - OUTAGE_AT_S - OUTAGE_S
    uses = {
        "the bridge's core": bridge_cores,
        "a run's writer": writer_cores,
        "an hour without the bridge": 3600 * bytes_per_s / (site.queue_bytes * site.workers),
    }
    return Found(
        bridge_cores,
        writer_cores,
        bytes_per_s / 1e6,
        requests_per_s,
        caught_up_s,
        lost,
        max(uses, key=lambda name: uses[name]),
    )


def measure() -> Costs:
    """Measure the costs on this machine: differences between requests of different shapes."""
    one, more_workers = _shape(1, 10, 1), _shape(50, 10, 1)
    more_series, more_measured = _shape(1, 500, 1), _shape(1, 10, 500)
    series_us = (more_series.us - one.us) / 490
    worker_us = (more_workers.us - one.us) / 49 - 10 * series_us
    measurement_us = (more_measured.us - one.us) / 10 / 499
    return Costs(
        request_us=max(0.0, one.us - worker_us - 10 * series_us) + _http_us(),
        worker_us=max(0.0, worker_us),
        series_us=series_us,
        measurement_us=measurement_us,
        value_us=WRITER_US,
        series_bytes=(more_series.size - one.size) / 490,
        measurement_bytes=(more_measured.size - one.size) / 10 / 499,
    )


WRITER_US = 7.0
"""W&B's SDK and wandb-core for a value of a row of 200, as ``python -m bench bridge`` measures."""


def _http_us(requests: int = 1000) -> float:
    """Measure the CPU of the HTTP server for an empty request."""
    intake = IngestPipeline(
        accept=lambda _: None,
        limits=ReceiveLimits(),
        counters=Counters(),
        clock_ns=time.time_ns,
        tokens=Tokens(AuthSettings()),
        experiments=Experiments(1, list),
    )
    with HttpServer(intake, "127.0.0.1", 0) as server:
        client = multiprocessing.get_context("spawn").Process(
            target=_post, args=(server.address, requests)
        )
        client.start()
        begun_s = time.process_time()
        client.join()
        return (time.process_time() - begun_s) / requests * 1e6


def _post(address: str, requests: int) -> None:
    connection = http.client.HTTPConnection(address)
    for _ in range(requests):
        connection.request("POST", "/v1/metrics", b"", {"content-type": "application/x-protobuf"})
        connection.getresponse().read()


@dataclass(frozen=True)
class _Shape:
    us: float
    size: float


def _shape(workers: int, series: int, measurements: int, exports: int = 40) -> _Shape:
    """Measure the CPU of one request, from its bytes to its rows; the mean over ``exports``."""
    begun_ns = time.time_ns()
    bodies = [_request(workers, series, measurements, begun_ns + n * S, n) for n in range(exports)]
    with tempfile.TemporaryDirectory() as directory:
        journal = SqliteJournal(Path(directory))
        spool, run_store = Spool(journal), RunStore(journal)
        drain = RowProcessor(
            spool, run_store, settings=AlignSettings(), counters=Counters(), notify=lambda _: None
        )
        begun_s = time.process_time()
        for n, body in enumerate(bodies):
            now_ns = begun_ns + n * S
            admitted = validate(Signal.METRICS, body, ReceiveLimits(), now_ns)
            spool.append(admitted.batches)
            while drain.round(now_ns):
                pass
        took_s = time.process_time() - begun_s
        journal.close()
    return _Shape(took_s / exports * 1e6, sum(map(len, bodies)) / exports)


def _request(workers: int, series: int, measurements: int, now_ns: int, export: int) -> bytes:
    """Build a gateway's request from the exports of some workers of otel_rl."""
    request = ExportMetricsServiceRequest()
    for worker in range(workers):
        part = request.resource_metrics.add()
        for key, value in (
            ("rl.experiment.name", "capacity"),
            ("rl.worker.role", "trainer"),
            ("service.instance.id", f"worker-{worker}"),
            ("telemetry.distro.name", "otel_rl"),
        ):
            part.resource.attributes.add(key=key).value.string_value = value
        index = part.resource.attributes.add(key="rl.worker.index")
        index.value.int_value = worker
        scope = part.scope_metrics.add()
        for place in range(series):
            metric = scope.metrics.add(name=f"metric.{place}")
            point = metric.gauge.data_points.add(
                as_double=1.0, start_time_unix_nano=now_ns - S, time_unix_nano=now_ns
            )
            for n in range(measurements):
                exemplar = Exemplar(
                    as_double=float(n), time_unix_nano=now_ns - S + (n + 1) * S // measurements
                )
                step = exemplar.filtered_attributes.add(key="rl.loop.iteration")
                step.value.int_value = export * measurements + n
                point.exemplars.append(exemplar)
    return request.SerializeToString()


SITES: Sequence[tuple[str, Site]] = [
    ("one node", Site(8)),
    ("a small run", Site(64)),
    ("a large run", Site(512)),
    ("a large run, behind gateways", Site(512, workers_per_request=64)),
    ("a team, behind gateways", Site(2000, experiments=20, workers_per_request=64)),
    ("10,000 workers, behind gateways", Site(10_000, experiments=50, workers_per_request=64)),
    (
        "the same, exporting every 10 s",
        Site(10_000, experiments=50, workers_per_request=64, export_interval_s=10),
    ),
]


def table(sites: Iterable[tuple[str, Site]], costs: Costs) -> Iterable[str]:
    """Yield the sites as the lines of a Markdown table."""
    columns = (
        "site",
        "workers",
        "requests/s",
        "bridge's cores",
        "writer's cores",
        "MB/s",
        "after 10 min without the bridge",
        "used most",
    )
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for name, site in sites:
        found = simulate(site, costs)
        after = "never catches up" if found.caught_up_s is None else f"{found.caught_up_s:.0f} s"
        yield (
            f"| {name} | {site.workers:,} | {found.requests_per_s:,.0f} | {found.bridge_cores:.2f}"
            f" | {found.writer_cores:.3f} | {found.mb_per_s:.2f}"
            f" | {after}{', queues overflow' if found.lost else ''} | {found.breaks_first} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description=__doc__)
    parser.add_argument("--costs", type=Path, help="JSON of costs; measured if not given")
    options = parser.parse_args()
    costs = Costs(**json.loads(options.costs.read_text())) if options.costs else measure()
    print(json.dumps({name: round(value, 3) for name, value in asdict(costs).items()}))
    print("\n".join(table(SITES, costs)))


if __name__ == "__main__":
    main()
