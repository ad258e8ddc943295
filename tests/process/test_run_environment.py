"""``otel-rl run`` and the ``OTEL_*`` variables that its user has set already."""

import sys
import textwrap
from pathlib import Path

import pytest

from tests.process.commands import Finished, clean_environment, jsonl_rows, otel_rl, otel_rl_here

pytestmark = pytest.mark.process

PYTHON = sys.executable

GRPC_ONLY = """
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    provider.get_meter("m").create_counter("requests").add(3)
    provider.shutdown(timeout_millis=60_000)
"""

HTTP_ONLY = GRPC_ONLY.replace("proto.grpc", "proto.http")

OWN = """
    import otel_rl

    otel_rl.init(role="generator")
    otel_rl.log({"loss": 3.0}, step=1)
    assert otel_rl.finish(timeout_s=60)
"""

DECLARATIVE = """
    import os
    from opentelemetry import metrics
    from opentelemetry.configuration import configure_sdk, load_config_file

    del os.environ["OTEL_PYTHON_METER_PROVIDER"], os.environ["OTEL_PYTHON_TRACER_PROVIDER"]
    configure_sdk(load_config_file(os.environ["OTEL_CONFIG_FILE"]))
    metrics.get_meter("m").create_counter("requests").add(3)
    metrics.get_meter_provider().shutdown()
"""

FILE = """
    file_format: "1.0"
    {resource}
    meter_provider:
      readers:
        - periodic:
            interval: 1000
            exporter:
              otlp_http:
                endpoint: {endpoint}/v1/metrics
                headers_list: ${{OTEL_EXPORTER_OTLP_HEADERS}}
"""


def run(directory: Path, program: str, *options: str, **environ: str) -> Finished:
    path = directory / "train.py"
    path.write_text(textwrap.dedent(program))
    return otel_rl(
        "run", "--experiment", "e", "--role", "generator", "--tracker", "jsonl", *options,
        "--", PYTHON, path,
        cwd=directory, env=clean_environment(directory, **environ),
    )  # fmt: skip


def value(directory: Path, key: str) -> float:
    (found,) = {row.values[key] for row in jsonl_rows(directory, "e") if key in row.values}
    return found


def lines(done: Finished, word: str) -> list[str]:
    return [line for line in done.err.splitlines() if word in line]


# gRPC


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "environ"),
    [
        (["--grpc"], {}),
        ([], {"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}),
        ([], {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}),
        ([], {"OTEL_METRICS_EXPORTER": "otlp_proto_grpc"}),
        (["--grpc"], {"OTEL_EXPORTER_OTLP_INSECURE": "false"}),
    ],
)
def test_a_stock_sdk_that_speaks_only_grpc_is_in_the_run(
    tmp_path: Path, options: list[str], environ: dict[str, str]
) -> None:
    done = run(tmp_path, GRPC_ONLY, *options, **environ)
    assert done.status == 0, done.err
    assert value(tmp_path, "generator/requests") == 3
    assert not lines(done, "Transient error"), done.err


def test_workers_speak_grpc_where_it_is_asked_for(tmp_path: Path) -> None:
    program = (
        OWN
        + """
    import os
    assert os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc"
"""
    )
    done = run(tmp_path, program, "--grpc")
    assert done.status == 0, done.err
    assert value(tmp_path, "generator/loss") == 3


@pytest.mark.slow
def test_a_signal_with_a_protocol_of_its_own_finds_its_port(tmp_path: Path) -> None:
    program = """
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult

    class Exporter(OTLPSpanExporter):
        def export(self, spans):
            print(super().export(spans).name, flush=True)
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Exporter(timeout=60)))
    provider.get_tracer("t").start_span("s").end()
    """
    done = run(tmp_path, program, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="grpc")
    assert (done.status, done.out) == (0, "SUCCESS\n"), done.err


@pytest.mark.slow  # the SDK tries again for 20 s
def test_a_grpc_sdk_that_is_pointed_to_the_http_port_is_told_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path, GRPC_ONLY.replace("60_000", "4_000"))
    told = lines(done, "gRPC client")
    assert len(told) == 1, done.err
    assert "--grpc" in told[0]
    (announced,) = lines(done, "grpc://")
    assert announced.rpartition("grpc://")[2] in told[0]


