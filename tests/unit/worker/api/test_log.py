import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from opentelemetry import metrics, trace

import otel_rl
from otel_rl.worker import session
from otel_rl.worker.drops import DropReason
from tests.support.otlp_sink import Measurement, Sink


@pytest.fixture(autouse=True)
def fresh_counts() -> Iterator[None]:
    session.GUARD.forget()
    yield
    session.GUARD.forget()


def logged(sink: Sink) -> list[Measurement]:
    assert otel_rl.flush(timeout_s=60)
    return sink.measurements()


def test_a_call_is_one_measurement_for_each_name(started: Sink) -> None:
    otel_rl.log({"loss": 0.5, "reward": 2}, step=7)
    assert {(m.name, m.value, m.step) for m in logged(started)} == {
        ("loss", 0.5, 7),
        ("reward", 2, 7),
    }


def test_mlogger_and_the_plain_api_give_the_same_measurements(started: Sink) -> None:
    meter = metrics.get_meter("mine", attributes={"rl.reduce": "max"})
    tracer = trace.get_tracer("mine")
    with tracer.start_as_current_span("step"):
        for step, value in enumerate([0.5, math.inf, 3, -1.25]):
            otel_rl.log({"by.mlogger": value}, step=step, reduce="max")
            meter.create_gauge("by.api").set(value, {"rl.loop.iteration": step})
    found = logged(started)

    def facts(name: str) -> list[tuple[object, ...]]:
        return [
            (m.value, type(m.value), m.step, m.attributes, m.scope, m.span_id)
            for m in found
            if m.name == name
        ]

    assert facts("by.mlogger") == facts("by.api")
    assert len(facts("by.api")) == 4


def test_a_measurement_may_be_older_than_the_call(started: Sink) -> None:
    otel_rl.log({"loss": 0.5}, step=7, at_ns=1_700_000_000_000_000_000)
    assert [m.time_ns for m in logged(started)] == [1_700_000_000_000_000_000]


