"""Processes that Ray ends: by its driver's exit, by ``ray.kill``, or because nobody needs them.

Only the last of these runs exit handlers. What was recorded is in the run all the same, because it
is sent at once; what may be missing is said.
"""

import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from otel_rl.bridge.config import ENV_PREFIX
from tests.frameworks.conftest import Runner
from tests.process.commands import Finished, Row, jsonl_rows
from tests.support.otlp_sink import Sink, serve

PATIENCE_S = 240.0

KINDS = ("sync", "threads", "async", "fails")

ACTORS = """
    import os, pathlib, time
    import ray
    import otel_rl

    def work(steps):
        for step in steps:
            with otel_rl.step(step), otel_rl.phase("train"):
                otel_rl.log({"loss": float(step)}, step=step)

    class Sync:
        def begin(self, role):
            otel_rl.init(role=role)
            work([0])
        def run(self, steps):
            work(steps)

    class Async:
        async def begin(self, role):
            otel_rl.init(role=role)
            work([0])
        async def run(self, steps):
            work(steps)

    class Fails(Sync):
        def run(self, steps):
            work(steps)
            raise ValueError("on purpose")

    def wait_for(name):
        while not pathlib.Path(name).exists():
            time.sleep(0.02)

    def start_ray():
        for _ in range(10):  # it gives up after half a minute, on a machine that has other work
            try:
                return ray.init("local", num_cpus=8, include_dashboard=False, logging_level="error")
            except Exception:
                ray.shutdown()
        raise RuntimeError("Ray does not start")

    start_ray()
"""

BY_CALLS = (
    ACTORS
    + """
    kinds = {
        "sync": ray.remote(Sync), "threads": ray.remote(max_concurrency=2)(Sync),
        "async": ray.remote(Async), "fails": ray.remote(Fails),
    }
    actors = {role: kind.remote() for role, kind in kinds.items()}
    ray.get([actor.begin.remote(role) for role, actor in actors.items()])
    wait_for("begun")
    for actor in actors.values():
        try:
            ray.get(actor.run.remote(range(1, 4)))
        except ValueError:
            pass
    wait_for("seen")
    ray.kill(actors["threads"])
    del actors["sync"], actor
    wait_for("said")
"""
)


RESTARTED = """
    class Restarted:
        def run(self, steps):
            otel_rl.init(role="actor")
            work(steps)
            assert otel_rl.flush(timeout_s=60)

    actor = ray.remote(max_restarts=1, max_task_retries=-1)(Restarted).remote()
    ray.get(actor.run.remote(range(10)))
    ray.kill(actor, no_restart=False)
    ray.get(actor.run.remote(range(10, 20)))
"""

LOSSES = {step: float(step) for step in range(20)}


def test_an_actor_that_is_killed_after_a_flush_and_restarted_has_every_value_in_the_run(
    frameworks: Runner,
) -> None:
    done = frameworks.run(ACTORS + RESTARTED)
    assert done.status == 0, done.err
    assert dict(_column(jsonl_rows(frameworks.directory, "real"), "actor/loss")) == LOSSES


def _steps(sink: Sink) -> Mapping[str, Counter[int | None]]:
    found: dict[str, Counter[int | None]] = {role: Counter() for role in KINDS}
    for measured in sink.measurements("loss"):
        found[str(measured.resource["rl.worker.role"])][measured.step] += 1
    return found


def _spans(sink: Sink) -> int:
    return sum(
        span.name == "rl.loop"
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    )


def _ended(sink: Sink) -> Sequence[str]:
    """The roles of the workers that said goodbye."""
    return [str(event.resource["rl.worker.role"]) for event in sink.events("rl.worker.end")]


def test_what_a_call_has_recorded_is_sent_when_it_returns_however_the_actor_ends(
    frameworks: Runner,
) -> None:
    with serve(Sink()) as sink:
        environment = frameworks.environment(
            OTEL_RL_EXPERIMENT="e",
            OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
            OTEL_METRIC_EXPORT_INTERVAL="600000",  # nothing is sent because it is time
        )
        with subprocess.Popen(
            [frameworks.python, frameworks.script(BY_CALLS)],
            cwd=frameworks.directory,
            env=environment,
        ) as driver:
            try:
                _go_through_the_endings(sink, frameworks.directory)
                assert driver.wait(PATIENCE_S) == 0
            finally:
                driver.kill()
        assert _steps(sink) == {role: Counter(range(4)) for role in KINDS}
        assert _spans(sink) == 4 * len(KINDS)
        # Ray may or may not run the exit handlers of those that end with the driver.
        ends = Counter(_ended(sink))
        assert "threads" not in ends
        assert max(ends.values()) == 1


