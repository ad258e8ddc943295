"""MFU of steps: the settings, the peaks of devices, and what a worker reports."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics

import otel_rl
from otel_rl.errors import ConfigError
from otel_rl.worker.settings import MfuOptions, MfuSettings, read_settings
from otel_rl.worker.system.mfu import peak_flops_per_s
from tests.gpu.machine import Machine, compiler, gpu
from tests.otlp_sink import Sink
from tests.waiting import wait_until

DIVIDED = {**gpu(0, name="NVIDIA A100-SXM4-80GB", mig=1), "0/1.uuid": "MIG-1"}

needs_compiler = pytest.mark.skipif(
    compiler() is None, reason="the stand-in for the NVIDIA driver needs a C compiler"
)

VARIABLES = {
    "OTEL_RL_MODEL_FLOPS_PER_TOKEN": "4.2e10",
    "OTEL_RL_PEAK_FLOPS_PER_S": "1e15",
    "OTEL_RL_MFU_DEVICES": "8",
}


@pytest.mark.parametrize(
    ("model", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H20", 148),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10G", 70),
        ("NVIDIA L40S", 362),
        ("NVIDIA RTX 6000 Ada Generation", 364.2),
        ("Tesla V100-PCIE-16GB", 112),
        ("Tesla V100-SXM2-32GB", 125),
        ("Tesla T4", 65),
    ],
)
def test_the_peak_of_a_device_is_found_by_its_name(model: str, tera: float) -> None:
    assert peak_flops_per_s(model) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    "model",
    [
        "",
        "NVIDIA H2000",
        "Quadro RTX 6000",
        "Stand-in H100",
        "NVIDIA A40-8Q",
        "GRID A100-10C",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    ],
)
def test_a_device_that_is_not_known_has_no_peak(model: str) -> None:
    assert peak_flops_per_s(model) is None


def test_settings_are_of_the_environment_and_arguments_of_init_win() -> None:
    assert read_settings({}).mfu == MfuSettings(None, None, 1)
    assert read_settings(VARIABLES).mfu == MfuSettings(4.2e10, 1e15, 8)
    given: MfuOptions = {"model_flops_per_token": 6e9, "devices": 2}
    assert read_settings(VARIABLES, mfu=given).mfu == MfuSettings(6e9, 1e15, 2)


@pytest.mark.parametrize(
    ("environ", "given", "complaint"),
    [
        ({"OTEL_RL_MODEL_FLOPS_PER_TOKEN": "7B"}, None, "OTEL_RL_MODEL_FLOPS_PER_TOKEN"),
        ({"OTEL_RL_PEAK_FLOPS_PER_S": "0"}, None, "OTEL_RL_PEAK_FLOPS_PER_S"),
        ({"OTEL_RL_MFU_DEVICES": "inf"}, None, "OTEL_RL_MFU_DEVICES"),
        ({}, {"model_flops_per_token": True}, "mfu.model_flops_per_token"),
        ({}, {"devices": 8}, "mfu.model_flops_per_token: is missing"),
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


@needs_compiler
@pytest.mark.process
@pytest.mark.parametrize(
    ("gpus", "peak"),
    [
        ([gpu(0, name="NVIDIA H100 80GB HBM3"), gpu(1, name="NVIDIA H100 80GB HBM3")], 989.4e12),
        ([gpu(0, name="NVIDIA H100 80GB HBM3"), gpu(1, name="NVIDIA H100 PCIe")], None),
        ([gpu(0)], None),
        ([DIVIDED], None),
        ([], None),
    ],
    ids=["known", "different", "unknown", "instance", "none"],
)
def test_the_peak_is_that_of_the_visible_gpus_if_all_have_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sink: Sink,
    reporting: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    gpus: list[Any],
    peak: float | None,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = Machine(tmp_path, monkeypatch.setenv)
    machine.set(*gpus)
    monkeypatch.setenv("OTEL_RL_MODEL_FLOPS_PER_TOKEN", "1e9")
    reporting()
    wait_until(
        lambda: all(one.name != "otel-rl-peak-flops" for one in threading.enumerate()),
        "the answer of the driver",
        timeout_s=60,
    )
    step_of(1, 1000)
    found = values(sink, "rl.train.mfu")
    if peak is None:
        assert found == {}
        assert "OTEL_RL_PEAK_FLOPS_PER_S" in caplog.text
    else:
        duration_s = values(sink, "rl.iteration.duration")[1]
        assert found == {1: pytest.approx(3000 * 1e9 / (duration_s * peak))}