def test_grpc_on_a_bridge_without_it_is_an_error_at_start(tmp_path: Path) -> None:
    environment = clean_environment(tmp_path, OTEL_RL_BRIDGE__LISTEN__GRPC="off")
    done = otel_rl_here("run", "--grpc", "--", "touch", "started", cwd=tmp_path, env=environment)
    assert done.status == 2, done.err
    assert "--grpc: the bridge does not listen on gRPC" in done.err


@pytest.mark.slow
def test_a_bridge_without_grpc_says_so_and_names_no_address(tmp_path: Path) -> None:
    environ = {"OTEL_RL_BRIDGE__LISTEN__GRPC": "off", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    done = run(tmp_path, HTTP_ONLY, **environ)
    assert done.status == 0, done.err
    assert "None" not in done.err
    assert lines(done, "OTEL_EXPORTER_OTLP_PROTOCOL")
    assert value(tmp_path, "generator/requests") == 3


# What the user's variables mean


@pytest.mark.slow
def test_metrics_for_the_console_are_not_exported_over_otlp(tmp_path: Path) -> None:
    done = run(tmp_path, OWN, OTEL_METRICS_EXPORTER="console")
    assert done.status == 0, done.err
    assert not any("generator/loss" in row.values for row in jsonl_rows(tmp_path, "e"))


def test_variables_that_lead_elsewhere_are_replaced_and_named_without_their_values(
    tmp_path: Path,
) -> None:
    done = run(
        tmp_path,
        HTTP_ONLY,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://user:secret@collector:4318",
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="http://collector:4318/v1/metrics",
        OTEL_METRICS_EXEMPLAR_FILTER="always_off",
    )
    assert done.status == 0, done.err
    assert value(tmp_path, "generator/requests") == 3
    (told,) = lines(done, "OTEL_EXPORTER_OTLP_ENDPOINT")
    for name in ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_METRICS_EXEMPLAR_FILTER"):
        assert name in told
    assert "secret" not in done.err


# A configuration file


def config_file(directory: Path, endpoint: str, *, has_resource: bool) -> str:
    resource = 'resource: {attributes_list: "${OTEL_RESOURCE_ATTRIBUTES}"}'
    path = directory / "otel.yaml"
    path.write_text(
        textwrap.dedent(FILE).format(endpoint=endpoint, resource=resource if has_resource else "")
    )
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "endpoint",
    ["${OTEL_EXPORTER_OTLP_ENDPOINT}", "${OTEL_EXPORTER_OTLP_ENDPOINT:-http://c:1}"],
)
def test_an_sdk_whose_file_names_the_variables_is_in_the_run(tmp_path: Path, endpoint: str) -> None:
    file = config_file(tmp_path, endpoint, has_resource=True)
    done = run(tmp_path, DECLARATIVE, OTEL_CONFIG_FILE=file)
    assert done.status == 0, done.err
    assert value(tmp_path, "generator/requests") == 3
    assert lines(done, "OTEL_CONFIG_FILE") == []


TRACED = """
    import os
    import otel_rl
    from opentelemetry import propagate, trace

    otel_rl.init()
    parent = propagate.extract({"traceparent": os.environ["TRACEPARENT"]})
    with trace.get_tracer("m").start_as_current_span("train", parent) as span:
        print(format(span.get_span_context().trace_id, "032x"), flush=True)
    assert otel_rl.finish(timeout_s=60)
"""


@pytest.mark.slow
def test_a_trace_of_the_launcher_goes_on_in_the_process(tmp_path: Path) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    done = run(tmp_path, TRACED, TRACEPARENT=f"00-{trace_id}-00f067aa0ba902b7-01")
    assert done.status == 0, done.err
    assert trace_id in done.out.split()
