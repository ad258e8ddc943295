"""Each adapter, called as its framework calls it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

import otel_rl
from tests.support.otlp_sink import Measurement, Sink, sums
from tests.support.waiting import collect_garbage

Adapter = Callable[[str], ModuleType]


def arrived(sink: Sink) -> dict[str, list[Measurement]]:
    assert otel_rl.flush(timeout_s=60)
    found: dict[str, list[Measurement]] = {}
    for measurement in sink.measurements():
        found.setdefault(measurement.name, []).append(measurement)
    return found


def configs(sink: Sink) -> list[object]:
    """What the run was told of its config, one event after another."""
    assert otel_rl.flush(timeout_s=60)
    key = "rl.experiment.config"
    starts = sink.events("rl.experiment.start")
    return [event.attributes[key] for event in starts if key in event.attributes]


# TRL and transformers


class Arguments(SimpleNamespace):
    """As far as it is needed, transformers' ``TrainingArguments``."""

    def to_dict(self) -> dict[str, object]:
        return dict(vars(self))


def call(callback: Any, event: str, state: object, **named: object) -> None:
    """As transformers' CallbackHandler does."""
    getattr(callback, event)(Arguments(run_name="r"), state, SimpleNamespace(), **named)


def test_trl_logs_at_the_global_step(sink: Sink, adapter: Adapter) -> None:
    callback = adapter("trl").OtelCallback()
    state = SimpleNamespace(global_step=12, is_world_process_zero=True)
    call(callback, "on_train_begin", state, model=None)
    call(callback, "on_log", state, logs={"loss": 0.5, "reward": 1.5, "epoch": 0.1}, model=None)
    call(callback, "on_train_end", state)
    found = arrived(sink)
    assert [(m.value, m.step) for m in found["rl.train.loss"]] == [(0.5, 12)]
    assert [(m.value, m.step) for m in found["rl.reward.mean"]] == [(1.5, 12)]
    assert [(m.value, m.step) for m in found["epoch"]] == [(0.1, 12)]
    assert found["epoch"][0].resource["rl.worker.role"] == "trainer"
    assert configs(sink) == [{"run_name": "r"}]


