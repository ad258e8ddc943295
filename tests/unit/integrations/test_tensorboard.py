"""Scalars of a SummaryWriter are in the run at their global step."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import otel_rl
from otel_rl.integrations.hook import record_tensorboard
from otel_rl.worker.session import GUARD
from tests.support.otlp_sink import Sink


@pytest.fixture(params=["before", "after"])
def kind(
    request: pytest.FixtureRequest, sink: Sink, tensorboardx: Callable[[], Any]
) -> Iterator[type]:
    """A writer's class, imported before or after the hook was switched on."""
    if request.param == "before":
        tensorboardx()
    hook = record_tensorboard()
    yield tensorboardx().SummaryWriter
    hook.stop()


def arrived(sink: Sink) -> dict[str, list[tuple[int | None, float]]]:
    otel_rl.flush(timeout_s=60)
    found: dict[str, list[tuple[int | None, float]]] = {}
    for measurement in sink.measurements():
        found.setdefault(measurement.name, []).append((measurement.step, measurement.value))
    return found


def test_scalars_stand_at_their_global_step_in_any_order(sink: Sink, kind: type) -> None:
    writer = kind("runs/a")
    for step in (2048, 4096, 1024):
        writer.add_scalar("losses/value", np.float32(step / 2), step)
    writer.add_scalar("charts/return", 3.0, global_step=np.int64(7))
    assert arrived(sink)["losses/value"] == [(2048, 1024.0), (4096, 2048.0), (1024, 512.0)]
    assert arrived(sink)["charts/return"] == [(7, 3.0)]
    assert writer.written[0] == ("losses/value", 1024.0, 2048)


def test_a_group_of_scalars_is_recorded_once_under_its_name(sink: Sink, kind: type) -> None:
    kind("runs/a").add_scalars("loss", {"policy": 1.0, "value": 2.0}, 3)
    found = arrived(sink)
    assert (found["loss/policy"], found["loss/value"]) == ([(3, 1.0)], [(3, 2.0)])


def test_hyper_parameters_are_the_config(sink: Sink, kind: type) -> None:
    kind("runs/a").add_hparams({"lr": 0.1}, {"hparam/accuracy": 0.5})
    assert "hparam/accuracy" not in arrived(sink)
    configs = [e.attributes.get("rl.experiment.config") for e in sink.events("rl.experiment.start")]
    assert {"lr": 0.1} in configs


def test_writers_of_two_directories_do_not_mix(sink: Sink, kind: type) -> None:
    kind("runs/a").add_scalar("loss", 1.0, 1)
    kind("runs/a/eval").add_scalar("loss", 2.0, 1)
    kind("runs/a").add_scalar("loss", 3.0, 2)
    found = arrived(sink)
    assert (found["loss"], found["eval/loss"]) == ([(1, 1.0), (2, 3.0)], [(1, 2.0)])


def test_what_a_writer_raises_reaches_the_program_and_is_not_recorded(
    sink: Sink, kind: type
) -> None:
    with pytest.raises(ValueError, match="could not convert"):
        kind("runs/a").add_scalar("x", "text", 1)
    assert "x" not in arrived(sink)


def test_a_step_that_is_none_is_counted(sink: Sink, kind: type) -> None:
    kind("runs/a").add_scalar("x", 1.0, "three")
    assert "x" not in arrived(sink)
    assert GUARD.drops.counts()["bad_step"] == 1  # type: ignore[index]  # a StrEnum is its text


def test_many_scalars_register_nothing_for_the_end_of_the_process(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kind("runs/a")
    made.add_scalar("x", 1.0, 0)
    registered: list[object] = []
    monkeypatch.setattr("atexit.register", registered.append)
    for step in range(1, 100):
        made.add_scalar("x", 1.0, step)
    assert registered == []
