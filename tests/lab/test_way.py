"""What workers, engines and the node say arrives, through the real programs, where it belongs."""

import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from otel_rl.run_id import run_id
from tests.faults.keeper import wait_for
from tests.lab.site import Site
from tests.process.commands import clean_environment

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

EXPERIMENT = "way"
ARRIVES_S = 180.0
STEPS = 200

OTEL_RL_WORKER = """
    import json
    import otel_rl
    from opentelemetry import metrics, trace
    from opentelemetry.trace import Link

    otel_rl.init(experiment="way", trial="workers", role="trainer", export_interval_s=0.2)
    otel_rl.log_config({"lr": 0.25})
    tracer = trace.get_tracer("test")
    with tracer.start_as_current_span("rl.sample") as sample:
        made = sample.get_span_context()
    for step in range(STEPS):
        otel_rl.log({"loss": step / 4}, step=step)
    with tracer.start_as_current_span("rl.train", links=[Link(made)]) as train:
        with tracer.start_as_current_span("rl.sync"):
            used = train.get_span_context()
    assert otel_rl.finish("complete", timeout_s=60)
    print(json.dumps([f"{context.trace_id:032x}" for context in (made, used)]))
"""

# Nothing but OpenTelemetry's own SDK, over gRPC.
STOCK_WORKER = """
    import json
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create(
        {"service.name": "rewarder", "rl.experiment.name": "way", "rl.trial.name": "workers"}
    )
    meters = MeterProvider(
        [PeriodicExportingMetricReader(OTLPMetricExporter(), 200)], resource=resource
    )
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    meter, tracer = meters.get_meter("test"), tracers.get_tracer("test")
    scored = meter.create_counter("scored")
    depth = meter.create_gauge("depth")
    took = meter.create_histogram("took", unit="s")
    with tracer.start_as_current_span("rl.reward") as reward:
        for i in range(STEPS):
            scored.add(2)
            depth.set(7)
            took.record(0.5)
            with tracer.start_as_current_span("score"):
                pass
    assert meters.shutdown() is None and tracers.shutdown() is None
    print(json.dumps([f"{reward.get_span_context().trace_id:032x}"]))
"""

