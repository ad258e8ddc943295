"""vLLM finds the stat logger in processes that work for an experiment, and in no other."""

import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import otel_rl
from tests.otlp_sink import Sink

Adapter = Callable[[str], ModuleType]

GROUP = "vllm.general_plugins"
ROOT = Path(__file__).parents[3]


def load_general_plugins() -> None:
    """As vLLM does in each of its processes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, name = project["entry-points"][GROUP]["otel_rl"].split(":")
    getattr(import_module(module), name)()


def engine() -> list[str]:
    """The stat loggers of an engine whose statistics were not asked for."""
    llm = import_module("vllm.v1.engine.async_llm").AsyncLLM(log_stats=False)
    assert llm.log_stats == bool(llm.stat_loggers)
    return [type(logger).__name__ for logger in llm.stat_loggers]


def test_an_experiment_in_the_environment_is_enough(sink: Sink, adapter: Adapter) -> None:
    load_general_plugins()
    assert engine() == ["OtelStatLogger"]


def test_a_process_that_has_called_init_is_enough(
    sink: Sink, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_RL_EXPERIMENT")
    otel_rl.init(experiment="mine", role="generator")
    load_general_plugins()
    assert engine() == ["OtelStatLogger"]


def test_an_engine_that_is_loaded_already_is_reached_too(sink: Sink, adapter: Adapter) -> None:
    import_module("vllm.v1.engine.async_llm")
    load_general_plugins()
    assert engine() == ["OtelStatLogger"]


def test_plugins_that_are_loaded_twice_add_one_logger(sink: Sink, adapter: Adapter) -> None:
    load_general_plugins()
    import_module("vllm.v1.engine.async_llm")
    load_general_plugins()
    assert engine() == ["OtelStatLogger"]


def test_without_an_experiment_statistics_stay_off(
    sink: Sink, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_RL_EXPERIMENT")
    load_general_plugins()
    assert engine() == []


@pytest.mark.process
def test_without_an_experiment_nothing_is_loaded_and_nothing_said() -> None:
    program = (
        "import sys, otel_rl.integrations.automatic.vllm_plugin as plugin\n"
        "plugin.register()\n"
        "heavy = {'opentelemetry.sdk', 'otel_rl.worker.session', 'vllm'} & set(sys.modules)\n"
        "print(*heavy)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("\n", "")


def test_a_vllm_that_loads_stat_loggers_otherwise_serves_on(
    sink: Sink,
    adapter: Adapter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    loggers = import_module("vllm.v1.metrics.loggers")
    monkeypatch.delattr(loggers, "load_stat_logger_plugin_factories")
    load_general_plugins()
    assert "has no load_stat_logger_plugin_factories" in caplog.text
