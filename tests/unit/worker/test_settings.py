import pytest

from otel_rl.errors import ConfigError
from otel_rl.worker.settings import (
    GpuOptions,
    GpuSettings,
    HostSettings,
    Protocol,
    exporters_beside_otlp,
    read_settings,
)


@pytest.mark.parametrize(
    ("environ", "endpoint", "metrics", "traces"),
    [
        ({}, None, "http://localhost:4318/v1/metrics", "http://localhost:4318/v1/traces"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1/base/"},
            None,
            "http://c:1/base/v1/metrics",
            "http://c:1/base/v1/traces",
        ),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://m:1/in"},
            None,
            "http://m:1/in",
            "http://localhost:4318/v1/traces",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1"},
            "http://arg:2",
            "http://arg:2/v1/metrics",
            "http://arg:2/v1/traces",
        ),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            None,
            "http://localhost:4317",
            "http://localhost:4317",
        ),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "c:4317"},
            None,
            "https://c:4317",
            "https://c:4317",
        ),
    ],
)
def test_endpoints_follow_the_otlp_specification(
    environ: dict[str, str], endpoint: str | None, metrics: str, traces: str
) -> None:
    found = read_settings(environ, endpoint=endpoint)
    assert (found.metrics.url, found.traces.url) == (metrics, traces)


def test_the_environment_may_give_the_run_a_config() -> None:
    assert read_settings({"OTEL_RL_CONFIG": '{"lr": 0.5, "model": {"layers": 2}}'}).config == {
        "lr": 0.5,
        "model": {"layers": 2},
    }
    assert read_settings({"OTEL_RL_CONFIG": " "}).config == {}


@pytest.mark.parametrize("text", ["lr=1", "[1]", "null", "[" * 100_000])
def test_a_config_that_is_no_json_object_is_an_error_that_says_so(text: str) -> None:
    with pytest.raises(ConfigError, match=r"OTEL_RL_CONFIG: must be a JSON object"):
        read_settings({"OTEL_RL_CONFIG": text})


def test_a_signals_own_variable_wins_over_the_common_one() -> None:
    found = read_settings(
        {
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_HEADERS": "a=1",
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "b=2",
        }
    )
    assert found.metrics.protocol is Protocol.HTTP
    assert found.traces.protocol is Protocol.GRPC
    assert found.metrics.headers == (("b", "2"),)
    assert found.traces.headers == (("a", "1"),)