# What vLLM serves under /metrics, in part.
ENGINE = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/model"} 5.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="org/model"} 1000.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{engine="0",block_size="16"} 1.0
"""
NO_PAGE = "Failed to scrape Prometheus endpoint"


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("targets")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, targets: Path) -> Iterator[Site]:
    settings = {
        "OTEL_RL_EXPERIMENT": EXPERIMENT,
        "OTEL_RL_TRIAL": "node",
        "OTEL_RL_NODE": "node-7",
        "OTEL_RL_TARGETS": str(targets),
        "OTEL_RL_SCRAPE_INTERVAL": "1s",
    }
    with Site(tmp_path_factory.mktemp("site"), agent=settings) as site:
        yield site


@pytest.fixture(scope="module")
def traces(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Sequence[str]]:
    """The trace ids of each worker, after both have sent everything and have ended."""
    home = tmp_path_factory.mktemp("home")
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", f"STEPS = {STEPS}\n{textwrap.dedent(script)}"],
            env=clean_environment(home, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint),
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, script, endpoint in (
            ("otel_rl", OTEL_RL_WORKER, site.agent.url),
            ("stock", STOCK_WORKER, f"http://{site.agent.grpc_address}"),
        )
    }
    said = {name: process.communicate(timeout=240)[0] for name, process in running.items()}
    assert [process.returncode for process in running.values()] == [0, 0]
    return {name: json.loads(line) for name, line in said.items()}


def values(site: Site, trial: str, key: str) -> Sequence[tuple[float, float]]:
    """(step, value) of every row of a run that has the key."""
    return [(row["step"], row[key]) for row in site.history(EXPERIMENT, trial) if key in row]


def has(site: Site, trial: str, key: str) -> bool:
    return bool(values(site, trial, key))


def test_each_step_of_a_worker_is_a_row_of_the_run_once(
    site: Site, traces: Mapping[str, Sequence[str]]
) -> None:
    expected = [(float(step), step / 4) for step in range(STEPS)]
    wait_for(lambda: len(values(site, "workers", "trainer/loss")) >= STEPS, ARRIVES_S)
    assert sorted(values(site, "workers", "trainer/loss")) == expected


def test_a_stock_sdk_has_its_totals_in_the_run(
    site: Site, traces: Mapping[str, Sequence[str]]
) -> None:
    def last(key: str) -> float:
        shown = values(site, "workers", key)
        return shown[-1][1] if shown else 0.0

    def taken() -> float:
        return sum(count for _, count in values(site, "workers", "rewarder/took/count"))

    wait_for(lambda: last("rewarder/scored") == 2 * STEPS and taken() == STEPS, ARRIVES_S)
    assert last("rewarder/scored") == 2 * STEPS
    assert last("rewarder/depth") == 7
    assert taken() == STEPS


def test_traces_are_in_jaeger_whole_and_with_their_links(
    site: Site, traces: Mapping[str, Sequence[str]]
) -> None:
    sample, train = traces["otel_rl"]
    wait_for(lambda: len(site.jaeger.trace(train)) == 2, ARRIVES_S)
    wait_for(lambda: bool(site.jaeger.trace(sample)), ARRIVES_S)
    assert len(site.jaeger.trace(train)) == 2
    assert [span.name for span in site.jaeger.trace(sample)] == ["rl.sample"]
    (span,) = [span for span in site.jaeger.trace(train) if span.name == "rl.train"]
    assert [trace for trace, _ in span.links] == [sample]
    assert {"rl.experiment.name", "rl.worker.role"} <= span.resource.keys()


def test_traces_of_a_stock_sdk_are_in_jaeger_whole(
    site: Site, traces: Mapping[str, Sequence[str]]
) -> None:
    (trace,) = traces["stock"]
    wait_for(lambda: len(site.jaeger.trace(trace)) == STEPS + 1, ARRIVES_S)
    spans = site.jaeger.trace(trace)
    assert len({span.id for span in spans}) == len(spans) == STEPS + 1
    assert "rewarder" in site.jaeger.services()


def test_what_a_worker_says_of_the_run_arrives_by_logs(
    site: Site, traces: Mapping[str, Sequence[str]]
) -> None:
    path = site.bridge.directory / "data" / f"{run_id(EXPERIMENT, 'workers')}.run.json"

    def said() -> str:
        return path.read_text() if path.exists() else ""

    assert wait_for(lambda: '"lr": 0.25' in said(), ARRIVES_S), said()


def test_an_engine_is_scraped_into_the_run_that_its_target_names(site: Site, targets: Path) -> None:
    with serving(ENGINE) as port:
        labels = {"rl.experiment.name": EXPERIMENT, "rl.trial.name": "engine"}
        target = {"targets": [f"127.0.0.1:{port}"], "labels": labels}
        new = targets / "vllm.new"
        new.write_text(json.dumps([target]))
        new.replace(targets / "vllm.json")
        running = "generator/requests/running"
        tokens = "generator/tokens"
        for key in (running, tokens):
            wait_for(partial(has, site, "engine", key), ARRIVES_S)
        assert {value for _, value in values(site, "engine", running)} == {5.0}
        assert values(site, "engine", tokens)
    keys = {key for row in site.history(EXPERIMENT, "engine") for key in row}
    assert not any(word in key for word in ("cache_config", "model", "scrape") for key in keys)


def test_the_node_is_measured_into_the_run_of_its_agent(site: Site) -> None:
    def keys() -> set[str]:
        return {key for row in site.history(EXPERIMENT, "node") for key in row}

    wanted = {
        "node/system/cpu/utilization/idle",
        "node/system/memory/utilization/used",
        "node/system/cpu/load_average/1m",
        "node/system/network/io/receive",
    }
    wait_for(lambda: wanted <= keys(), ARRIVES_S)
    assert wanted <= keys(), sorted(keys())


def test_the_collectors_take_their_files_without_a_warning(site: Site) -> None:
    for collector in (site.agent, site.gateway):
        said = [json.loads(line) for line in collector.said().splitlines()]
        warned = [line for line in said if line["level"] not in {"debug", "info"}]
        # The engine ends before the collectors, and a busy machine serves its page late.
        assert [line for line in warned if line["msg"] != NO_PAGE] == []


@contextmanager
def serving(page: str) -> Iterator[int]:
    """A port at which everything is ``page``, as an engine's metrics are."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page.lstrip().encode()
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
