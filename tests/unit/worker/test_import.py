import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import otel_rl

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


def loaded_after(code: str) -> set[str]:
    """Those of HEAVY that a fresh interpreter has loaded after ``code``."""
    program = (
        f"{code}\nimport sys, json\n"
        f"print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
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
        "otel_rl.mlogger.log({'loss': 1.0}, step=1)\n"
        "otel_rl.shutdown(timeout_s=0.1)"
    )
    assert loaded == {"opentelemetry.sdk", "psutil"}  # the SDK loads psutil, too


def test_all_is_sorted_and_every_name_of_it_is_there() -> None:
    assert otel_rl.__all__ == sorted(otel_rl.__all__)
    assert all(hasattr(otel_rl, name) for name in otel_rl.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(otel_rl, "does_not_exist")


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert otel_rl.__version__ == project["version"]
