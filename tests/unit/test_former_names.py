"""Names from before a rename still work, and say what the name is now."""

import subprocess
import sys

import pytest

import otel_rl


def _run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=False
    )


@pytest.mark.process
def test_the_drop_in_is_found_under_its_former_name() -> None:
    ended = _run(
        "import otel_rl.compat.wandb as former\n"
        "import otel_rl.integrations.wandb as now\n"
        "assert former is now\n"
        "from otel_rl.compat.wandb import init\n"
        "assert init is now.init\n"
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("otel_rl.compat.wandb is now otel_rl.integrations.wandb") == 1


@pytest.mark.process
def test_the_keys_of_a_tracker_are_found_under_their_former_name() -> None:
    ended = _run(
        "from otel_rl.bridge.keys import read_key\n"
        "assert read_key('trainer/loss')[0] == 'trainer'\n"
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("otel_rl.bridge.keys is now otel_rl.bridge.tracker_keys") == 1


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("carrier", "lineage"),
        ("finish", "end_experiment"),
        ("log_config", "mlogger.log_config"),
        ("log_samples", "mlogger.log_samples"),
    ],
)
def test_a_public_name_from_before_a_rename_warns_and_works(former: str, now: str) -> None:
    expected: object = otel_rl
    for part in now.split("."):
        expected = getattr(expected, part)

    with pytest.warns(DeprecationWarning, match=f"otel_rl.{former} is now otel_rl.{now}"):
        assert getattr(otel_rl, former) is expected

    assert former not in dir(otel_rl)
