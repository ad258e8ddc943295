"""Libraries that a bridge loads only if it is configured to use them."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

UNUSED = ["fastapi", "grpc", "psycopg", "pyarrow", "requests", "wandb"]


@pytest.mark.parametrize("module", ["otel_rl.bridge.bridge", "otel_rl.cli.commands.diagnose"])
def test_what_not_all_use_is_not_loaded(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{*sys.modules}} & {{*{UNUSED!r}}}))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []
