"""MFU of steps: the settings, and what a worker reports."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import metrics

import otel_rl
from otel_rl.errors import ConfigError
from otel_rl.worker.settings import MfuOptions, MfuSettings, read_settings
from tests.support.otlp_sink import Sink

VARIABLES = {
    "OTEL_RL_MODEL_FLOPS_PER_TOKEN": "4.2e10",
    "OTEL_RL_PEAK_FLOPS_PER_S": "1e15",
    "OTEL_RL_MFU_DEVICES": "8",
}


def test_settings_are_of_the_environment_and_arguments_of_init_win() -> None:
    assert read_settings({}).mfu == MfuSettings(None, None, 1)
    assert read_settings(VARIABLES).mfu == MfuSettings(4.2e10, 1e15, 8)
    given: MfuOptions = {"model_flops_per_token": 6e9, "devices": 2}
    assert read_settings(VARIABLES, mfu=given).mfu == MfuSettings(6e9, 1e15, 2)
    of_environment = {"OTEL_RL_PEAK_FLOPS_PER_S": "2e15"}
    assert read_settings(of_environment, mfu=given).mfu == MfuSettings(6e9, 2e15, 2)


@pytest.mark.parametrize(
    ("environ", "given", "complaint"),
    [
        ({"OTEL_RL_MODEL_FLOPS_PER_TOKEN": "7B"}, None, "OTEL_RL_MODEL_FLOPS_PER_TOKEN"),
        ({"OTEL_RL_PEAK_FLOPS_PER_S": "0"}, None, "OTEL_RL_PEAK_FLOPS_PER_S"),
        ({"OTEL_RL_MFU_DEVICES": "inf"}, None, "OTEL_RL_MFU_DEVICES"),
        ({}, {"model_flops_per_token": True}, "mfu.model_flops_per_token"),
        ({}, {"devices": 8}, "mfu.model_flops_per_token: is missing"),
        ({}, {"model_flops_per_token": 4e10}, "mfu.peak_flops_per_s: is missing"),
        ({}, {"peak": 8}, "unknown option 'peak'"),
        ({}, 4e10, "must be a mapping"),
    ],
)
def test_a_wrong_setting_is_named(environ: dict[str, str], given: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_settings(environ, mfu=given)


def step_of(number: int, tokens: int) -> None:
    counter = metrics.get_meter("trainer").create_counter("rl.train.tokens", "{token}")
    with otel_rl.step(number):
        counter.add(tokens)
        counter.add(tokens, {"kind": "prompt"})
        counter.add(tokens, {"rl.loop.iteration": number})


def values(sink: Sink, name: str) -> dict[int | None, float]:
    assert otel_rl.flush(timeout_s=60)
    return {m.step: m.value for m in sink.measurements(name)}


@pytest.fixture
def reporting(sink: Sink, clean_environment: None) -> Iterator[Callable[..., None]]:
    """Starts a trainer that reports to the sink."""

    def start(**options: Any) -> None:
        otel_rl.init(
            experiment="mfu", role="trainer", endpoint=sink.url, export_interval_s=60, **options
        )

    yield start
    otel_rl.finish(timeout_s=60)


def test_a_step_has_the_mfu_of_its_tokens_time_and_devices(
    sink: Sink, reporting: Callable[..., None]
) -> None:
    reporting(
        mfu={"model_flops_per_token": 1e9, "peak_flops_per_s": 1e12, "devices": 4},
    )
    step_of(1, 1000)
    step_of(2, 5000)
    with otel_rl.step(3):
        pass  # nothing is trained: no MFU, rather than 0
    durations_s = values(sink, "rl.iteration.duration")
    assert values(sink, "rl.train.mfu") == {
        number: pytest.approx(3 * tokens * 1e9 / (durations_s[number] * 4e12))
        for number, tokens in ((1, 1000), (2, 5000))
    }


def test_without_the_models_flops_there_is_no_mfu(started: Sink) -> None:
    step_of(1, 1000)
    assert values(started, "rl.train.mfu") == {}


def test_a_variable_without_the_peak_costs_the_mfu_and_nothing_else(
    sink: Sink,
    reporting: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OTEL_RL_MODEL_FLOPS_PER_TOKEN", "4e10")
    reporting()
    step_of(1, 100)
    otel_rl.log({"loss": 1.0}, step=1)
    assert values(sink, "loss") == {1: 1.0}
    assert values(sink, "rl.train.mfu") == {}
    assert "OTEL_RL_PEAK_FLOPS_PER_S is not set" in caplog.text
