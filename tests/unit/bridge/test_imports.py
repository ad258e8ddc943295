"""Libraries that a bridge loads only if it is configured to use them."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

UNUSED = ["grpc", "psycopg", "pyarrow", "requests", "wandb"]
OF_A_WRITER = [*UNUSED, "fastapi", "importlib.metadata", "pydantic", "starlette", "urllib.request"]


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        (
            "otel_rl.bridge.bridge",
            [*UNUSED, "fastapi", "opentelemetry.sdk", "psutil"],
        ),
        ("otel_rl.cli.commands.diagnose", [*UNUSED, "fastapi", "starlette"]),
        ("otel_rl.bridge.delivery.writer_main", OF_A_WRITER),
        ("otel_rl.cli.diagnosis_process", [*OF_A_WRITER, "asyncio", "pydantic_core", "ssl"]),
    ],
)
def test_what_not_all_use_is_not_loaded(module: str, unused: list[str]) -> None:
    program = f"import sys, {module}; print(*sorted({{*sys.modules}} & {{*{unused!r}}}))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []
