import argparse
import copy
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from otel_rl.integrations.wandb import Config


@dataclass
class Hyper:
    lr: float = 0.1


def test_items_and_attributes_are_the_same() -> None:
    config = Config()
    config.lr = 0.1
    config["batch"] = 8
    assert (config["lr"], config.batch, config.get("no"), "lr" in config) == (0.1, 8, None, True)
    assert dict(config) == config.as_dict() == {"lr": 0.1, "batch": 8}


@pytest.mark.parametrize("given", [{"lr": 0.1}, argparse.Namespace(lr=0.1), Hyper()])
def test_every_form_of_config_is_taken(given: object) -> None:
    config = Config()
    config.update(given)
    assert config.lr == 0.1


@pytest.mark.parametrize("given", ["no/such/file.yaml", 3, None])
def test_what_is_no_config_raises_nothing(given: object) -> None:
    config = Config()
    config.update(given)
    assert dict(config) == {}


def test_defaults_do_not_win() -> None:
    config = Config()
    config.lr = 0.1
    config.setdefaults({"lr": 9, "seed": 1})
    assert dict(config) == {"lr": 0.1, "seed": 1}


def test_what_is_new_is_told() -> None:
    told: list[Mapping[str, object]] = []
    config = Config(told.append)
    config.update({"a": 1})
    config.b = 2
    config.update({})
    assert told == [{"a": 1}, {"b": 2}]


def test_a_missing_attribute_is_an_attribute_error() -> None:
    assert not hasattr(Config(), "lr")
    with pytest.raises(KeyError):
        Config()["lr"]


def test_a_config_can_be_copied() -> None:
    config = Config()
    config.lr = 0.1
    assert dict(copy.deepcopy(config)) == {"lr": 0.1}
