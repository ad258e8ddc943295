"""The generators stand for anybody's server: OpenTelemetry's API, and nothing of otel_rl."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from otel_rl import demo
from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument

PACKAGE = Path(demo.__file__).parent

CREATORS = {
    "counter": Instrument.COUNTER,
    "gauge": Instrument.GAUGE,
    "level": Instrument.UP_DOWN_COUNTER,
    "histogram": Instrument.HISTOGRAM,
}


@pytest.mark.process
def test_a_generator_process_loads_nothing_of_otel_rl_but_the_demo() -> None:
    code = (
        "import sys, otel_rl.demo.processes.generator\n"
        "print(*(name for name in sys.modules if name.startswith('otel_rl.')))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout.split()
    assert [name for name in loaded if not name.startswith("otel_rl.demo")] == []


@pytest.mark.parametrize("file", ["processes/generator.py", "generator_metrics.py"])
def test_a_generator_imports_the_api_not_the_sdk(file: str) -> None:
    imported = [
        node.module or ""
        for node in ast.walk(ast.parse((PACKAGE / file).read_text()))
        if isinstance(node, ast.ImportFrom)
    ]
    assert not [module for module in imported if module.startswith("opentelemetry.sdk")]


def spelled() -> list[tuple[str, str, str]]:
    """(creator, name, unit) of each instrument in generator_metrics.py."""
    calls = [
        node
        for node in ast.walk(ast.parse((PACKAGE / "generator_metrics.py").read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    return [
        (call.func.id, *(ast.literal_eval(argument) for argument in call.args))
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in CREATORS
    ]


@pytest.mark.parametrize(("creator", "name", "unit"), spelled())
def test_the_spelled_names_are_those_of_the_conventions(creator: str, name: str, unit: str) -> None:
    spec = names.METRICS[name]
    assert (spec.instrument, spec.unit) == (CREATORS[creator], unit)