@pytest.mark.parametrize("wrong", [1.5, -1, math.nan, 1 << 64, "now"])
def test_a_time_that_is_none_is_told_and_counted(
    started: Sink, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    otel_rl.log({"loss": 0.5, "reward": 1}, step=7, at_ns=wrong)
    otel_rl.log({"loss": 0.25}, step=7, at_ns=float(1 << 60))  # type: ignore[arg-type]
    assert [(m.value, m.time_ns) for m in logged(started)] == [(0.25, 1 << 60)]
    assert session.GUARD.drops.counts() == {DropReason.BAD_TIME: 2}
    assert "at_ns must be" in caplog.text
    assert "report this" not in caplog.text


def test_a_dict_that_is_reused_for_the_next_step_changes_nothing(started: Sink) -> None:
    values = {"loss": 0.0}
    for step in range(3):
        values["loss"] = float(step)
        otel_rl.log(values, step=step)
    assert [m.value for m in logged(started)] == [0.0, 1.0, 2.0]


def test_without_a_step_a_value_is_time_driven(started: Sink) -> None:
    otel_rl.log({"gpu": 0.9})
    assert [m.step for m in logged(started)] == [None]


def test_names_that_the_api_refuses_are_kept(started: Sink) -> None:
    otel_rl.log({"pass@1": 0.5, "KL (ref)": 0.1, "1st": 1.0}, step=1)
    assert {m.name for m in logged(started)} == {"pass@1", "KL (ref)", "1st"}


def test_arrays_of_one_element_and_numpy_steps_are_taken(started: Sink) -> None:
    otel_rl.log({"loss": np.array([0.25], np.float32)}, step=np.int64(3))  # type: ignore[arg-type]
    assert [(m.value, m.step) for m in logged(started)] == [(0.25, 3)]


@pytest.mark.parametrize(
    ("values", "step", "reduce", "counted"),
    [
        ({"a": "text", "b": None}, 1, None, {DropReason.NOT_A_NUMBER: 2}),
        ({"a": np.zeros(3)}, 1, None, {DropReason.NOT_A_NUMBER: 1}),
        (5, 1, None, {DropReason.NOT_A_NUMBER: 1}),
        ({"a": 1.0, "b": 2.0}, "one", None, {DropReason.BAD_STEP: 2}),
        ({"a": 1.0}, 1.5, None, {DropReason.BAD_STEP: 1}),
        ({"a": 1.0, "b": 2.0}, 1, "median", {DropReason.BAD_REDUCE: 2}),
        ({"a": 1.0}, 1, ["max"], {DropReason.BAD_REDUCE: 1}),
        ({"": 1.0, "x" * 256: 1.0, 3: 1.0}, 1, None, {DropReason.BAD_NAME: 3}),
    ],
)
def test_bad_calls_never_raise_and_are_counted(
    started: Sink, values: object, step: object, reduce: object, counted: dict[DropReason, int]
) -> None:
    otel_rl.log(values, step=step, reduce=reduce)  # type: ignore[arg-type]
    assert logged(started) == []
    assert session.GUARD.drops.counts() == counted


class Broken:
    """A tensor whose device is gone: every question fails."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"no {name}: device lost")


@pytest.mark.parametrize("bad", ["text", Broken()], ids=["text", "broken"])
def test_a_bad_value_does_not_cost_its_neighbours(started: Sink, bad: object) -> None:
    otel_rl.log({"bad": bad, "good": 1.0}, step=1)  # type: ignore[dict-item]
    assert [m.name for m in logged(started)] == ["good"]
    assert session.GUARD.drops.counts() == {DropReason.NOT_A_NUMBER: 1}


def test_names_of_nested_mappings_are_joined(started: Sink) -> None:
    otel_rl.log({"train": {"loss": 1.0, "of": {"kl": np.float32(2)}}, "reward": 3.0}, step=1)
    found = {m.name: m.value for m in logged(started)}
    assert found == {"train/loss": 1.0, "train/of/kl": 2.0, "reward": 3.0}


def test_a_mapping_within_itself_is_dropped(started: Sink) -> None:
    nested: dict[str, Any] = {"loss": 1.0}
    nested["self"] = nested
    otel_rl.log(nested, step=1)
    assert "loss" in {m.name for m in logged(started)}
    assert session.GUARD.drops.counts() == {DropReason.NOT_A_NUMBER: 1}


def test_mlogger_logs_alike(started: Sink) -> None:
    otel_rl.mlogger.log({"loss": 1.0}, step=1)
    assert [m.name for m in logged(started)] == ["loss"]
    assert otel_rl.mlogger.log == otel_rl.log


@pytest.mark.usefixtures("started")
def test_each_value_that_is_no_number_is_said_once_and_all_are_summed_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "otel_rl"):
        for step in range(6):
            values: dict[str, Any] = {"a": "text", "loss": 1.0, "nested": {"of": [1, 2]}}
            otel_rl.log(values, step=step)
        metrics.get_meter("mine").create_gauge("b").set("text")  # type: ignore[arg-type]
        otel_rl.flush(timeout_s=60)
        said = caplog.messages
        assert [line.partition(". ")[0] for line in said] == [
            "a: not a number (got str)",
            "nested/of: not a number (got list)",
            "b: not a number (got str)",
        ]
        caplog.clear()
        otel_rl.finish(timeout_s=60)
        otel_rl.finish(timeout_s=60)
    summary = "13 values of 3 keys were no numbers and were dropped: a, nested/of, b."
    assert caplog.messages == [summary]


@pytest.mark.usefixtures("started")
def test_of_many_keys_without_numbers_the_first_hundred_are_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "otel_rl"):
        values: dict[str, Any] = {f"id-{n}": "text" for n in range(150)}
        otel_rl.log(values, step=1)
        otel_rl.finish(timeout_s=60)
    *said, summary = caplog.messages
    assert len(said) == 100
    assert summary.startswith("150 values of more than 100 keys were no numbers")
    assert summary.endswith("id-9 and others.")


def test_before_init_a_call_is_counted_and_said_once(
    clean_environment: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "otel_rl"):
        for _ in range(10):
            otel_rl.log({"loss": 1.0}, step=1)
    assert len(caplog.records) == 1
    assert "otel_rl.init(" in caplog.records[0].message
    assert session.GUARD.drops.counts() == {DropReason.NOT_STARTED: 10}
