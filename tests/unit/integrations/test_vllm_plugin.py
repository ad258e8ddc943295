"""vLLM finds the stat logger, which records in processes that work for an experiment only."""

import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import otel_rl
from tests.support.otlp_sink import Sink

Adapter = Callable[[str], ModuleType]

GROUP = "vllm.stat_logger_plugins"
ROOT = Path(__file__).parents[3]


def record() -> None:
    """Serve a request as vLLM does that has loaded its plugins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, name = project["entry-points"][GROUP]["otel_rl"].split(":")
    kind = getattr(import_module(module), name)
    assert issubclass(kind, import_module("vllm.v1.metrics.loggers").StatLoggerBase)
    kind(object(), 0).record(SimpleNamespace(kv_cache_usage=0.5), None)


def recorded(sink: Sink) -> list[str]:
    otel_rl.flush(timeout_s=60)
    return [one.name for one in sink.measurements()]


def test_an_experiment_in_the_environment_is_enough(sink: Sink, adapter: Adapter) -> None:
    record()
    assert recorded(sink) == ["rl.generator.kv_cache.utilization"]


def test_a_process_that_has_called_init_is_enough(
    sink: Sink, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_RL_EXPERIMENT")
    otel_rl.init(experiment="mine", role="generator")
    record()
    assert recorded(sink) == ["rl.generator.kv_cache.utilization"]


def test_without_an_experiment_nothing_is_recorded_and_nothing_said(
    sink: Sink,
    adapter: Adapter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("OTEL_RL_EXPERIMENT")
    record()
    assert recorded(sink) == []
    assert caplog.text == ""
