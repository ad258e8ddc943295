"""A variable of otel_rl that is misspelt is told, with what was meant."""

import re
from pathlib import Path

import pytest

import otel_rl
from otel_rl.cli.environment import VARIABLES, misspelt


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("OTEL_RL_TRAIL", "OTEL_RL_TRIAL"),
        ("OTEL_RL_EXPERIMNT", "OTEL_RL_EXPERIMENT"),
        ("OTEL_RL_BRDIGE__HTTP__PORT", "OTEL_RL_BRIDGE__HTTP__PORT"),
        ("OTEL_RL_TRACKER", "OTEL_RL_BRIDGE__TRACKER"),
        ("OTEL_RL_TRACKER__NAME", "OTEL_RL_BRIDGE__TRACKER__NAME"),
    ],
)
def test_what_was_meant_is_told(wrong: str, meant: str) -> None:
    assert list(misspelt({wrong: "1"})) == [f"{wrong} has no effect: did you mean {meant}?"]


@pytest.mark.parametrize("name", ["OTEL_RL_TRIAL", "OTEL_RL_BRIDGE__HTTP__PORT", "OTEL_RL_MY_LAB"])
def test_what_is_known_or_nothing_like_it_is_not_told(name: str) -> None:
    assert list(misspelt({name: "1"})) == []


def test_every_variable_that_the_package_reads_is_known() -> None:
    sources = Path(otel_rl.__file__).parent.rglob("*.py")
    read = {
        name
        for path in sources
        for name in re.findall(r'"OTEL_RL_([A-Z_]*[A-Z])"', path.read_text(encoding="utf-8"))
        # Between processes of the demo; and settings of a bridge, which it checks by itself.
        if not name.startswith(("DEMO_", "BRIDGE__"))
        # From `otel-rl run` or a worker to what it starts.
        and name not in {"TYPED", "DEFAULT_EXPERIMENT", "DEFAULT_TRIAL"}
    }
    assert read | {"TAG", "NAME", "PROJECT"} == VARIABLES
