"""``opentelemetry-instrument python train.py``: nobody has touched the program."""

import os
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.commands import clean_environment, jsonl_rows, otel_rl
from tests.support.otlp_sink import Sink, pairs, serve, sums

pytestmark = pytest.mark.process

INSTRUMENT = [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable]

TRAIN = """
from opentelemetry import metrics, trace
meter = metrics.get_meter("mine")
loss, tokens = meter.create_gauge("rl.train.loss"), meter.create_counter("tokens")
for step in range(50):
    with trace.get_tracer("mine").start_as_current_span("step"):
        loss.set(1 / (step + 1), {"rl.loop.iteration": step})
        tokens.add(2)
"""


@pytest.fixture
def sink() -> Iterator[Sink]:
    with serve(Sink()) as serving:
        yield serving


def run(tmp_path: Path, program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(program), encoding="utf-8")
    return subprocess.run(
        [*INSTRUMENT, str(file)],
        env=clean_environment(
            tmp_path, PATH=os.environ["PATH"], OTEL_METRIC_EXPORT_INTERVAL="60000", **environ
        ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def test_a_program_that_knows_only_the_api_reports_every_measurement(
    sink: Sink, tmp_path: Path
) -> None:
    done = run(
        tmp_path,
        TRAIN,
        OTEL_RL_EXPERIMENT="e",
        OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
        ROLE_NAME="trainer",
        ROLE_RANK="1",
        ROLE_WORLD_SIZE="2",
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = sink.measurements("rl.train.loss")
    assert [(m.step, m.value) for m in found] == [(step, 1 / (step + 1)) for step in range(50)]
    resource = found[0].resource
    assert resource["telemetry.distro.name"] == "otel_rl"
    assert (resource["rl.worker.role"], resource["rl.worker.index"]) == ("trainer", 1)
    assert resource["rl.worker.count"] == 2
    assert list(sums(sink.metrics, "tokens").values()) == [100]
    assert all(m.span_id for m in found)


@pytest.mark.slow
def test_the_experiment_may_be_a_resource_attribute(sink: Sink, tmp_path: Path) -> None:
    done = run(
        tmp_path,
        TRAIN,
        OTEL_RESOURCE_ATTRIBUTES="rl.experiment.name=e",
        OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(sink.measurements("rl.train.loss")) == 50


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE"])
def test_a_configuration_file_that_is_not_read_is_named(
    sink: Sink, tmp_path: Path, variable: str
) -> None:
    done = run(
        tmp_path,
        TRAIN,
        OTEL_RL_EXPERIMENT="e",
        OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
        **{variable: "otel.yaml"},
    )
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert f"{variable} (otel.yaml)" in line
    assert len(sink.measurements("rl.train.loss")) == 50


@pytest.mark.slow
def test_a_spawned_child_is_a_worker_too(sink: Sink, tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import multiprocessing
        from opentelemetry import metrics

        def roll_out():
            metrics.get_meter("mine").create_gauge("reward").set(1.0)

        if __name__ == "__main__":
            child = multiprocessing.get_context("spawn").Process(target=roll_out, name="env-3")
            child.start()
            child.join()
        """,
        OTEL_RL_EXPERIMENT="e",
        OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [m.value for m in sink.measurements("reward")] == [1.0]


def test_a_forked_child_does_not_claim_the_place_that_it_inherits(
    sink: Sink, tmp_path: Path
) -> None:
    done = run(
        tmp_path,
        """
        import os, sys
        from opentelemetry import metrics
        gauge = metrics.get_meter("mine").create_gauge("g")
        child = os.fork()
        gauge.set(1.0 if child else 2.0)
        if child:
            os.waitpid(child, 0)
        """,
        OTEL_RL_EXPERIMENT="e",
        OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
        OTEL_EXPERIMENTAL_RESOURCE_DETECTORS="otel_rl",
        RANK="3",
        WORLD_SIZE="8",
        PYTHONWARNINGS="ignore::DeprecationWarning",  # from 3.12 on, of forks beside any thread
    )
    assert (done.returncode, done.stderr) == (0, "")
    places = {m.value: m.resource.get("rl.worker.index") for m in sink.measurements("g")}
    assert places == {1.0: 3, 2.0: None}


def test_a_wrong_environment_costs_the_program_nothing_but_one_warning(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        TRAIN,
        OTEL_RL_EXPERIMENT="e",
        OTEL_RL_INDEX="2",
        OTEL_RL_COUNT="2",
    )
    assert done.returncode == 0
    assert done.stderr.count("otel_rl cannot start") == 1
    assert "OTEL_RL_INDEX: must be below OTEL_RL_COUNT" in done.stderr


OTHER = """
from opentelemetry.instrumentation.distro import BaseDistro

class Distro(BaseDistro):
    def _configure(self, **options):
        print("configured by another distro", flush=True)

class Configurator:
    def configure(self, **options):
        print("configured by another", flush=True)
"""

ENTRY_POINTS = """[opentelemetry_distro]
zz_other = other_distro:Distro

[opentelemetry_configurator]
zz_other = other_distro:Configurator
"""


def install_another(directory: Path) -> None:
    """Put another distribution of OpenTelemetry where PYTHONPATH finds it."""
    metadata = directory / "other_distro-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other_distro\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    (directory / "other_distro.py").write_text(OTHER)


def test_a_program_that_is_no_worker_is_left_to_the_distro_that_is_installed_beside(
    tmp_path: Path,
) -> None:
    install_another(tmp_path)
    path = os.pathsep.join([sysconfig.get_path("purelib"), str(tmp_path)])  # ours is found first
    done = run(tmp_path, "print('trained')", PYTHONPATH=path)
    assert done.returncode == 0
    assert done.stdout.split("\n")[:-1] == [
        "configured by another distro",
        "configured by another",
        "trained",
    ]


@pytest.mark.slow
def test_under_otel_rl_run_the_distro_that_is_found_first_does_not_matter(tmp_path: Path) -> None:
    install_another(tmp_path)
    program = tmp_path / "train.py"
    program.write_text(TRAIN, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])  # before ours
    done = otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", "--role", "trainer",
        "--", *INSTRUMENT, program,
        cwd=tmp_path,
        env=clean_environment(tmp_path, PYTHONPATH=path.strip(os.pathsep)),
    )  # fmt: skip
    assert (done.status, done.out) == (0, "")
    rows = [row for row in jsonl_rows(tmp_path, "e") if "trainer/loss" in row.values]
    assert [row.step for row in rows] == list(range(50))


def test_a_program_that_records_nothing_is_no_worker(sink: Sink, tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "print('trained')",
        OTEL_RL_EXPERIMENT="e",
        OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
    )
    assert (done.stdout, done.stderr) == ("trained\n", "")
    assert [pairs(r.resource.attributes) for m in sink.metrics for r in m.resource_metrics] == []
