import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import otel_rl
from tests.support.otlp_sink import Sink

pytestmark = pytest.mark.process


HEAVY = [
    "wandb",
    "fastapi",
    "grpc",
    "psutil",
    "pynvml",
    "numpy",
    "requests",
    "pydantic",
    "opentelemetry.sdk",
]


UNUSED = [
    "argparse",
    "grpc",
    "gzip",
    "multiprocessing",
    "otel_rl.records",
    "otel_rl.worker.api.lineage",
    "otel_rl.worker.api.watch",
    "pynvml",
]
"""Needed by some workers only, and loaded by them."""

EXPORT = """
import otel_rl
otel_rl.init(experiment="e", role="r", index=1, count=2, endpoint={url!r})
with otel_rl.step(1):
    with otel_rl.phase("train"):
        otel_rl.log({{"loss": 1.0}}, step=1)
assert otel_rl.flush(timeout_s=60)
"""


def loaded_after(code: str, names: list[str] = HEAVY) -> set[str]:
    """Those of ``names`` that a fresh interpreter has loaded after ``code``."""
    program = (
        f"{code}\nimport sys, json\n"
        f"print(json.dumps([name for name in {names} if name in sys.modules]))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(finished.stdout.splitlines()[-1]))


def test_importing_loads_nothing_heavy() -> None:
    assert loaded_after("import otel_rl") == set()


def test_init_loads_no_tracker_no_server_and_no_arrays() -> None:
    loaded = loaded_after(
        "import otel_rl\n"
        "otel_rl.init(experiment='e', role='r', endpoint='http://127.0.0.1:9')\n"
        "otel_rl.log({'loss': 1.0}, step=1)\n"
        "otel_rl.finish(timeout_s=0.1)"
    )
    assert loaded <= {"opentelemetry.sdk", "psutil", "requests"}


def test_a_worker_exports_metrics_events_and_spans_without_what_others_need(sink: Sink) -> None:
    assert loaded_after(EXPORT.format(url=sink.url), UNUSED) == set()
    assert {m.name for m in sink.measurements()} >= {"loss", "rl.phase.duration"}
    assert sink.traces
    assert sink.logs


def test_the_public_names_are_these_ten() -> None:
    names = "finish flush init lineage log log_config log_samples phase step watch"
    assert otel_rl.__all__ == names.split()
    assert all(hasattr(otel_rl, name) for name in otel_rl.__all__)
    of_lineage = "digest inject link link_weights read rollout score signed stamp verify"
    assert otel_rl.lineage.__all__ == of_lineage.split()


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(otel_rl, "does_not_exist")


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert otel_rl.__version__ == project["version"]
