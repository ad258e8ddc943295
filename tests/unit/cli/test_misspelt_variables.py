"""A variable of otel_rl that is misspelt is told, with what was meant."""

import re
from pathlib import Path

import pytest

import otel_rl
from otel_rl.cli.environment import misspelt
from otel_rl.worker.settings import TABLE


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("OTEL_RL_TRAIL", "OTEL_RL_TRIAL"),
        ("OTEL_RL_EXPERIMNT", "OTEL_RL_EXPERIMENT"),
        ("OTEL_RL_BRDIGE__LISTEN__HTTP", "OTEL_RL_BRIDGE__LISTEN__HTTP"),
        ("OTEL_RL_TRACKER", "OTEL_RL_BRIDGE__TRACKER"),
        ("OTEL_RL_TRACKER__NAME", "OTEL_RL_BRIDGE__TRACKER__NAME"),
    ],
)
def test_what_was_meant_is_told(wrong: str, meant: str) -> None:
    assert list(misspelt({wrong: "1"})) == [f"{wrong} has no effect: did you mean {meant}?"]


@pytest.mark.parametrize("name", ["OTEL_RL_TRIAL", "OTEL_RL_BRIDGE__DATA", "OTEL_RL_MY_LAB"])
def test_what_is_known_or_nothing_like_it_is_not_told(name: str) -> None:
    assert list(misspelt({name: "1"})) == []


def test_what_processes_of_otel_rl_tell_each_other_is_known_but_not_proposed() -> None:
    assert list(misspelt({"OTEL_RL_TYPED": "trial", "OTEL_RL_TYPE": "trial"})) == []


def test_every_variable_that_the_package_names_is_in_the_table() -> None:
    sources = Path(otel_rl.__file__).parent.rglob("*.py")
    named = {
        name
        for path in sources
        for name in re.findall(r'"(OTEL_RL_[A-Z_]*[A-Z])"', path.read_text(encoding="utf-8"))
        # Between processes of the demo; and settings of a bridge, which it checks by itself.
        if not name.startswith(("OTEL_RL_DEMO_", "OTEL_RL_BRIDGE__"))
    }
    assert named - {entry.variable for entry in TABLE} == set()