def test_loopback_is_not_compressed_and_a_network_is() -> None:
    assert not read_settings({}).metrics.gzip
    assert read_settings({}, endpoint="http://collector:4318").metrics.gzip
    assert read_settings({"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}).metrics.gzip


def test_the_interval_is_a_second_unless_said_otherwise() -> None:
    assert read_settings({}).interval_s == 1.0
    assert read_settings({"OTEL_METRIC_EXPORT_INTERVAL": "250"}).interval_s == 0.25
    assert (
        read_settings({"OTEL_METRIC_EXPORT_INTERVAL": "250"}, export_interval_s=3).interval_s == 3
    )


def test_exporter_none_turns_one_signal_off() -> None:
    found = read_settings({"OTEL_TRACES_EXPORTER": "none"})
    assert (found.metrics.enabled, found.traces.enabled) == (True, False)


@pytest.mark.parametrize(
    ("exporters", "is_sent"),
    [
        ("", True),
        ("otlp", True),
        ("console, OTLP", True),
        ("otlp_proto_grpc", True),
        ("console", False),
        ("none", False),
        ("console,prometheus", False),
    ],
)
def test_a_signal_is_sent_over_otlp_if_its_exporters_name_it_or_nothing_is_named(
    exporters: str, is_sent: bool
) -> None:
    found = read_settings({"OTEL_LOGS_EXPORTER": exporters})
    assert (found.logs.enabled, found.metrics.enabled) == (is_sent, True)


def test_exporters_beside_otlp_are_named_but_none_is_plainly_meant() -> None:
    environ = {"OTEL_METRICS_EXPORTER": "console", "OTEL_TRACES_EXPORTER": "none"}
    (line,) = exporters_beside_otlp(environ)
    assert line.startswith("OTEL_METRICS_EXPORTER=console: ")
    assert "console,otlp" in line


@pytest.mark.parametrize(
    ("environ", "metrics", "traces"),
    [
        ({}, "https://c:4317", "https://c:4317"),
        ({"OTEL_EXPORTER_OTLP_INSECURE": "true"}, "http://c:4317", "http://c:4317"),
        ({"OTEL_EXPORTER_OTLP_INSECURE": "TRUE "}, "http://c:4317", "http://c:4317"),
        ({"OTEL_EXPORTER_OTLP_INSECURE": "false"}, "https://c:4317", "https://c:4317"),
        ({"OTEL_EXPORTER_OTLP_METRICS_INSECURE": "true"}, "http://c:4317", "https://c:4317"),
        (
            {"OTEL_EXPORTER_OTLP_INSECURE": "true", "OTEL_EXPORTER_OTLP_TRACES_INSECURE": "false"},
            "http://c:4317",
            "https://c:4317",
        ),
    ],
)
def test_an_endpoint_without_a_scheme_is_as_secure_as_is_said(
    environ: dict[str, str], metrics: str, traces: str
) -> None:
    grpc = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "c:4317"}
    found = read_settings(grpc | environ)
    assert (found.metrics.url, found.traces.url) == (metrics, traces)
    assert (found.metrics.insecure, found.traces.insecure) == (
        metrics.startswith("http:"),
        traces.startswith("http:"),
    )


def test_a_scheme_says_more_than_a_variable() -> None:
    found = read_settings(
        {
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "https://c:4317",
            "OTEL_EXPORTER_OTLP_INSECURE": "true",
        }
    )
    assert (found.metrics.url, found.metrics.insecure) == ("https://c:4317", False)


def test_spans_are_sent_as_often_and_wait_in_as_many_as_the_variables_of_the_sdk_say() -> None:
    found = read_settings({})
    assert found.span_capacity == 16384
    assert read_settings({"OTEL_BSP_MAX_QUEUE_SIZE": "10"}).span_capacity == 10


def test_headers_are_not_shown_in_logs() -> None:
    found = read_settings({"OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret"})
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("environ", "arguments", "message"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, {}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "nowhere"}, {}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, {}, "OTEL_EXPORTER_OTLP_TIMEOUT"),
        ({"OTEL_RL_EXIT_TIMEOUT": "0"}, {}, "OTEL_RL_EXIT_TIMEOUT"),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "zip"}, {}, "OTEL_EXPORTER_OTLP_COMPRESSION"),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "-1"}, {}, "OTEL_METRIC_EXPORT_INTERVAL"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, {}, "OTEL_BSP_MAX_QUEUE_SIZE"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "many"}, {}, "OTEL_BSP_MAX_QUEUE_SIZE"),
        ({"OTEL_RL_TRACE_STEPS": "10%"}, {}, "OTEL_RL_TRACE_STEPS"),
        ({"OTEL_RL_TRACE_STEPS": "nan"}, {}, "OTEL_RL_TRACE_STEPS"),
        ({}, {"endpoint": 4318}, "endpoint: must be a URL"),
        ({}, {"endpoint": "ftp://c"}, "endpoint: must be an http or https URL"),
        ({}, {"endpoint": "http://[::1"}, "endpoint: must be an http or https URL"),
        ({}, {"export_interval_s": 0}, "export_interval_s"),
        ({}, {"export_interval_s": float("nan")}, "export_interval_s"),
        ({}, {"export_interval_s": "1"}, "export_interval_s"),
    ],
)
def test_a_bad_setting_is_named_with_the_way_out(
    environ: dict[str, str], arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_settings(environ, **arguments)  # type: ignore[arg-type]  # bad types are the point
    assert caught.value.hint


@pytest.mark.parametrize(
    ("variable", "text", "must"),
    [
        ("OTEL_RL_CONSOLE", "maybe", "on or off"),
        ("OTEL_RL_GC", "maybe", "on or off"),
        ("OTEL_RL_GPU", "maybe", "on or off"),
        ("OTEL_RL_GPU_INTERVAL", "5s", "10 milliseconds or more"),
        ("OTEL_RL_HOST_INTERVAL", "999", "1000 milliseconds or more"),
        ("OTEL_RL_HOST_INTERVAL", "nan", "1000 milliseconds or more"),
        ("OTEL_RL_PROVENANCE", "some", "full, command or off"),
        ("OTEL_RL_STACK_AFTER", "0", "seconds from 1 on, or off"),
        ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "tcp", "http/protobuf or grpc"),
    ],
)
def test_a_wrong_variable_is_told_with_what_it_must_be(variable: str, text: str, must: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings({variable: text})
    assert str(caught.value).startswith(f"{variable}: must be {must} (got {text!r}).")
    assert caught.value.hint


@pytest.mark.parametrize("on", ["on", "1", "TRUE", " yes "])
def test_every_switch_takes_the_words_of_every_other_one(on: str) -> None:
    found = read_settings({"OTEL_RL_GPU": on, "OTEL_RL_GC": on, "OTEL_RL_HOST": on})
    assert found.gpu.enabled
    assert found.measures_gc
    assert found.host.enabled
    off = read_settings({"OTEL_RL_HOST": "0", "OTEL_RL_GC": "false"})
    assert not off.host.enabled
    assert off.measures_gc is False


def test_the_host_is_reported_as_often_as_is_said() -> None:
    assert read_settings({}).host == HostSettings(True, 15.0)
    assert read_settings({"OTEL_RL_HOST_INTERVAL": "1000"}).host.interval_s == 1.0


def test_opentelemetrys_sampler_decides_unless_a_share_of_steps_is_said() -> None:
    sampler = {"OTEL_TRACES_SAMPLER": "always_off"}
    assert read_settings({}).trace_steps == 1.0
    assert read_settings(sampler).trace_steps is None
    assert read_settings(sampler | {"OTEL_RL_TRACE_STEPS": "0.1"}).trace_steps == 0.1


def test_sampling_is_off_unless_asked_for() -> None:
    assert not read_settings({}).gpu.enabled


@pytest.mark.parametrize(
    ("text", "enabled"), [("1", True), ("true", True), ("ON", True), ("0", False), ("off", False)]
)
def test_the_variable_switches_sampling(text: str, enabled: bool) -> None:
    assert read_settings({"OTEL_RL_GPU": text}).gpu.enabled is enabled


def test_the_environment_says_roles_and_interval() -> None:
    settings = read_settings(
        {
            "OTEL_RL_GPU": "1",
            "OTEL_RL_GPU_ROLES": "trainer, generator",
            "OTEL_RL_GPU_INTERVAL": "500",
        }
    ).gpu
    assert settings == GpuSettings(True, ("trainer", "generator"), 0.5)


def test_what_init_is_given_wins() -> None:
    environ = {"OTEL_RL_GPU": "1", "OTEL_RL_GPU_ROLES": "trainer"}
    assert not read_settings(environ, gpu=False).gpu.enabled
    settings = read_settings(environ, gpu={"roles": ["reward"]}).gpu
    assert settings == GpuSettings(True, ("reward",))


def test_no_roles_are_all_roles() -> None:
    assert read_settings({}, gpu=True).gpu.are_for("anything")
    assert not read_settings({}, gpu={"roles": ["trainer"]}).gpu.are_for("generator")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("yes", "gpu: must be True, False or a mapping"),
        ({"role": ["trainer"]}, "gpu: unknown option 'role'"),
        ({"roles": "trainer"}, "gpu.roles: must be a list"),
        ({"roles": [1.5]}, "gpu.roles: cannot hold 1.5"),
        ({"roles": ["a,b"]}, "gpu.roles: cannot hold 'a,b'"),
        ({"interval_s": 0}, "gpu.interval_s: must be 10 milliseconds or more (got 0)"),
        ({"interval_s": float("nan")}, "gpu.interval_s: must be 10 milliseconds or more (got nan)"),
    ],
)
def test_a_wrong_argument_of_gpu_is_named(given: GpuOptions, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_settings({}, gpu=given)
    assert complaint in str(raised.value)
