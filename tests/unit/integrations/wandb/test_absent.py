"""What W&B has and the drop-in has not: said once, with what to do instead."""

import copy
from contextlib import suppress
from typing import Any

import pytest

import otel_rl.integrations.wandb as wandb
from otel_rl.integrations.wandb import _absent
from tests.support.otlp_sink import Sink


def test_errors_of_wandb_can_be_caught() -> None:
    with suppress(ZeroDivisionError):
        try:
            raise ZeroDivisionError
        except (wandb.errors.CommError, wandb.errors.UsageError, wandb.Error):
            pytest.fail("it is no such error")


def test_a_chart_is_made_and_not_written() -> None:
    assert isinstance(wandb.plot.line(None, "x", "y"), _absent.Skipped)


def test_a_class_that_is_not_carried_can_be_asked_for_and_derived_from() -> None:
    kind: Any = wandb.Artifact
    assert not isinstance(3, (str, kind))

    class Own(kind):  # type: ignore[misc]  # a class, made at run time
        def __init__(self, value: int) -> None:
            super().__init__(value, more=1)
            self.value = value

    assert Own(3).value == 3


def test_an_artifact_takes_files() -> None:
    artifact = wandb.Artifact("model", type="model")
    with artifact.new_file("a", mode="wb") as file:
        file.write(b"x")
    artifact.add_dir("d")
    wandb.log_artifact(artifact, aliases=["a"]).wait()


@pytest.mark.parametrize("thing", ["Table", "Histogram", "Image"])
def test_what_is_logged_can_be_copied(thing: str) -> None:
    made = copy.deepcopy(getattr(wandb, thing)())
    assert not hasattr(made, "__array_interface__")


def test_a_name_that_is_not_carried_is_an_attribute_error_with_the_way_out(sink: Sink) -> None:
    run = wandb.init()
    owners = ((wandb, "some_function"), (wandb, "Api"), (run, "use_artifact"), (wandb.Table(), "x"))
    for owner, name in owners:
        with pytest.raises(AttributeError, match=r"package itself .*`otel-rl run --attach`"):
            getattr(owner, name)
