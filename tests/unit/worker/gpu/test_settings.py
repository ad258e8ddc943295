"""Whether and how GPUs are sampled: what init is given, and the environment."""

import pytest

from otel_rl.errors import ConfigError
from otel_rl.worker.gpu import GpuOptions, GpuSettings, read_gpu_settings


def test_sampling_is_off_unless_asked_for() -> None:
    assert not read_gpu_settings({}).enabled


@pytest.mark.parametrize(
    ("text", "enabled"), [("1", True), ("true", True), ("ON", True), ("0", False), ("off", False)]
)
def test_the_variable_switches_sampling(text: str, enabled: bool) -> None:
    assert read_gpu_settings({"OTEL_RL_GPU": text}).enabled is enabled


def test_the_environment_says_roles_devices_and_interval() -> None:
    settings = read_gpu_settings(
        {
            "OTEL_RL_GPU": "1",
            "OTEL_RL_GPU_ROLES": "trainer, generator",
            "OTEL_RL_GPU_DEVICES": "0,GPU-abc",
            "OTEL_RL_GPU_INTERVAL": "500",
        }
    )
    assert settings == GpuSettings(True, ("trainer", "generator"), "0,GPU-abc", 0.5)


def test_what_init_is_given_wins() -> None:
    environ = {"OTEL_RL_GPU": "1", "OTEL_RL_GPU_ROLES": "trainer"}
    assert not read_gpu_settings(environ, given=False).enabled
    settings = read_gpu_settings(environ, given={"roles": ["reward"], "devices": [0, 3]})
    assert settings == GpuSettings(True, ("reward",), "0,3")


def test_no_roles_are_all_roles() -> None:
    assert read_gpu_settings({}, given=True).are_for("anything")
    assert not read_gpu_settings({}, given={"roles": ["trainer"]}).are_for("generator")


def test_a_list_of_no_devices_shows_none() -> None:
    assert read_gpu_settings({}, given={"devices": []}).devices == ""


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("yes", "gpu: must be True, False or a mapping"),
        ({"role": ["trainer"]}, "gpu: unknown option 'role'"),
        ({"roles": "trainer"}, "gpu.roles: must be a list"),
        ({"devices": [1.5]}, "gpu.devices: cannot hold 1.5"),
        ({"devices": ["0,1"]}, "gpu.devices: cannot hold '0,1'"),
        ({"interval_s": 0}, "gpu.interval_s: must be 10 milliseconds or more (got 0)"),
        ({"interval_s": float("nan")}, "gpu.interval_s: must be 10 milliseconds or more (got nan)"),
    ],
)
def test_a_wrong_argument_is_named(given: GpuOptions, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_gpu_settings({}, given=given)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text"), [("OTEL_RL_GPU", "maybe"), ("OTEL_RL_GPU_INTERVAL", "5s")]
)
def test_a_wrong_variable_is_named(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_gpu_settings({name: text})
    assert str(raised.value).startswith(f"{name}: must be")
    assert repr(text) in str(raised.value)
