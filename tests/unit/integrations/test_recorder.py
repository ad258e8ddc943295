import copy
import importlib
import math
import pickle
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

import otel_rl
from otel_rl.integrations.adapter import Recorder, start
from otel_rl.semconv.names import RL_STATISTIC
from otel_rl.worker.drops import DropReason
from otel_rl.worker.identity import WorkerNames
from otel_rl.worker.session import GUARD
from tests.support.otlp_sink import Measurement, Sink, sums

TRAINER = WorkerNames(role="trainer")


def arrived(sink: Sink, name: str) -> list[Measurement]:
    assert otel_rl.flush(timeout_s=60)
    return sink.measurements(name)


def test_a_known_name_is_recorded_with_its_unit_attributes_and_step(sink: Sink) -> None:
    start(TRAINER)
    Recorder("verl").record({"timing_s/update_actor": 2.5}, 7)
    (found,) = arrived(sink, "rl.phase.duration")
    assert (found.value, found.step, found.attributes) == (
        *(2.5, 7),
        {"rl.phase": "train", "otel_rl.framework.metric": "timing_s/update_actor"},
    )
    (metric,) = [
        metric
        for request in sink.metrics
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "rl.phase.duration"
    ]
    assert metric.unit == "s"


def test_an_unknown_name_keeps_its_own(sink: Sink) -> None:
    start(TRAINER)
    Recorder("verl").record({"mine/too": 1.0}, 7, reduce="sum")
    (found,) = arrived(sink, "mine/too")
    assert (found.value, found.step, found.scope["rl.reduce"]) == (1.0, 7, "sum")


@pytest.mark.parametrize("value", [3.0, np.float32(3), np.array([3.0])])
def test_a_sign_that_is_defined_the_other_way_round_is_turned(sink: Sink, value: object) -> None:
    start(TRAINER)
    Recorder("areal").record({"ppo_actor/update/approx_kl/avg": value}, 1)
    assert [m.value for m in arrived(sink, "rl.policy.kl.update")] == [-3.0]


def test_a_statistic_is_an_attribute_and_reduces_as_itself(sink: Sink) -> None:
    start(TRAINER)
    Recorder("skyrl").record({"async/staleness_max": 4, "async/staleness_mean": 2.5}, 1)
    found = {
        m.attributes[RL_STATISTIC]: (m.value, m.scope["rl.reduce"])
        for m in arrived(sink, "rl.policy.staleness")
    }
    assert found == {"max": (4, "max"), "mean": (2.5, "mean")}


def test_what_the_registry_counts_is_added_up(sink: Sink) -> None:
    start(TRAINER)
    recorder = Recorder("verl")
    for step in range(3):
        recorder.record({"perf/total_num_tokens": 100}, step)
    assert otel_rl.flush(timeout_s=60)
    assert list(sums(sink.metrics, "rl.train.tokens").values()) == [300]


def test_nan_is_recorded(sink: Sink) -> None:
    start(TRAINER)
    Recorder("trl").record({"loss": math.nan}, 3)
    (found,) = arrived(sink, "rl.train.loss")
    assert math.isnan(found.value)


def test_what_is_no_number_is_counted_and_said_once(
    sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    start(TRAINER)
    recorder = Recorder("trl")
    for step in range(3):
        recorder.record({"samples": ["text"], "note": "x", "none": None, "loss": 1.0}, step)
    assert len(arrived(sink, "rl.train.loss")) == 3
    assert GUARD.drops.counts()[DropReason.NOT_A_NUMBER] == 6
    assert [m for m in caplog.messages if m.startswith("samples")] == [
        "samples: not a number (got list). It is dropped. trl logs it."
    ]


def test_metrics_without_a_worker_are_counted(sink: Sink) -> None:
    Recorder("trl").record({"loss": 1.0}, 3)
    assert GUARD.drops.counts()[DropReason.NOT_STARTED] == 1


def test_the_environment_names_the_run_and_the_role(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_ROLE", "orchestrator")
    start(WorkerNames("project", "name", "trainer"))
    Recorder("trl").record({"loss": 1.0}, 3)
    resource = arrived(sink, "rl.train.loss")[0].resource
    assert (resource["rl.experiment.name"], resource["rl.worker.role"]) == ("exp", "orchestrator")


def test_what_the_user_says_to_the_adapter_wins_over_the_environment(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_ROLE", "orchestrator")
    start(TRAINER, given=WorkerNames("mine", role="critic"))
    Recorder("trl").record({"loss": 1.0}, 3)
    resource = arrived(sink, "rl.train.loss")[0].resource
    assert (resource["rl.experiment.name"], resource["rl.worker.role"]) == ("mine", "critic")


def test_the_framework_names_the_run_if_nobody_else_does(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_RL_EXPERIMENT")
    start(WorkerNames("project", "name", "trainer"))
    Recorder("trl").record({"loss": 1.0}, 3)
    resource = arrived(sink, "rl.train.loss")[0].resource
    assert (resource["rl.experiment.name"], resource["rl.trial.name"]) == ("project", "name")


def test_a_worker_that_is_one_already_is_kept(sink: Sink) -> None:
    otel_rl.init(role="critic")
    start(TRAINER)
    Recorder("trl").record({"loss": 1.0}, 3)
    assert arrived(sink, "rl.train.loss")[0].resource["rl.worker.role"] == "critic"


@pytest.fixture
def known() -> ModuleType:
    """The module as pickle finds it: tests of adapters import it anew."""
    return importlib.import_module("otel_rl.integrations.adapter")


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"]
)
def test_a_copy_of_a_recorder_that_has_recorded_records(
    sink: Sink, known: ModuleType, copied: Callable[[Recorder], Recorder]
) -> None:
    known.start(TRAINER)
    recorder = known.Recorder("trl")
    recorder.record({"loss": 0.5, "mine": 1.0}, 1)
    copied(recorder).record({"mine": 2.0}, 2)
    assert [(m.value, m.step) for m in arrived(sink, "mine")] == [(1.0, 1), (2.0, 2)]


def test_a_copy_of_an_automatic_recorder_is_silent_beside_one_of_the_program(
    known: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "_switched_on", set())
    with known.automatically():
        copied = pickle.loads(pickle.dumps(known.Recorder("trl")))
    assert not copied.is_silent
    known.Recorder("trl")
    assert copied.is_silent