def _go_through_the_endings(sink: Sink, directory: Path) -> None:
    sink.wait(lambda sink: all(0 in steps for steps in _steps(sink).values()), PATIENCE_S)
    (directory / "begun").touch()
    sink.wait(lambda sink: all(3 in steps for steps in _steps(sink).values()), PATIENCE_S)
    sink.wait(lambda sink: _spans(sink) == 4 * len(KINDS), PATIENCE_S)
    (directory / "seen").touch()
    sink.wait(lambda sink: bool(_ended(sink)), PATIENCE_S)
    assert _ended(sink) == ["sync"]
    (directory / "said").touch()


JOB = """
    class TaskRunner:
        def run(self):
            from verl.utils.tracking import Tracking

            logger = Tracking(
                "project", "experiment", ["console", "otel_rl"], {"trainer": {"total_epochs": 1}}
            )
            for step in range(1, 31):
                logger.log(data={"actor/pg_loss": 1 / step}, step=step)
            logger.log(data={"val-core/acc": 0.75}, step=30)

    runner = ray.remote(TaskRunner).remote()
    roles = ("killed", "dropped", "left")
    actors = {role: ray.remote(Sync).remote() for role in roles}
    ray.get([actor.begin.remote(role) for role, actor in actors.items()])
    ray.get([actor.run.remote(range(1, 10)) for actor in actors.values()])
    ray.kill(actors["killed"])
    pid = ray.get(actors["dropped"].__ray_call__.remote(lambda _self: os.getpid()))
    del actors["dropped"]
    while pathlib.Path(f"/proc/{pid}").exists():
        time.sleep(0.02)
    ray.get(runner.run.remote())
"""


@pytest.fixture(scope="module")
def job(
    frameworks_python: Path,
    metadata_of_this_checkout: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Finished, Sequence[Row]]:
    """A job whose actors end in three ways, under ``otel-rl run``."""
    runner = Runner(frameworks_python, tmp_path_factory.mktemp("job"), metadata_of_this_checkout)
    done = runner.run(
        ACTORS + JOB,
        env={
            "VERL_USE_EXTERNAL_MODULES": "otel_rl.integrations.verl",
            # Who is killed long before the end has failed, and a busy machine takes its time.
            f"{ENV_PREFIX}ROWS__WORKER_TIMEOUT": "3600",
        },
    )
    assert done.status == 0, done.err
    return done, jsonl_rows(runner.directory, "real")


# Ray may or may not run the exit handlers of those that end with the driver.
SILENT = [["killed", *others] for others in ([], ["left"], ["trainer"], ["left", "trainer"])]


def test_who_ended_without_a_goodbye_is_said_at_the_end_of_the_run(
    job: tuple[Finished, Sequence[Row]],
) -> None:
    lines = [line for line in job[0].err.splitlines() if "without an exit report" in line]
    words = (
        "1 ended without an exit report, or outlived the command; up to an export interval (1 s "
        "unless set) of metrics, or what followed the command, is missing"
    )
    assert lines in [[f"otel-rl:   {role}: {words}" for role in roles] for roles in SILENT]


def test_who_ended_without_a_goodbye_is_in_the_run(job: tuple[Finished, Sequence[Row]]) -> None:
    silent: dict[str, float] = {}
    for row in job[1]:
        silent |= {key: value for key, value in row.values.items() if key.endswith("/silent")}
    assert silent in [{f"service/{role}/silent": 1 for role in roles} for roles in SILENT]
    assert len(silent) == job[0].err.count("without an exit report")


def test_an_actor_that_nobody_needs_any_more_has_everything_in_the_run(
    job: tuple[Finished, Sequence[Row]],
) -> None:
    assert _column(job[1], "dropped/loss") == [(step, float(step)) for step in range(10)]


def _column(rows: Sequence[Row], key: str) -> list[tuple[int, float]]:
    return sorted((row.step, row.values[key]) for row in rows if key in row.values)


@pytest.mark.tried("verl", "verl", "Ray", seen="in Ray: each step, the final validation")
def test_verl_in_an_actor_has_its_last_step_and_its_final_validation_in_the_run(
    job: tuple[Finished, Sequence[Row]],
) -> None:
    assert _column(job[1], "trainer/val-core/acc") == [(30, 0.75)]
    losses = _column(job[1], "trainer/loss/policy")
    assert [step for step, _ in losses] == [*range(1, 31)]
    assert [loss for _, loss in losses] == pytest.approx([1 / step for step in range(1, 31)])
