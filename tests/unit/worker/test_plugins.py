"""Programs that know only OpenTelemetry, in interpreters of their own."""

import json
import os
import subprocess
import sys

import pytest

from otel_rl.worker.launch import launch_of
from tests.support.otlp_sink import Sink, sums

pytestmark = pytest.mark.process


PLUGINS = {"OTEL_PYTHON_METER_PROVIDER": "otel_rl", "OTEL_PYTHON_TRACER_PROVIDER": "otel_rl"}

PLAIN = """
from opentelemetry import metrics, trace
meter = metrics.get_meter("mine")
loss, tokens = meter.create_gauge("loss"), meter.create_counter("tokens")
for step in range(100):
    with trace.get_tracer("mine").start_as_current_span("step"):
        loss.set(1 / (step + 1), {"rl.loop.iteration": step})
        tokens.add(2)
"""


def run(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "SLURM_", "OMPI_")) and name not in ("RANK", "WORLD_SIZE")
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_program_without_a_line_of_otel_rl_reports_every_measurement(sink: Sink) -> None:
    finished = run(PLAIN, **PLUGINS, OTEL_RL_EXPERIMENT="exp", OTEL_EXPORTER_OTLP_ENDPOINT=sink.url)
    assert (finished.returncode, finished.stderr) == (0, "")
    found = sink.measurements("loss")
    assert [m.step for m in found] == list(range(100))
    assert found[0].resource["rl.worker.role"] == "trainer"
    assert all(m.span_id for m in found)
    assert list(sums(sink.metrics, "tokens").values()) == [200]
    assert (
        sum(
            len(scope.spans)
            for t in sink.traces
            for r in t.resource_spans
            for scope in r.scope_spans
        )
        == 100
    )


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_RL_EXPERIMENT": "e", "OTEL_EXPORTER_OTLP_ENDPOINT": "nowhere"},
        {"OTEL_RL_EXPERIMENT": "e", "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"},
        {"OTEL_RL_EXPERIMENT": "e", "OTEL_RL_INDEX": "first"},
    ],
)
def test_a_wrong_environment_costs_the_program_nothing_but_one_warning(
    environ: dict[str, str],
) -> None:
    finished = run(PLAIN, **PLUGINS, **environ)
    assert finished.returncode == 0
    assert finished.stderr.count("otel_rl cannot start") == 1


def test_a_disabled_sdk_gives_providers_that_do_nothing(sink: Sink) -> None:
    finished = run(
        PLAIN,
        **PLUGINS,
        OTEL_RL_EXPERIMENT="e",
        OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
        OTEL_SDK_DISABLED="true",
    )
    assert (finished.returncode, finished.stderr, sink.requests) == (0, "", 0)


