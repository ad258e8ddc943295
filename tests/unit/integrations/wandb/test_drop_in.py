"""The drop-in as a program sees it, against a real receiving end."""

import logging
import math
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

import otel_rl
import otel_rl.integrations.wandb as wandb
from otel_rl.errors import ConfigError
from otel_rl.worker.drops import DropReason
from otel_rl.worker.session import GUARD
from tests.support.forks import forked
from tests.support.otlp_sink import Measurement, Sink, sums


def arrived(sink: Sink, name: str | None = None) -> list[Measurement]:
    assert wandb.run is None or otel_rl.flush(timeout_s=60)  # a finished one has been delivered
    return sink.measurements(name)


def steps(sink: Sink, name: str) -> list[tuple[int | None, float]]:
    return [(m.step, m.value) for m in arrived(sink, name)]


@pytest.fixture
def said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """What is said, as if nothing had been said before."""
    monkeypatch.setattr(GUARD, "_next_log_s", {})
    caplog.set_level(logging.WARNING, "otel_rl")
    return caplog


def test_a_run_without_steps_counts_its_rows(sink: Sink) -> None:
    run = wandb.init()
    for value in (3.0, 2.0, 1.0):
        run.log({"loss": value})
    assert steps(sink, "loss") == [(0, 3.0), (1, 2.0), (2, 1.0)]


def test_explicit_steps_are_the_steps(sink: Sink) -> None:
    with wandb.init() as run:
        run.log({"loss": 3.0}, step=10)
        run.log({"loss": 2.0}, step=np.int64(20))
        run.log({"loss": 1.0}, step=30.0)  # type: ignore[arg-type]  # seen in the wild
    assert steps(sink, "loss") == [(10, 3.0), (20, 2.0), (30, 1.0)]


def test_calls_without_a_step_are_at_the_step_of_their_block(sink: Sink) -> None:
    with wandb.init() as run:
        for number in (10, 20, 30):
            with otel_rl.step(number):
                run.log({"loss": 0.5})
                run.log({"loss": float(number)})
        run.log({"loss": 1.0})
    assert steps(sink, "loss") == [(10, 10.0), (20, 20.0), (30, 30.0), (31, 1.0)]


def test_the_last_value_of_a_step_wins(sink: Sink) -> None:
    with wandb.init() as run:
        run.log({"loss": 3.0}, step=1)
        run.log({"loss": 2.0}, step=1)
    assert steps(sink, "loss") == [(1, 2.0)]


def test_a_row_is_measured_when_it_was_logged_not_when_it_was_complete(sink: Sink) -> None:
    run = wandb.init()
    run.log({"loss": 3.0}, step=1)
    run.log({"other": 1.0}, step=1, commit=False)
    reached = threading.Event()
    reached.wait(0.05)
    run.log({"loss": 2.0}, step=2)
    run.finish()
    first, second = arrived(sink, "loss")
    assert second.time_ns - first.time_ns >= 50_000_000


def test_finish_waits_as_long_as_the_end_of_a_process(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_s: list[float | None] = []
    with monkeypatch.context() as patched:
        patched.setattr(otel_rl, "finish", lambda *, timeout_s=None: waited_s.append(timeout_s))
        wandb.init()
        wandb.finish()
    assert waited_s == [None]


def test_the_program_s_names_count_above_those_of_the_environment(sink: Sink) -> None:
    wandb.init(project="p", name="n", job_type="generator")
    wandb.log({"x": 1})
    resource = arrived(sink)[0].resource
    assert resource["rl.worker.role"] == "generator"
    assert (resource["rl.experiment.name"], resource["rl.trial.name"]) == ("p", "n")


def test_what_is_typed_counts_above_the_program_s_names(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_TYPED", "experiment,name")
    monkeypatch.setenv("OTEL_RL_NAME", "typed")
    wandb.init(project="p", name="n")
    wandb.log({"x": 1})
    resource = arrived(sink)[0].resource
    assert (resource["rl.experiment.name"], resource["rl.trial.name"]) == ("exp", "n")
    assert about_run(sink) == {"project": "p", "display_name": "typed"}


def about_run(sink: Sink) -> dict[str, object]:
    """What the start of the run says of it."""
    before = "rl.experiment."
    return {
        key.removeprefix(before): value
        for event in sink.events("rl.experiment.start")
        for key, value in event.attributes.items()
        if key.startswith(before)
    }


def test_a_program_without_a_project_works_for_what_else_names_the_experiment(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_RL_EXPERIMENT")
    experiments = []
    for invented in ("train", ""):
        monkeypatch.setenv("OTEL_RL_DEFAULT_EXPERIMENT", invented)
        wandb.init()
        wandb.log({"x": 1})
        experiments.append(arrived(sink)[-1].resource["rl.experiment.name"])
        wandb.finish()
    assert experiments == ["train", "uncategorized"]


def test_what_the_program_says_of_its_run_reaches_the_bridge(
    sink: Sink, said: pytest.LogCaptureFixture
) -> None:
    wandb.init(project="p", entity="me", group="g", name="n", mode="offline", job_type="eval")
    wandb.finish()
    assert about_run(sink) == {
        "project": "p",
        "entity": "me",
        "group": "g",
        "display_name": "n",
        "mode": "offline",
        "job_type": "eval",
    }
    assert said.messages == []


def test_runs_one_after_another_are_runs_of_their_own(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_LAUNCH", "launch")
    for project, name in (
        *((None, None), (None, None), (None, "seed-0")),
        *((None, None), ("other", None), (None, "seed-0")),
    ):
        run = wandb.init(project=project, name=name)
        wandb.log({"x": 1})
        run.finish()
    names = [(m.resource["rl.experiment.name"], m.resource["rl.trial.name"]) for m in arrived(sink)]
    assert names == [
        ("exp", "launch"),
        ("exp", "launch-2"),
        ("exp", "seed-0"),
        ("exp", "launch-3"),
        ("other", "launch"),
        ("exp", "seed-0"),
    ]


def test_a_run_that_is_finished_has_lost_its_worker_and_the_next_has_one(sink: Sink) -> None:
    with wandb.init(name="a"):
        pass
    with pytest.raises(ZeroDivisionError), wandb.init(name="b"):
        _ = 1 / 0
    ends = [
        (event.resource["rl.trial.name"], event.attributes["rl.worker.status"])
        for event in sink.events("rl.worker.end")
    ]
    assert ends == [("a", "complete"), ("b", "failed")]


def test_a_worker_that_the_program_has_started_itself_is_kept(sink: Sink) -> None:
    otel_rl.init(role="reward")
    wandb.init(job_type="trainer")
    wandb.log({"x": 1})
    assert arrived(sink)[0].resource["rl.worker.role"] == "reward"


def test_a_second_init_returns_the_run(sink: Sink) -> None:
    assert wandb.init() is wandb.init(name="other") is wandb.run


def test_reinit_finishes_the_run_and_may_be_another_worker(sink: Sink) -> None:
    wandb.init(job_type="a")
    wandb.log({"x": 1}, step=5)
    wandb.init(job_type="b", reinit=True)
    wandb.log({"x": 2})
    found = [(m.resource["rl.worker.role"], m.step, m.value) for m in arrived(sink, "x")]
    assert found == [("a", 5, 1), ("b", 0, 2)]


def test_two_runs_at_once_are_refused(sink: Sink) -> None:
    wandb.init()
    with pytest.raises(ConfigError, match="one run at a time"):
        wandb.init(reinit="create_new")


def test_a_disabled_run_records_nothing_and_needs_no_name(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_RL_EXPERIMENT")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run = wandb.init()
    run.log({"loss": 1.0})
    run.config.lr = 1
    run.summary["best"] = 1
    wandb.finish()
    assert run.disabled
    assert sink.requests == 0


def test_a_lower_step_is_counted_and_said(sink: Sink, said: pytest.LogCaptureFixture) -> None:
    run = wandb.init()
    run.log({"loss": 1.0}, step=5)
    run.log({"loss": 2.0, "kl": 1.0}, step=4)
    run.finish()
    assert steps(sink, "loss") == [(5, 1.0)]
    assert drops(sink)["bad_step"] == 2
    assert any("step 4 is below the current step 5" in line for line in said.messages)


def drops(sink: Sink) -> dict[object, float]:
    assert wandb.run is None or otel_rl.flush(timeout_s=60)
    counted = sums(sink.metrics, "otel_rl.worker.measurements.dropped")
    return {reason: count for (_, reason), count in counted.items()}


def test_media_are_skipped_said_once_and_counted(
    sink: Sink, said: pytest.LogCaptureFixture
) -> None:
    run = wandb.init()
    image = wandb.Image("no file")
    for _ in range(3):
        run.log({"shot": image, "loss": 1.0, "note": "hello", "chart": wandb.plot.line(image)})
    assert steps(sink, "loss") == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert [line.count("(got Image)") for line in said.messages if "shot" in line] == [1]
    assert drops(sink)["not_a_number"] == 9


@pytest.mark.parametrize(
    "call",
    [
        lambda: wandb.log("loss"),  # type: ignore[arg-type]  # wrong on purpose
        lambda: wandb.log(None),  # type: ignore[arg-type]  # wrong on purpose
        lambda: wandb.log({1: 2.0}),  # type: ignore[dict-item]  # wrong on purpose
        lambda: wandb.log({"x": 1}, step="7"),  # type: ignore[arg-type]  # wrong on purpose
        lambda: wandb.log({"x": 1}, step=math.nan),  # type: ignore[arg-type]  # wrong on purpose
        lambda: wandb.log({"x": object()}),
        lambda: wandb.log({"x": wandb.Image("no file")}),
        lambda: wandb.log({"x": wandb.Histogram("text")}),
        lambda: wandb.watch(object(), log="all"),
        lambda: wandb.save("*.pt"),
        lambda: wandb.alert("title", "text"),
        lambda: wandb.log_artifact(wandb.Artifact("model", type="model")),
        lambda: wandb.init().log_code("."),
        lambda: wandb.define_metric("a", step_metric="b", summary="max"),
        lambda: wandb.config.update(3),
    ],
)
def test_no_logging_call_raises(sink: Sink, call: "object") -> None:
    assert callable(call)
    wandb.init()
    call()


def test_logging_without_a_run_is_dropped_and_said(
    sink: Sink, said: pytest.LogCaptureFixture
) -> None:
    wandb.log({"x": 1})
    wandb.define_metric("x")
    wandb.finish()
    assert any("before wandb.init()" in line for line in said.messages)


def test_logging_after_finish_is_dropped(sink: Sink) -> None:
    run = wandb.init()
    run.finish()
    run.log({"x": 1})
    assert arrived(sink) == []
    assert wandb.run is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: wandb.save("*.pt"),
        lambda: wandb.log_artifact(wandb.Artifact("model", type="model")),
        lambda: wandb.log({"shot": wandb.Image("no file")}),
        lambda: wandb.log({"chart": wandb.plot.line(1, 2)}),
    ],
)
def test_what_is_not_carried_is_said_once_with_the_way_out(
    sink: Sink, said: pytest.LogCaptureFixture, call: Callable[[], object]
) -> None:
    wandb.init()
    for _ in range(3):
        call()
    (line,) = said.messages
    assert line.endswith("under `otel-rl run --attach`.")


def test_wandbs_internals_that_a_library_calls_are_not_said(
    sink: Sink, said: pytest.LogCaptureFixture
) -> None:
    wandb.init()._label(code="trainer")
    wandb.require("service")
    wandb.login(key="x", relogin=True)
    assert said.messages == []


def test_the_axis_of_every_metric_is_the_step(sink: Sink) -> None:
    run = wandb.init()
    run.define_metric("global_step")
    run.define_metric("*", step_metric="global_step")
    run.log({"loss": 1.0, "global_step": 100})
    run.log({"loss": 2.0, "global_step": 200})
    run.log({"kl": 3.0})
    assert steps(sink, "loss") == [(100, 1.0), (200, 2.0)]
    assert steps(sink, "kl") == [(200, 3.0)]


def test_an_axis_between_steps_is_given_up_and_no_value_is_merged(
    sink: Sink, said: pytest.LogCaptureFixture
) -> None:
    run = wandb.init()
    run.define_metric("*", step_metric="epoch")
    for epoch in (5, 5.5, 6.0):
        run.log({"loss": epoch, "epoch": epoch})
    assert steps(sink, "loss") == [(5, 5.0), (6, 5.5), (7, 6.0)]
    assert any("'epoch' has '5.5'" in line for line in said.messages)


def test_the_axis_of_some_metrics_is_a_metric_and_said(
    sink: Sink, said: pytest.LogCaptureFixture
) -> None:
    run = wandb.init()
    run.define_metric("eval/*", step_metric="epoch")
    run.log({"eval/loss": 1.0, "epoch": 7})
    assert steps(sink, "eval/loss") == [(0, 1.0)]
    assert any("'epoch' is written as a metric like any other" in line for line in said.messages)


def test_each_group_of_metrics_has_the_step_of_its_axis(sink: Sink) -> None:
    run = wandb.init()
    run.define_metric("train/*", step_metric="train/step")
    run.define_metric("reward", step_metric="step")
    for step in (0, 10, 20):
        run.log({"train/loss": 1.0, "train/step": step})
        run.log({"reward": 2.0, "step": step})
    assert steps(sink, "train/loss") == [(0, 1.0), (10, 1.0), (20, 1.0)]
    assert steps(sink, "reward") == [(0, 2.0), (10, 2.0), (20, 2.0)]


def test_of_two_axes_in_a_row_the_first_declared_is_its_step(sink: Sink) -> None:
    run = wandb.init()
    run.define_metric("rollout/*", step_metric="rollout/step")
    run.define_metric("train/*", step_metric="train/step")
    run.log({"train/step": 40, "rollout/step": 4, "loss": 1.0})
    assert steps(sink, "loss") == [(4, 1.0)]


def test_a_row_without_an_axis_of_its_own_has_the_step_that_it_was_given(sink: Sink) -> None:
    run = wandb.init()
    run.define_metric("eval/*", step_metric="eval/step")
    run.log({"eval/loss": 1.0, "eval/step": 7})
    run.log({"loss": 2.0}, step=30, commit=True)
    assert steps(sink, "loss") == [(30, 2.0)]


def test_an_axis_of_some_metrics_that_is_between_steps_is_given_up_alone(
    sink: Sink, said: pytest.LogCaptureFixture
) -> None:
    run = wandb.init()
    run.define_metric("eval/*", step_metric="eval/step")
    run.define_metric("train/*", step_metric="train/step")
    run.log({"train/step": 5, "loss": 1.0})
    for step in (5.5, 6.0):
        run.log({"eval/step": step, "score": step})
    run.log({"train/step": 8, "loss": 2.0})
    assert steps(sink, "score") == [(6, 5.5), (7, 6.0)]
    assert steps(sink, "loss") == [(5, 1.0), (8, 2.0)]
    assert any("'eval/step' has '5.5'" in line for line in said.messages)


def test_the_summary_reads_last_values_and_carries_its_own(sink: Sink) -> None:
    run = wandb.init()
    run.log({"loss": np.float32(2.5)})
    run.summary["best"] = 0.5
    run.summary.note = "text stays here"
    assert (run.summary["loss"], run.summary["best"], run.summary.note) == (
        2.5,
        0.5,
        "text stays here",
    )
    (best,) = arrived(sink, "best")
    assert (best.step, best.value, best.scope["rl.reduce"]) == (None, 0.5, "last")


def test_config_is_that_of_init_and_can_be_selected(sink: Sink) -> None:
    wandb.init(config={"lr": 0.1, "secret": "x"}, config_exclude_keys=["secret"])
    wandb.config.seed = 1
    assert dict(wandb.config) == {"lr": 0.1, "seed": 1}


def told(sink: Sink, name: str = "rl.experiment.start") -> list[dict[str, object]]:
    """What the run was told, one event after another."""
    otel_rl.flush(timeout_s=60)
    return [
        {key: value for key, value in event.attributes.items() if key.startswith("rl.")}
        for event in sink.events(name)
    ]


def test_the_run_gets_the_config_and_each_change_of_it(sink: Sink) -> None:
    wandb.init(config={"lr": 0.1, "model": {"name": "q"}})
    wandb.config.update({"lr": 0.2})
    wandb.config.seed = 1
    assert told(sink) == [
        {},
        {"rl.experiment.config": {"lr": 0.1, "model": {"name": "q"}}},
        {"rl.experiment.config": {"lr": 0.2}},
        {"rl.experiment.config": {"seed": 1}},
    ]


def test_the_run_gets_notes_tags_group_and_job_type(sink: Sink) -> None:
    run = wandb.init(notes="why", tags=["a", "b"], group="g", job_type="train")
    run.tags += ("c",)
    first, second = told(sink)
    assert first == {
        "rl.experiment.notes": "why",
        "rl.experiment.tags": ["a", "b"],
        "rl.experiment.group": "g",
        "rl.experiment.job_type": "train",
    }
    assert second == first | {"rl.experiment.tags": ["a", "b", "c"]}


def test_the_run_gets_what_the_variables_of_wandb_say(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_NOTES", "why")
    monkeypatch.setenv("WANDB_TAGS", "a,b")
    monkeypatch.setenv("WANDB_RUN_GROUP", "g")
    wandb.init()
    assert told(sink) == [
        {
            "rl.experiment.notes": "why",
            "rl.experiment.tags": ["a", "b"],
            "rl.experiment.group": "g",
        }
    ]


def test_a_tag_that_is_too_long_is_cut_not_refused(sink: Sink) -> None:
    wandb.init(tags=["a" * 200, "b\n"], group="g" * 200)
    assert told(sink) == [
        {"rl.experiment.tags": ["a" * 128, "b"], "rl.experiment.group": "g" * 128}
    ]


def test_what_a_run_is_told_reaches_it_too_where_the_program_started_the_worker(
    sink: Sink,
) -> None:
    otel_rl.init(role="trainer")
    wandb.init(notes="why")
    assert told(sink) == [{}, {"rl.experiment.notes": "why"}]


def samples(sink: Sink) -> list[tuple[object, object, object]]:
    """Table, step and body of each sample that has arrived."""
    assert otel_rl.flush(timeout_s=60)
    return [
        (event.attributes["rl.sample.table"], event.attributes["rl.loop.iteration"], event.body)
        for event in sink.events("rl.rollout.sample")
    ]


def test_a_table_becomes_samples_at_its_step(sink: Sink) -> None:
    table = wandb.Table(columns=["prompt", "reward"])
    table.add_data("1+1?", 0.5)
    table.add_data("2+2?", np.float32(1.0))
    wandb.init().log({"val": {"table": table}, "loss": 1.0}, step=7, commit=True)
    assert samples(sink) == [
        ("val.table", 7, {"prompt": "1+1?", "reward": 0.5}),
        ("val.table", 7, {"prompt": "2+2?", "reward": 1.0}),
    ]
    assert steps(sink, "loss") == [(7, 1.0)]


def test_a_table_at_a_step_that_is_past_is_counted_by_its_rows(sink: Sink) -> None:
    run = wandb.init()
    run.log({"loss": 1.0}, step=7)
    run.log({"val": wandb.Table(columns=["a"], data=[[1], [2]])}, step=3)
    run.log({"val": wandb.Table(columns=["a"], data=[[1]]), "loss": 2.0}, step=3)
    assert otel_rl.flush(timeout_s=60)
    assert GUARD.drops.counts() == {DropReason.BAD_STEP: 4}


def test_a_table_that_grows_is_written_once(sink: Sink) -> None:
    run = wandb.init()
    rows: list[list[object]] = []
    for step in range(3):
        rows = [*rows, [f"prompt {step}"]]
        run.log({"val": wandb.Table(columns=["prompt"], data=rows)}, step=step, commit=True)
    assert [(step, body) for _, step, body in samples(sink)] == [
        (step, {"prompt": f"prompt {step}"}) for step in range(3)
    ]


def test_a_picture_in_a_table_is_named_in_its_place_and_its_row_is_written_once(
    sink: Sink,
) -> None:
    run = wandb.init()
    for _ in range(2):
        run.log({"val": wandb.Table(columns=["a", "b"], data=[[1, wandb.Image("no file")]])})
    assert [body for _, _, body in samples(sink)] == [{"a": 1, "b": "Image"}]


def test_a_table_with_other_rows_is_written_anew(sink: Sink) -> None:
    run = wandb.init()
    for word in ("a", "b"):
        run.log({"val": wandb.Table(columns=["prompt"], data=[[word]])})
    assert [body for _, _, body in samples(sink)] == [{"prompt": "a"}, {"prompt": "b"}]


def test_a_table_takes_columns_and_frames(sink: Sink) -> None:
    class Frame:
        columns = ("prompt", "reward")

        def to_numpy(self) -> np.ndarray[tuple[int, int], np.dtype[np.object_]]:
            return np.array([["a", 1]], dtype=object)

    table = wandb.Table(dataframe=Frame())
    table.add_column("length", [3])
    table.add_data("too short")
    assert table.get_column("prompt") == ["a"]
    wandb.init().log({"val": table})
    assert samples(sink) == [("val", 0, {"prompt": "a", "reward": 1, "length": 3})]


ENDS: list[tuple[int | None, dict[str, object]]] = [
    (None, {"rl.worker.status": "complete"}),
    (0, {"rl.worker.status": "complete"}),
    (3, {"rl.worker.status": "failed"}),
]


@pytest.mark.parametrize(("exit_code", "said_at_the_end"), ENDS)
def test_an_exit_code_is_what_the_worker_says_at_its_end(
    sink: Sink, exit_code: int | None, said_at_the_end: dict[str, object]
) -> None:
    wandb.init()
    wandb.finish(exit_code)
    otel_rl.finish(timeout_s=60)
    assert told(sink, "rl.worker.end") == [said_at_the_end]


def test_a_run_that_an_exception_leaves_has_failed(sink: Sink) -> None:
    with pytest.raises(ZeroDivisionError), wandb.init():
        raise ZeroDivisionError
    otel_rl.finish(timeout_s=60)
    assert told(sink, "rl.worker.end") == [{"rl.worker.status": "failed"}]


def test_arguments_without_a_meaning_are_said(sink: Sink, said: pytest.LogCaptureFixture) -> None:
    wandb.init(entity="team", mode="onlin", settings=wandb.Settings(quiet=True), monitor_gym=True)
    for argument in ("mode", "settings", "monitor_gym"):
        assert any(f"init({argument}=...)" in line for line in said.messages)


@pytest.mark.parametrize(("resume", "is_told"), [("allow", False), ("never", True)])
def test_a_run_that_may_be_resumed_is_so_without_a_warning(
    sink: Sink, said: pytest.LogCaptureFixture, *, resume: str, is_told: bool
) -> None:
    wandb.init(project="p", resume=resume)  # as Lightning's logger always does
    assert ("resume" in said.text) is is_told


def test_a_run_tells_what_it_was_told(sink: Sink) -> None:
    run = wandb.init(project="p", name="n", id="i", entity="e", tags=["a"], dir="/tmp")
    assert (run.project, run.name, run.id, run.path, run.tags) == ("p", "n", "i", "e/p/i", ("a",))
    assert (run.dir, run.url, run.resumed, run.step) == ("/tmp", None, False, 0)
    run.name = "other"
    assert run.name == "other"


def test_threads_share_the_rows(sink: Sink) -> None:
    run = wandb.init()

    def work() -> None:
        for _ in range(200):
            run.log({"x": 1})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [step for step, _ in steps(sink, "x")] == list(range(800))


@pytest.mark.process
def test_a_forked_child_does_not_send_what_its_parent_has_pending(sink: Sink) -> None:
    run = wandb.init()
    run.log({"x": 1.0}, step=3)

    def child() -> None:
        run.log({"x": 2.0}, step=4)
        run.finish()

    assert forked(child) == 0
    run.finish()
    found = {(m.resource["service.instance.id"], m.step, m.value) for m in arrived(sink, "x")}
    assert {(step, value) for _, step, value in found} == {(3, 1.0), (4, 2.0)}
    assert len({instance for instance, _, _ in found}) == 2


def test_all_is_sorted_and_every_name_of_it_is_there() -> None:
    assert wandb.__all__ == sorted(wandb.__all__)
    assert all(hasattr(wandb, name) for name in wandb.__all__)


@pytest.mark.process
def test_importing_loads_neither_wandb_nor_arrays_nor_a_server() -> None:
    code = (
        "import sys, otel_rl.integrations.wandb as wandb\n"
        "print([name for name in sys.argv[1:] if name in sys.modules])"
    )
    heavy = ["wandb", "numpy", "fastapi", "grpc", "pydantic", "yaml"]
    done = subprocess.run(
        [sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
