"""The drop-in takes the calls of the W&B that it stands in for."""

import tomllib
from pathlib import Path

from packaging.specifiers import SpecifierSet

import otel_rl.integrations.wandb as drop_in
from tests.support.wandb_signatures import differences

ROOT = Path(__file__).parents[2]


def test_every_call_that_is_carried_has_the_parameters_of_wandbs_own() -> None:
    assert differences() == []


def test_the_version_that_libraries_read_is_one_of_the_supported_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wandb,) = (
        one.removeprefix("wandb")
        for one in project["optional-dependencies"]["wandb"]
        if one.startswith("wandb")
    )
    assert SpecifierSet(wandb).contains(drop_in.__version__)
