"""Variables of a command that make it report to a bridge, and notes on what the user has set."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_rl.cli.environment import notes_on, reporting_environment
from otel_rl.cli.run_names import RunNames

HTTP, GRPC = "127.0.0.1:4318", "127.0.0.1:4317"


def reporting(base: Mapping[str, str], *, token: str = "") -> dict[str, str]:
    typed = {"experiment": "grpo", "trial": "try-2", "role": "generator"}
    names = RunNames(typed, {}, "launch", "train")
    return reporting_environment(base, http=HTTP, grpc=GRPC, names=names, token=token)


def notes(**base: str) -> list[str]:
    return [*notes_on(base, reporting(base))]


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"},
        {"OTEL_METRICS_EXPORTER": "otlp_proto_grpc"},
    ],
)
def test_metrics_of_who_speaks_grpc_go_to_its_port(variables: dict[str, str]) -> None:
    found = reporting(variables)
    common = found["OTEL_EXPORTER_OTLP_ENDPOINT"]
    assert found.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", common) == f"http://{GRPC}"
    assert found["OTEL_EXPORTER_OTLP_METRICS_INSECURE"] == "true"


def test_metrics_of_who_says_nothing_go_to_the_http_port() -> None:
    found = reporting({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318/v1/metrics"})
    assert found["OTEL_EXPORTER_OTLP_ENDPOINT"] == f"http://{HTTP}"
    assert found["OTEL_EXPORTER_OTLP_PROTOCOL"] == "http/protobuf"
    assert "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" not in found


@pytest.mark.parametrize(
    ("variables", "protocol"),
    [
        ({}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "http/protobuf"),
    ],
)
def test_engines_that_read_the_protocol_of_spans_only_find_it(
    variables: dict[str, str], protocol: str
) -> None:
    assert reporting(variables)["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == protocol


def test_spans_with_an_endpoint_of_their_own_keep_their_protocol() -> None:
    jaeger = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://jaeger:4317"}
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" not in reporting(jaeger)


def test_an_ordinary_environment_is_not_commented_on() -> None:
    assert notes(PATH="/usr/bin", OTEL_RESOURCE_ATTRIBUTES="team=rl") == []


def test_variables_that_are_replaced_are_named_without_their_values() -> None:
    (told,) = notes(
        OTEL_EXPORTER_OTLP_ENDPOINT="http://user:secret@collector:4318",
        OTEL_METRICS_EXEMPLAR_FILTER="always_off",
    )
    assert "OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_METRICS_EXEMPLAR_FILTER are replaced" in told
    assert "secret" not in told


@pytest.mark.parametrize("signal", ["METRICS", "TRACES", "LOGS"])
@pytest.mark.parametrize("exporter", ["console", "none", "prometheus"])
def test_a_signal_that_is_to_go_elsewhere_is_announced(signal: str, exporter: str) -> None:
    variable = f"OTEL_{signal}_EXPORTER"
    (told,) = notes(**{variable: exporter})
    assert variable in told
    assert exporter in told


@pytest.mark.parametrize("exporter", ["otlp", "OTLP", "console,otlp", "otlp_proto_http"])
def test_a_signal_that_is_for_otlp_too_is_not_commented_on(exporter: str) -> None:
    assert notes(OTEL_METRICS_EXPORTER=exporter) == []


def test_of_a_disabled_sdk_nothing_else_is_said() -> None:
    (told,) = notes(OTEL_SDK_DISABLED="true", OTEL_METRICS_EXPORTER="console")
    assert "OTEL_SDK_DISABLED" in told


FILE = """
resource: {resource}
meter_provider:
  readers: [periodic: {exporter: {otlp_http: {endpoint: "ENDPOINT/v1/metrics"}}}]