def test_what_trl_logs_late_or_again_at_a_step_belongs_to_its_time(
    sink: Sink, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    # evaluate() takes minutes, and the row of the step is written by then.
    callback = adapter("trl").OtelCallback()
    clock = iter([0.0, 0.5, 10.0, 20.0, 30.0, 90.0, 90.0])
    monkeypatch.setattr(adapter("trl"), "time", SimpleNamespace(monotonic=lambda: next(clock)))
    call(callback, "on_train_begin", SimpleNamespace(global_step=0, is_world_process_zero=True))
    for step, logs in (
        (1, {"loss": 0.5, "epoch": 0.5}),
        (1, {"eval_loss": 0.7, "epoch": 0.5}),
        (1, {"eval_loss": 0.8, "epoch": 0.6}),  # again
        (2, {"loss": 0.4}),
        (3, {"eval_loss": 0.6}),  # nothing else is logged at this step
        (3, {"train_runtime": 9.0}),  # late
    ):
        state = SimpleNamespace(global_step=step, is_world_process_zero=True)
        call(callback, "on_log", state, logs=logs)
    call(callback, "on_train_begin", state)  # a second training
    call(callback, "on_log", state, logs={"eval_loss": 0.5})
    found = arrived(sink)
    assert [(m.step, m.value) for m in found["rl.train.loss"]] == [(1, 0.5), (2, 0.4)]
    assert [(m.step, m.value) for m in found["eval_loss"]] == [
        (1, 0.7), (None, 0.8), (3, 0.6), (3, 0.5)
    ]  # fmt: skip
    assert [(m.step, m.value) for m in found["epoch"]] == [(1, 0.5), (None, 0.6)]
    assert [m.step for m in found["train_runtime"]] == [None]


def test_an_array_that_is_logged_once_and_then_a_number_raises_nothing(
    sink: Sink, adapter: Adapter
) -> None:
    callback = adapter("trl").OtelCallback()
    state = SimpleNamespace(global_step=2, is_world_process_zero=True)
    call(callback, "on_train_begin", state)
    call(callback, "on_log", state, logs={"own": np.array([1.0, 2.0])})
    call(callback, "on_log", state, logs={"own": 1.0, "loss": 0.5})
    assert [m.value for m in arrived(sink)["rl.train.loss"]] == [0.5]


def test_of_late_evaluations_of_trl_no_two_share_a_window(
    sink: Sink, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of one window, their mean would be in the run.
    callback = adapter("trl").OtelCallback()
    times_s = {1: (0.0, 1.0), 2: (1.5, 3.0), 3: (3.5, 6.5)}
    clock = iter([time_s for of_step in times_s.values() for time_s in of_step])
    monkeypatch.setattr(adapter("trl"), "time", SimpleNamespace(monotonic=lambda: next(clock)))
    state = SimpleNamespace(global_step=0, is_world_process_zero=True)
    call(callback, "on_train_begin", state)
    for step in times_s:
        state.global_step = step
        for logs in ({"loss": 0.5 * step}, {"eval_loss": 0.1 * step}):
            call(callback, "on_log", state, logs=logs)
    found = arrived(sink)
    assert [m.step for m in found["eval_loss"]] == [None, 2, None]


def test_what_a_printer_of_transformers_removes_from_a_log_is_recorded(
    sink: Sink, adapter: Adapter
) -> None:
    callback = adapter("trl").OtelCallback()
    logs = {"train_loss": 0.5, "total_flos": 7.0}
    state = SimpleNamespace(
        global_step=3, is_world_process_zero=True, log_history=[{**logs, "step": 3}]
    )
    call(callback, "on_train_begin", state)
    del logs["total_flos"]
    call(callback, "on_log", state, logs=logs)
    call(callback, "on_log", state, logs={"own": 1.0})  # which is in no history
    found = arrived(sink)
    assert [(m.step, m.value) for m in found["total_flos"]] == [(3, 7.0)]
    assert [(m.step, m.value) for m in found["own"]] == [(3, 1.0)]
    assert "step" not in found


def test_what_trl_logged_before_a_checkpoint_is_delivered_with_it(
    sink: Sink, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Killed after it, the training resumes behind these steps and never logs them again.
    monkeypatch.setattr(adapter("adapter"), "_DELIVERY_S", 60.0)
    callback = adapter("trl").OtelCallback()
    state = SimpleNamespace(global_step=10, is_world_process_zero=True)
    call(callback, "on_train_begin", state)
    call(callback, "on_log", state, logs={"loss": 0.5})
    call(callback, "on_save", state)
    assert [m.step for m in sink.measurements("rl.train.loss")] == [10]


def test_trl_logs_on_the_first_process_only(sink: Sink, adapter: Adapter) -> None:
    callback = adapter("trl").OtelCallback()
    state = SimpleNamespace(global_step=1, is_world_process_zero=False)
    call(callback, "on_train_begin", state)
    call(callback, "on_log", state, logs={"loss": 0.5})
    assert arrived(sink) == {}


class ProfilingContext:
    """As far as it is needed, TRL's of ``trl.extras.profiling``."""

    def __init__(self, name: str) -> None:
        self.name = f"GRPOTrainer.{name}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None: ...


@pytest.fixture
def steps_of_trl(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    """Trains some steps as transformers does; the last one saves or evaluates."""
    timed = type("ProfilingContext", (ProfilingContext,), {})
    profiling = SimpleNamespace(ProfilingContext=timed)
    monkeypatch.setitem(sys.modules, "trl.extras.profiling", profiling)
    callback = adapter("trl").OtelCallback()

    def train(steps: int, then: str = "") -> None:
        state = SimpleNamespace(global_step=0, is_world_process_zero=True)
        call(callback, "on_train_begin", state)
        control = SimpleNamespace(should_evaluate=False, should_save=False)
        for step in range(steps):
            callback.on_step_begin(None, state, control)
            with timed("_prepare_inputs"):
                with timed("transformers.generate"):
                    pass
                with timed("_calculate_rewards"), timed("my_reward"):
                    pass
                with timed("_get_per_token_logps_and_entropies"):
                    pass
            with timed("compute_loss"), timed("_get_per_token_logps_and_entropies"):
                pass
            state.global_step += 1
            is_last = step + 1 == steps
            control.should_evaluate = is_last and "evaluation" in then
            control.should_save = is_last and "checkpoint" in then
            callback.on_step_end(None, state, control)
        if control.should_evaluate:
            with timed("_prepare_inputs"):
                pass
            control.should_evaluate = False
            callback.on_evaluate(None, state, control)
        if control.should_save:
            callback.on_save(None, state, control)
        callback.on_train_end(None, state, control)

    return train


def phases(sink: Sink, step: int | None) -> set[object]:
    durations = arrived(sink)["rl.phase.duration"]
    return {m.attributes["rl.phase"] for m in durations if m.step == step}


def test_a_step_of_trl_has_the_phases_that_trl_times(
    sink: Sink, steps_of_trl: Callable[..., None]
) -> None:
    steps_of_trl(2)
    assert [m.step for m in arrived(sink)["rl.iteration.duration"]] == [1, 2]
    timed = {"batch_create", "generate", "log_probs", "reward", "train", "unaccounted"}
    assert phases(sink, 1) == phases(sink, 2) == timed
    assert phases(sink, None) == set()


def test_the_log_probabilities_of_trls_loss_are_training(
    sink: Sink, steps_of_trl: Callable[..., None]
) -> None:
    steps_of_trl(1)
    assert otel_rl.flush(timeout_s=60)
    names = [
        span.name
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert names.count("log_probs") == 1


@pytest.mark.parametrize("then", [["evaluation"], ["checkpoint"], ["checkpoint", "evaluation"]])
def test_what_follows_a_step_of_trl_lies_between_steps(
    sink: Sink, steps_of_trl: Callable[..., None], then: list[str]
) -> None:
    steps_of_trl(2, " ".join(then))
    assert phases(sink, None) == set(then)


OWN_LOOP = """
from types import SimpleNamespace
from otel_rl.integrations.trl import OtelCallback
callback = OtelCallback(experiment="exp")
state = SimpleNamespace(global_step=4, is_world_process_zero=True)
callback.on_train_begin(None, state, None)
callback.on_step_begin(None, state, None)
raise ValueError("of the user")
"""


@pytest.mark.process
def test_a_loop_of_trls_own_that_ends_the_process_ends_its_step(
    sink: Sink, adapter: Adapter
) -> None:
    adapter("trl")
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", OWN_LOOP],
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "of the user" in done.stderr
    assert [m.step for m in sink.measurements("rl.iteration.duration")] == [5]


def test_transformers_own_handler_calls_the_adapter(sink: Sink, adapter: Adapter) -> None:
    pytest.importorskip("transformers.trainer_callback", reason="transformers is not installed")
    from transformers import (  # type: ignore[import-not-found]  # not installed everywhere
        TrainerCallback,
        TrainerControl,
        TrainerState,
    )
    from transformers.trainer_callback import (  # type: ignore[import-not-found]  # as above
        CallbackHandler,
    )

    callback = adapter("trl").OtelCallback()
    assert isinstance(callback, TrainerCallback)
    handler = CallbackHandler([callback], None, None, None, None)
    args, control = SimpleNamespace(run_name="r"), TrainerControl()
    state = TrainerState(global_step=3, is_world_process_zero=True)
    handler.on_init_end(args, state, control)
    handler.on_train_begin(args, state, control)
    handler.on_step_begin(args, state, control)
    handler.on_step_end(args, state, control)
    handler.on_log(args, state, control, {"loss": 0.25})
    handler.on_train_end(args, state, control)
    assert [(m.value, m.step) for m in arrived(sink)["rl.train.loss"]] == [(0.25, 3)]


# RLlib


class Timer:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None: ...


class Algorithm:
    """As far as it is needed, RLlib's."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(to_dict=lambda: {"lr": 0.1})
        self.metrics = SimpleNamespace(log_time=lambda _key: Timer())
        self.training_iteration = 0
        self.is_stopped = False

    def train(self, **metrics: object) -> None:
        with self.metrics.log_time(("timers", "learner_update_timer")):
            self.step()
        self.training_iteration += 1
        result = {"training_iteration": self.training_iteration, "date": "today", **metrics}
        self.log_result({"learners": {"default_policy": metrics}, "env_runners": metrics, **result})
        self.cleanup()

    def step(self) -> None:
        with self.metrics.log_time(("timers", "env_runner_sampling_timer")):
            pass

    def log_result(self, result: object) -> None: ...

    def cleanup(self) -> None:
        self.is_stopped = True


def test_an_iteration_of_rllib_is_a_step_with_the_phases_that_it_times(
    sink: Sink, adapter: Adapter
) -> None:
    algorithm = Algorithm()
    adapter("rllib").follow(algorithm=algorithm, metrics_logger=None)
    adapter("rllib").follow(algorithm=algorithm)  # once is enough
    algorithm.train(total_loss=0.5)
    found = arrived(sink)
    assert [(m.value, m.step) for m in found["rl.train.loss"]] == [(0.5, 1)]
    assert [m.step for m in found["rl.iteration.duration"]] == [1]
    assert phases(sink, 1) == {"generate", "unaccounted"}
    assert phases(sink, None) == {"train"}  # beside the step
    assert algorithm.is_stopped
    assert configs(sink) == [{"lr": 0.1}]


def test_nan_of_rllib_is_recorded_where_a_learner_has_computed_it(
    sink: Sink, adapter: Adapter
) -> None:
    algorithm = Algorithm()
    adapter("rllib").follow(algorithm=algorithm)
    algorithm.train(mean=float("nan"), num_trainable_parameters=float("nan"))
    found = arrived(sink)
    assert [name for name in found if "mean" in name or "num_" in name] == [
        "learners/default_policy/mean"
    ]


# verl


def tracking() -> type:
    """verl's ``Tracking`` by its documented signature (verl b178a3cd5)."""

    class Tracking:
        supported_backend = ["wandb", "console"]  # noqa: RUF012  # as verl has it

        def __init__(
            self,
            project_name: str,
            experiment_name: str,
            default_backend: str | list[str] = "console",
            config: object = None,
        ) -> None:
            backends = [default_backend] if isinstance(default_backend, str) else default_backend
            for backend in backends:
                assert backend in self.supported_backend
            self.logger: dict[str, Any] = {}

        def log(self, data: object, step: int, backend: object = None) -> None:
            for name, logger in self.logger.items():
                if backend is None or name in str(backend):
                    logger.log(data=data, step=step)

        def finish(self, exit_code: int = 0) -> None:
            self.finished = exit_code  # of the backends that it knows

        def __del__(self) -> None:
            self.finish()

    return Tracking


def test_verl_takes_the_backend_by_name(sink: Sink, adapter: Adapter) -> None:
    verl, kind = adapter("verl"), tracking()
    verl.register(kind)
    verl.register(kind)
    assert kind.supported_backend == ["wandb", "console", "otel_rl"]  # type: ignore[attr-defined]  # see above
    track = kind("project", "experiment", default_backend=["console", "otel_rl"])
    track.log(data={"actor/pg_loss": 0.5, "actor/lr": 1e-6, "val/acc": 0.1}, step=4)
    track.logger["otel_rl"].finish()
    found = arrived(sink)
    assert [(m.value, m.step) for m in found["rl.train.loss"]] == [(0.5, 4)]
    assert found["rl.train.loss"][0].attributes == {
        "rl.loss.type": "policy",
        "otel_rl.framework.metric": "actor/pg_loss",
    }
    assert [(m.value, m.step) for m in found["val/acc"]] == [(0.1, 4)]


def test_verl_on_one_of_several_ranks_expects_no_others(
    sink: Sink, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "8")
    kind = tracking()
    adapter("verl").register(kind)
    kind("project", "experiment", default_backend="otel_rl").log({"loss": 0.5}, step=1)
    (loss,) = arrived(sink)["loss"]
    assert loss.resource["rl.worker.index"] == 0
    assert "rl.worker.count" not in loss.resource


def test_verl_delivers_when_its_tracking_finishes(sink: Sink, adapter: Adapter) -> None:
    kind = tracking()
    adapter("verl").register(kind)
    track = kind("project", "experiment", ["otel_rl"])
    track.log({"val-core/acc": 0.5}, step=9)
    track.finish(exit_code=3)
    assert [(m.value, m.step) for m in sink.measurements("val-core/acc")] == [(0.5, 9)]
    assert track.finished == 3
    (end,) = sink.events("rl.experiment.end")
    assert end.attributes["rl.experiment.status"] == "crashed"


def test_verl_delivers_when_its_tracking_is_gone(sink: Sink, adapter: Adapter) -> None:
    # As in verl's trainer, whose last line leaves it to the collector of garbage.
    kind = tracking()
    adapter("verl").register(kind)
    kind("project", "experiment", ["otel_rl"]).log({"val-core/acc": 0.5}, step=9)
    collect_garbage()
    assert [(m.value, m.step) for m in sink.measurements("val-core/acc")] == [(0.5, 9)]


def test_verl_finishes_without_us_as_it_did(sink: Sink, adapter: Adapter) -> None:
    kind = tracking()
    adapter("verl").register(kind)
    track = kind("project", "experiment", "console")
    track.finish()
    assert track.finished == 0
    assert sink.measurements() == []


def test_a_verl_without_finish_is_taken_as_it_is(sink: Sink, adapter: Adapter) -> None:
    kind = tracking()
    del kind.finish, kind.__del__  # type: ignore[attr-defined]  # as in verl 0.5
    adapter("verl").register(kind)
    track = kind("project", "experiment", ["otel_rl"])
    track.log({"val-core/acc": 0.5}, step=9)
    assert arrived(sink)["val-core/acc"][0].step == 9


def test_verl_gives_the_run_its_config_and_the_generations_of_a_validation(
    sink: Sink, adapter: Adapter
) -> None:
    class ValidationGenerationsLogger:
        """verl's by its documented signature (verl b178a3cd5)."""

        def log(self, loggers: list[str], samples: list[list[object]], step: int) -> None:
            self.logged = (loggers, len(samples), step)

    kind = tracking()
    adapter("verl").register(kind, ValidationGenerationsLogger)
    kind("project", "experiment", ["otel_rl"], {"trainer": {"lr": 1e-6}})
    generations = ValidationGenerationsLogger()
    generations.log(["console", "otel_rl"], [["1+1?", "2", 1.0]], 4)
    generations.log(["console"], [["2+2?", "5", 0.0]], 5)
    assert generations.logged == (["console"], 1, 5)
    assert configs(sink) == [{"trainer": {"lr": 1e-6}}]
    (sample,) = sink.events("rl.rollout.sample")
    assert sample.body == {"input": "1+1?", "output": "2", "score": 1.0}
    assert sample.attributes["rl.sample.table"] == "validation"
    assert sample.attributes["rl.loop.iteration"] == 4


def test_verl_without_the_name_records_nothing(sink: Sink, adapter: Adapter) -> None:
    kind = tracking()
    adapter("verl").register(kind)
    assert kind("p", "e", "console").logger == {}
    with pytest.raises(AssertionError):
        kind("p", "e", "unknown")


# AReaL


@dataclass
class Settings:
    """An experiment's, as a dataclass like AReaL's own."""

    lr: float


class StatsLogger:
    """AReaL's by its documented signature (AReaL 4aef98d8d)."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(experiment_name="e", trial_name="t")
        self.exp_config = Settings(lr=1e-6)
        self._last_commit_step = -1
        self.committed: list[int] = []
        self.closed = False

    def state_dict(self) -> dict[str, int]:
        return {"last_commit_step": self._last_commit_step}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self._last_commit_step = state_dict["last_commit_step"]

    def commit(self, epoch: int, step: int, global_step: int, data: Any) -> None:
        items = [data] if isinstance(data, dict) else data
        first = max(global_step, self._last_commit_step + 1)
        self.committed += range(first, first + len(items))
        self._last_commit_step = first + len(items) - 1

    def close(self) -> None:
        self.closed = True


def test_areal_is_recorded_at_the_steps_at_which_it_logs(sink: Sink, adapter: Adapter) -> None:
    areal = adapter("areal")
    original = StatsLogger()
    trainer = SimpleNamespace(stats_logger=original)
    areal.attach(trainer)
    areal.attach(trainer)
    logger = trainer.stats_logger
    logger.load_state_dict({"last_commit_step": 9})
    logger.commit(0, 0, 10, {"ppo_actor/update/grad_norm": 1.0, "n_tokens__count": 5.0})
    logger.commit(0, 1, 11, [{"x": 1.0}, {"x": 2.0}])
    logger.commit(0, 2, 12, {"x": 3.0})
    logger.close()
    found = arrived(sink)
    assert [(m.value, m.step) for m in found["rl.train.grad.norm"]] == [(1.0, 10)]
    assert [(m.value, m.step) for m in found["x"]] == [(1.0, 11), (2.0, 12), (3.0, 13)]
    assert set(found) == {"rl.train.grad.norm", "x"}
    assert original.committed == [10, 11, 12, 13]
    assert (logger.state_dict(), original.closed) == ({"last_commit_step": 13}, True)
    assert configs(sink) == [{"lr": 1e-6}]


class OddStatsLogger(StatsLogger):
    """One of another version."""

    def __init__(self, state: object) -> None:
        super().__init__()
        self._state = state

    def state_dict(self) -> Any:
        if isinstance(self._state, Exception):
            raise self._state
        return self._state


@pytest.mark.parametrize("state", [{}, {"last_commit_step": None}, None, ValueError("mine")])
def test_areal_of_another_version_trains_on(sink: Sink, adapter: Adapter, state: object) -> None:
    original = OddStatsLogger(state)
    adapter("areal").attach(SimpleNamespace(stats_logger=original))
    original.commit(0, 0, 10, {"x": 1.0})
    original.commit(0, 0, 11, ["nonsense"])
    assert original.committed == [10, 11]
    assert [(m.value, m.step) for m in arrived(sink)["x"]] == [(1.0, 10)]


def test_areal_delivers_when_its_logger_is_closed(sink: Sink, adapter: Adapter) -> None:
    original = StatsLogger()
    adapter("areal").attach(SimpleNamespace(stats_logger=original))
    original.commit(0, 0, 10, {"x": 1.0})
    original.close()
    assert [m.step for m in sink.measurements("x")] == [10]
    assert original.closed


def test_areal_with_a_torch_without_distributed_trains_on(
    sink: Sink, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", ModuleType("torch.distributed"))
    original = StatsLogger()
    adapter("areal").attach(SimpleNamespace(stats_logger=original))
    original.commit(0, 0, 10, {"x": 1.0})
    assert original.committed == [10]
    assert [(m.value, m.step) for m in arrived(sink)["x"]] == [(1.0, 10)]


# torchforge


def forge_backend(adapter: Adapter, process_name: str, mode: str = "PER_RANK_NO_REDUCE") -> Any:
    adapter("forge").register()
    from forge.observability import (  # type: ignore[import-not-found]  # the signature beside this file
        metric_actors,
        metrics,
    )

    kind = metric_actors.get_logger_backend_class("otel_rl")
    assert kind is metrics.get_logger_backend_class("otel_rl")
    assert metrics.get_logger_backend_class("wandb") is metrics.WandbBackend
    backend = kind(logging_mode=metrics.LoggingMode[mode], project="p")
    asyncio.run(backend.init(metrics.BackendRole.LOCAL, process_name=process_name))
    return backend, metrics


def test_forge_streams_every_value_for_the_bridge_to_reduce(sink: Sink, adapter: Adapter) -> None:
    backend, metrics = forge_backend(adapter, "GeneratorActor_1abc2def_r0")
    reduce = metrics.Reduce
    for value in (3, 4):
        backend.log_stream(
            metrics.Metric("generator/generate/sum_tokens_generated", value, reduce.SUM), 5
        )
    backend.log_stream(metrics.Metric("my/peak", 7.0, reduce.MAX), 5)
    backend.log_stream(metrics.Metric("my/spread", 1.0, reduce.STD), 5)
    backend.log_stream(metrics.Metric("my/samples", {"prompt": "why?"}, reduce.SAMPLE), 5)
    found = arrived(sink)
    assert [(m.value, m.step, m.scope["rl.reduce"]) for m in found["my/peak"]] == [(7.0, 5, "max")]
    assert found["my/spread"][0].scope["rl.reduce"] == "std"
    assert list(sums(sink.metrics, "rl.generator.tokens").values()) == [7]
    assert found["my/peak"][0].resource["rl.worker.role"] == "generator"


def test_forge_of_another_version_trains_on(sink: Sink, adapter: Adapter) -> None:
    backend, metrics = forge_backend(adapter, "GeneratorActor_1abc2def_r0")
    backend.log_stream(SimpleNamespace(key="without/reduction", value=1.0), 5)
    backend.log_stream(SimpleNamespace(name="without/key"), 5)
    backend.log_stream(metrics.Metric("my/peak", 7.0, metrics.Reduce.MAX), 5)
    found = arrived(sink)
    assert [m.value for m in found["my/peak"]] == [7.0]
    assert [m.value for m in found["without/reduction"]] == [1.0]


def test_forge_batches_are_reduced_already(sink: Sink, adapter: Adapter) -> None:
    backend, metrics = forge_backend(adapter, "Controller_r0", "GLOBAL_REDUCE")
    batch = [
        metrics.Metric("rl_trainer/avg_loss", 0.5, metrics.Reduce.MEAN),
        metrics.Metric("my/spread", 1.0, metrics.Reduce.STD),
    ]
    asyncio.run(backend.log_batch(batch, 6))
    asyncio.run(backend.finish())
    found = arrived(sink)
    assert [(m.value, m.step) for m in found["rl.train.loss"]] == [(0.5, 6)]
    assert found["my/spread"][0].scope["rl.reduce"] == "mean"
    assert found["my/spread"][0].resource["rl.worker.role"] == "orchestrator"


@pytest.mark.parametrize(
    ("process", "role"),
    [
        ("RLTrainer_1abc_r3", "trainer"),
        ("ReplayBuffer_1abc_r0", "replay_buffer"),
        ("ReferenceModel_r0", "reference"),
        ("RewardActor_r0", "reward"),
        ("client_r0", "orchestrator"),
        ("DatasetActor_r0", "datasetactor"),
        (None, "orchestrator"),
    ],
)
def test_forge_roles_are_in_the_names_of_processes(
    adapter: Adapter, process: str | None, role: str
) -> None:
    assert adapter("forge").role_of(process) == role


# vLLM


def request(**changed: object) -> SimpleNamespace:
    timing = SimpleNamespace(queued_time=0.25, mean_time_per_output_token=0.01)
    defaults = {
        "finish_reason": "stop",
        "e2e_latency": 2.0,
        "num_prompt_tokens": 10,
        "num_generation_tokens": 100,
        "max_tokens_param": 256,
        "timing": timing,
    }
    return SimpleNamespace(**{**defaults, **changed})


def test_vllm_statistics_are_those_of_a_generator(sink: Sink, adapter: Adapter) -> None:
    logger = adapter("vllm").OtelStatLogger(SimpleNamespace(), 0)
    logger.log_engine_initialized()
    for running in (3, 2):
        logger.record(
            SimpleNamespace(
                num_running_reqs=running,
                num_waiting_reqs=1,
                kv_cache_usage=0.5,
                prefix_cache_stats=SimpleNamespace(queries=8, hits=6),
            ),
            SimpleNamespace(
                num_generation_tokens=5,
                num_preempted_reqs=0,
                time_to_first_tokens_iter=[0.1],
                finished_requests=[request(), request(finish_reason="abort", timing=None)],
            ),
            None,
            engine_idx=0,
        )
    logger.log()
    logger.record_sleep_state(1, 0)
    found = arrived(sink)
    assert [(m.value, m.step) for m in found["rl.generator.kv_cache.utilization"]] == [
        (0.5, None),
        (0.5, None),
    ]
    assert found["rl.generator.kv_cache.utilization"][0].resource["rl.worker.role"] == "generator"
    total = {
        name: list(sums(sink.metrics, name).values())
        for name in (
            "rl.generator.tokens",
            "rl.generator.requests.running",
            "rl.generator.queue.depth",
            "rl.generator.kv_cache.queries",
            "rl.generator.kv_cache.hits",
        )
    }
    assert total == {
        "rl.generator.tokens": [10],
        "rl.generator.requests.running": [2],
        "rl.generator.queue.depth": [1],
        "rl.generator.kv_cache.queries": [16],
        "rl.generator.kv_cache.hits": [12],
    }
    outcomes = {key[1]: n for key, n in sums(sink.metrics, "rl.generator.requests").items()}
    assert outcomes == {"success": 2, "cancelled": 2}
    names = histograms(sink)
    assert names["gen_ai.server.request.duration"] == 4
    assert names["rl.generator.queue.duration"] == 2
    assert names["gen_ai.server.time_to_first_token"] == 2


def histograms(sink: Sink) -> dict[str, int]:
    """Number of measurements by name."""
    return {
        metric.name: sum(p.count for p in metric.exponential_histogram.data_points)
        for sent in sink.metrics
        for resource in sent.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.HasField("exponential_histogram")
    }


def test_requests_that_the_scheduler_has_skipped_wait_too(sink: Sink, adapter: Adapter) -> None:
    # Since vLLM 0.33 num_waiting_reqs leaves out those that wait for a grammar or for a KV cache.
    logger = adapter("vllm").OtelStatLogger(SimpleNamespace(), 0)
    logger.record(SimpleNamespace(num_waiting_reqs=2, num_skipped_waiting_reqs=3), None)
    assert otel_rl.flush(timeout_s=60)
    assert list(sums(sink.metrics, "rl.generator.queue.depth").values()) == [5]


def test_engines_of_one_process_add_up(sink: Sink, adapter: Adapter) -> None:
    kind = adapter("vllm").OtelStatLogger
    for index in range(2):
        kind(SimpleNamespace(), index).record(SimpleNamespace(num_running_reqs=3), None)
    assert otel_rl.flush(timeout_s=60)
    assert list(sums(sink.metrics, "rl.generator.requests.running").values()) == [6]


@pytest.mark.parametrize("stats", [object(), SimpleNamespace(num_running_reqs="many"), 7])
def test_statistics_of_another_vllm_raise_nothing(
    sink: Sink, adapter: Adapter, stats: object
) -> None:
    adapter("vllm").OtelStatLogger(SimpleNamespace()).record(stats, stats)
    assert arrived(sink) == {}


def test_vllm_in_a_wrong_environment_serves_on(
    sink: Sink,
    adapter: Adapter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OTEL_RL_INDEX", "first")
    adapter("vllm").OtelStatLogger(SimpleNamespace()).record(
        SimpleNamespace(num_running_reqs=3), None
    )
    assert any("OTEL_RL_INDEX" in message for message in caplog.messages)