def test_init_says_who_a_process_is_whose_libraries_asked_for_a_meter_first(sink: Sink) -> None:
    finished = run(
        # A busy machine may take longer to the next line than the exporter's first look.
        "from otel_rl.worker.export import sender\n"
        "sender._FIRST_LOOK_S = 60.0\n"
        "from opentelemetry import metrics\n"
        "gauge = metrics.get_meter('library').create_gauge('g')\n"
        "gauge.set(1.0)\n"
        "import otel_rl\n"
        "otel_rl.init(role='trainer', index=3)\n"
        "gauge.set(2.0)\n",
        **PLUGINS,
        OTEL_RL_EXPERIMENT="e",
        OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
        OTEL_METRIC_EXPORT_INTERVAL="60000",
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    roles = [(m.value, m.resource["rl.worker.role"]) for m in sink.measurements("g")]
    assert roles == [(1.0, "trainer"), (2.0, "trainer")]


def test_init_may_also_send_elsewhere_than_the_environment_says(sink: Sink) -> None:
    finished = run(
        "from opentelemetry import metrics\n"
        "gauge = metrics.get_meter('library').create_gauge('g')\n"
        "import otel_rl\n"
        f"otel_rl.init(role='trainer', endpoint={sink.url!r})\n"
        "gauge.set(2.0)\n",
        **PLUGINS,
        OTEL_RL_EXPERIMENT="e",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
    )
    assert finished.returncode == 0
    assert [m.value for m in sink.measurements("g")] == [2.0]


def test_a_program_with_its_own_provider_is_told_how_to_keep_every_measurement(
    sink: Sink,
) -> None:
    finished = run(
        "from opentelemetry import metrics\n"
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "metrics.set_meter_provider(MeterProvider())\n"
        "import otel_rl\n"
        "otel_rl.init(experiment='e', role='r')\n"
        "otel_rl.log({'loss': 1.0}, step=1)\n",
        OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
    )
    assert finished.returncode == 0
    assert finished.stderr.count("otel_rl.sdk.exact_view()") == 1
    assert [m.name for m in sink.measurements()] == ["loss"]


def test_mlogger_alone_starts_a_session_from_the_environment(sink: Sink) -> None:
    finished = run(
        "import otel_rl\notel_rl.log({'loss': 1.0}, step=1)\n",
        OTEL_RL_EXPERIMENT="e",
        OTEL_RL_ROLE="reward",
        OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert [m.resource["rl.worker.role"] for m in sink.measurements()] == ["reward"]


# The resource detector, with an SDK of the program's own

FOUND = """
import json, sys, types
{before}
from opentelemetry.sdk.resources import Resource
print(json.dumps(dict(Resource.create().attributes), default=str))
"""


def found(before: str = "", **environ: str) -> tuple[dict[str, object], str]:
    """(resource attributes, what was logged) of a stock SDK with the detector."""
    finished = run(
        FOUND.format(before=before), OTEL_EXPERIMENTAL_RESOURCE_DETECTORS="otel_rl", **environ
    )
    assert finished.returncode == 0, finished.stderr
    attributes: dict[str, object] = json.loads(finished.stdout)
    return attributes, finished.stderr


def test_a_stock_sdk_says_who_the_worker_is() -> None:
    attributes, err = found(
        OTEL_RL_EXPERIMENT="e", OTEL_RL_ROLE="generator", RANK="2", WORLD_SIZE="4"
    )
    assert err == ""
    assert attributes["rl.experiment.name"] == "e"
    # This process has started the rank, so its launch is that of all of them.
    assert attributes["rl.trial.name"] == launch_of({}).id
    assert attributes["rl.worker.role"] == "generator"
    assert (attributes["rl.worker.index"], attributes["rl.worker.count"]) == (2, 4)
    assert attributes["service.name"] == "otel_rl.generator"
    assert {"rl.run.id", "host.name", "service.instance.id"} <= attributes.keys()


def test_what_is_nowhere_said_is_left_out() -> None:
    attributes, _ = found()
    assert [key for key in attributes if key.startswith("rl.")] == []
    assert str(attributes["service.name"]).startswith("unknown_service")


def test_the_user_s_own_attributes_win() -> None:
    attributes, _ = found(
        OTEL_RL_ROLE="trainer", OTEL_RESOURCE_ATTRIBUTES="service.name=mine,team=a"
    )
    assert (attributes["service.name"], attributes["team"]) == ("mine", "a")


def test_a_wrong_place_is_said_and_costs_the_program_nothing() -> None:
    attributes, err = found(OTEL_RL_INDEX="2", OTEL_RL_COUNT="2")
    assert "OTEL_RL_INDEX: must be below OTEL_RL_COUNT (got 2 of 2)" in err
    assert "rl.worker.index" not in attributes


RAY = """
ray = types.ModuleType("ray")
ray.is_initialized = lambda: {initialized}
ray.get_runtime_context = lambda: types.SimpleNamespace(
    get_actor_id=lambda: "7", get_actor_name=lambda: {name}, get_job_id=lambda: "01000000",
    get_task_function_name=lambda: "module.RewardWorker.__init__", gcs_address="node:6379",
)
sys.modules["ray"] = ray
"""


@pytest.mark.parametrize(
    ("initialized", "name", "expected"),
    [
        ("True", "'generator_3'", ("generator", 3)),
        ("True", "''", ("reward", None)),
        ("True", "1 / 0", (None, None)),
        ("False", "'generator_3'", (None, None)),
    ],
)
def test_a_ray_actor_has_its_role_from_its_name_else_its_class(
    initialized: str, name: str, expected: tuple[object, object]
) -> None:
    attributes, err = found(
        RAY.format(initialized=initialized, name=name), RAY_RAYLET_PID="1", OTEL_RL_EXPERIMENT="e"
    )
    if initialized == "True":
        assert attributes["rl.trial.name"] == "ray-node-6379-01000000"
    assert (attributes.get("rl.worker.role"), attributes.get("rl.worker.index")) == expected
    assert err == ""