"""
ENDPOINT, ATTRIBUTES = "${OTEL_EXPORTER_OTLP_ENDPOINT}", "${OTEL_RESOURCE_ATTRIBUTES}"


@pytest.mark.parametrize("variable", ["OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE"])
@pytest.mark.parametrize(
    ("endpoint", "resource", "missing"),
    [
        ("http://127.0.0.1:9", ATTRIBUTES, ENDPOINT),
        (ENDPOINT, "{}", ATTRIBUTES),
    ],
)
def test_a_file_that_leads_past_the_run_is_told_what_to_add(
    tmp_path: Path, variable: str, endpoint: str, resource: str, missing: str
) -> None:
    path = tmp_path / "otel.yaml"
    path.write_text(FILE.replace("ENDPOINT", endpoint).replace("{resource}", resource))
    (told,) = notes(**{variable: str(path)})
    assert told.startswith(f"{variable}: ")
    assert str(path) in told
    assert missing in told


def test_a_file_that_names_the_variables_is_not_commented_on(tmp_path: Path) -> None:
    path = tmp_path / "otel.yaml"
    path.write_text(FILE.replace("ENDPOINT", ENDPOINT).replace("{resource}", ATTRIBUTES))
    assert notes(OTEL_CONFIG_FILE=str(path)) == []


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (told,) = notes(OTEL_CONFIG_FILE=str(tmp_path / "nowhere.yaml"))
    assert "nowhere.yaml" in told


HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_"
AUTHORIZATION = "authorization=Bearer%20own-token"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", AUTHORIZATION),
        ("team=a,tier=b", f"team=a,tier=b,{AUTHORIZATION}"),
        ("Authorization=Bearer%20theirs,team=a", f"team=a,{AUTHORIZATION}"),
    ],
)
def test_the_token_of_the_bridge_joins_the_headers_of_the_user(before: str, after: str) -> None:
    found = reporting({HEADERS: before}, token="own-token")
    assert {name: text for name, text in found.items() if "HEADERS" in name} == {HEADERS: after}


@pytest.mark.parametrize("variable", [HEADERS, f"{TRACES}HEADERS"])
def test_an_authorization_of_the_user_that_the_token_replaces_is_told(variable: str) -> None:
    base = {variable: "Authorization=Bearer%20theirs,team=a"}
    (told,) = notes_on(base, reporting(base, token="own-token"))
    assert variable in told
    assert "authorization" in told
    assert "theirs" not in told
    assert "own-token" not in told


@pytest.mark.parametrize(
    ("base", "token"),
    [
        ({HEADERS: "team=a"}, "own-token"),
        ({HEADERS: "authorization=Bearer%20theirs"}, ""),
        (
            {HEADERS: "authorization=Bearer%20theirs", f"{TRACES}ENDPOINT": "http://jaeger:4318"},
            "own-token",
        ),
    ],
)
def test_headers_that_the_user_keeps_are_not_commented_on(
    base: Mapping[str, str], token: str
) -> None:
    assert [*notes_on(base, reporting(base, token=token))] == []


def test_headers_of_one_signal_get_the_token_too() -> None:
    found = reporting({HEADERS: "a=1", f"{TRACES}HEADERS": "b=2"}, token="own-token")
    assert found[f"{TRACES}HEADERS"] == f"b=2,{AUTHORIZATION}"
    assert found[HEADERS] == f"a=1,{AUTHORIZATION}"


def test_an_endpoint_of_the_user_gets_the_headers_of_the_user_and_not_the_token() -> None:
    jaeger = {f"{TRACES}ENDPOINT": "http://jaeger:4318/v1/traces", HEADERS: "a=1"}
    found = reporting(jaeger, token="own-token")
    assert found[HEADERS] == "a=1"
    assert f"{TRACES}HEADERS" not in found
    for signal in ("METRICS", "LOGS"):
        assert found[f"OTEL_EXPORTER_OTLP_{signal}_HEADERS"] == f"a=1,{AUTHORIZATION}"


def test_a_file_without_the_headers_is_told_to_add_them(tmp_path: Path) -> None:
    path = tmp_path / "otel.yaml"
    path.write_text(FILE.replace("ENDPOINT", ENDPOINT).replace("{resource}", ATTRIBUTES))
    base = {"OTEL_CONFIG_FILE": str(path)}
    (told,) = notes_on(base, reporting(base, token="own-token"))
    assert "headers_list: ${OTEL_EXPORTER_OTLP_HEADERS}" in told
