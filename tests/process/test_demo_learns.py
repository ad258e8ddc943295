"""The demo's promises, kept by real processes with real signals."""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_rl.demo import DemoResult, DemoSettings, run
from otel_rl.semconv import names
from tests.support import waiting
from tests.support.otlp_sink import Measurement, Sink, pairs, serve

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes by /proc"),
]

MARK = "OTEL_RL_DEMO_TEST"
END = names.RL_EXPERIMENT_END
DEADLINE_S = 240.0  # a run is nine processes
wait_until = partial(waiting.wait_until, timeout_s=DEADLINE_S)

UNENDING = """
from otel_rl.demo import DemoSettings, run
result = run(DemoSettings(steps=100_000))
print(result)
raise SystemExit(not result.ok)
"""

SMALL = {
    "generators": 2,
    "reward_workers": 1,
    "groups_per_rank": 4,
    "group_size": 4,
    "inventory_groups": 16,
    "buffer_groups": 20,
    "width": 16,
}

# What the processes of each role have to report in every run; phases are compared apart.
REPORTED = {
    "trainer": {
        names.RL_TRAIN_LOSS,
        names.RL_TRAIN_GRAD_ABS_MAX,
        names.RL_TRAIN_GRAD_MEAN_SQUARE,
        names.RL_TRAIN_GRAD_NORM,
        names.RL_TRAIN_LEARNING_RATE,
        names.RL_TRAIN_MFU,
        names.RL_TRAIN_UPDATE_NORM,
        names.RL_TRAIN_STEPS,
        names.RL_TRAIN_TOKENS,
        names.RL_POLICY_ADVANTAGE_MIN,
        names.RL_POLICY_ADVANTAGE_MAX,
        names.RL_POLICY_ADVANTAGE_MEAN,
        names.RL_POLICY_KL_REFERENCE,
        names.RL_POLICY_ENTROPY,
        names.RL_POLICY_CLIP_FRACTION,
        names.RL_POLICY_IMPORTANCE_RATIO,
        names.RL_POLICY_STALENESS,
        names.RL_POLICY_UPDATES,
        names.RL_POLICY_VERSION,
        names.RL_REWARD_SUM,
        names.RL_REWARD_MEAN,
        names.RL_EPISODE_LENGTH,
        names.RL_REPLAY_BUFFER_RETRIEVAL_DURATION,
        names.RL_ITERATION_DURATION,
        names.RL_WORKER_IDLE_TIME,
        names.RL_SAMPLE_AGE_DURATION,
        names.RL_SAMPLE_AGE_VERSIONS,
        names.RL_SAMPLE_AGE_STEPS,
        names.PROCESS_CPU_UTILIZATION,
    },
    "generator": {
        names.RL_GENERATOR_KV_CACHE_LIMIT,
        names.RL_GENERATOR_KV_CACHE_USAGE,
        names.RL_GENERATOR_KV_CACHE_UTILIZATION,
        names.RL_GENERATOR_KV_CACHE_QUERIES,
        names.RL_GENERATOR_KV_CACHE_HITS,
        names.RL_GENERATOR_TOKENS,
        names.RL_GENERATOR_REQUESTS,
        names.RL_GENERATOR_REQUESTS_RUNNING,
        names.RL_GENERATOR_QUEUE_DEPTH,
        names.RL_GENERATOR_QUEUE_DURATION,
        names.RL_GENERATOR_PROMPT_TOKENS,
        names.RL_GENERATOR_RESPONSE_TOKENS,
        names.RL_GENERATOR_TOKENIZE_DURATION,
        names.RL_GENERATOR_SAMPLING_TEMPERATURE,
        names.RL_GENERATOR_SAMPLING_TOP_P,
        names.RL_GENERATOR_SAMPLING_MAX_TOKENS,
        names.GEN_AI_SERVER_REQUEST_DURATION,
        names.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN,
        names.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN,
        names.RL_POLICY_VERSION,
        names.RL_POLICY_UPDATES,
        names.RL_ITERATION_DURATION,
        names.RL_WORKER_IDLE_TIME,
    },
    "replay_buffer": {
        names.RL_REPLAY_BUFFER_SIZE,
        names.RL_REPLAY_BUFFER_LIMIT,
        names.RL_REPLAY_BUFFER_QUEUE_DEPTH,
        names.RL_REPLAY_BUFFER_WRITES,
        names.RL_REPLAY_BUFFER_READS,
        names.RL_REPLAY_BUFFER_EVICTIONS,
    },
    "reward": {
        names.RL_REWARD_DURATION,
        names.RL_ENV_STEP_DURATION,
        names.RL_SAMPLE_EPISODES,
        names.RL_SAMPLE_REWARD,
        names.RL_SAMPLE_LENGTH,
    },
    "orchestrator": {
        names.RL_REPLICA_FAILURES,
        names.RL_REPLICA_QUEUE_DEPTH,
        names.SYSTEM_CPU_UTILIZATION,
    },
}

PHASES = {
    "trainer": {
        "collector_wait",
        "replay_batch_wait",
        "batch_create",
        "h2d_copy",
        "rank_barrier",
        "reference",
        "train",
        "param_sync",
        "weight_sync",
        "weight_push",
        "sync_coordination",
        "unaccounted",
    },
    "generator": {
        "model_load",
        "sync_coordination",
        "weight_sync",
        "weight_pull",
        "tokenize",
        "action_select",
        "replay",
    },
    "reward": {"env_step", "replay"},
}

PARTS = {"weight_push", "weight_pull"}  # lie inside weight_sync


@dataclass
class Running:
    """A run of the demo, and how to find its processes."""

    mark: str
    future: Future[DemoResult]

    def pids(self, role: str | None = None, index: int = 0) -> list[int]:
        wanted = {f"{MARK}={self.mark}"}
        if role is not None:
            wanted |= {f"OTEL_RL_ROLE={role}", f"OTEL_RL_INDEX={index}"}
        return [pid for pid, environment in environments() if wanted <= environment]

    def orchestrator(self) -> int:
        return orchestrator(self.pids())

    def wait_for_its_end(self) -> None:
        """Until no process is left: what one has asked of git may outlive it for a moment."""
        wait_until(lambda: not self.pids(), "the end of all processes")


def orchestrator(pids: Iterable[int]) -> int:
    """The orchestrator among processes. A child that it starts looks as it does for a moment."""
    parents: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):  # gone by now
            process = psutil.Process(pid)
            if "otel_rl.demo.processes.orchestrator" in process.cmdline():
                parents[pid] = process.ppid()
    (pid,) = (pid for pid, parent in parents.items() if parent not in parents)
    return pid


def environments() -> Iterator[tuple[int, set[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                raw = (entry / "environ").read_bytes()
            except OSError:  # not ours, or gone by now
                continue
            yield int(entry.name), set(raw.decode(errors="replace").split("\0"))


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    # All processes end at once, each with something to say.
    return {**kept, "OTEL_RL_EXIT_TIMEOUT": "60", **more}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[DemoSettings], Running]]:
    """Starts runs in the background; nothing of them is left after the test."""
    with ThreadPoolExecutor() as pool:
        started: list[Running] = []

        def begin(settings: DemoSettings, **environment: str) -> Running:
            mark = uuid.uuid4().hex
            env = clean_environment(**environment, **{MARK: mark})
            settings = settings.model_copy(update={"work_dir": tmp_path})
            started.append(Running(mark, pool.submit(run, settings, env)))
            return started[-1]

        yield begin
        for running in started:
            for pid in running.pids():
                os.kill(pid, signal.SIGKILL)


def small(steps: int, kill_share: float | None = None) -> DemoSettings:
    return DemoSettings.model_validate({**SMALL, "steps": steps, "kill_share": kill_share})


Start = Callable[..., Running]


@pytest.mark.slow
def test_a_run_without_any_bridge_makes_its_steps_and_leaves_no_process(start: Start) -> None:
    running = start(small(steps=4))
    result = running.future.result(DEADLINE_S)
    assert result.ok, result.reason
    assert result.steps == 4
    running.wait_for_its_end()


@pytest.mark.slow
def test_no_process_outlives_a_killed_orchestrator(start: Start) -> None:
    running = start(small(steps=100_000))
    wait_until(lambda: running.pids("trainer", 1))
    os.kill(running.orchestrator(), signal.SIGKILL)
    assert not running.future.result(DEADLINE_S).ok
    wait_until(lambda: not running.pids())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_leaves_no_process(number: int, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    running = Running(mark, Future())
    process = subprocess.Popen(
        [sys.executable, "-c", UNENDING],
        env=clean_environment(**{MARK: mark, "TMPDIR": str(tmp_path)}),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: running.pids("trainer", 1))
        os.kill(process.pid if number == signal.SIGINT else running.orchestrator(), number)
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 1
        assert "interrupted" in output
        running.wait_for_its_end()
    finally:
        process.kill()
        process.wait()
        for pid in running.pids():
            os.kill(pid, signal.SIGKILL)


def reporting_to(sink: Sink) -> dict[str, str]:
    """The environment as ``otel-rl run`` makes it."""
    # A trial of its own: who reports the host is decided for each run, and one that was killed
    # may still be ending.
    trial = uuid.uuid4().hex
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_RESOURCE_ATTRIBUTES": f"rl.experiment.name=demo,rl.trial.name={trial}",
        "OTEL_PYTHON_METER_PROVIDER": "otel_rl",
        "OTEL_PYTHON_TRACER_PROVIDER": "otel_rl",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_METRICS_EXEMPLAR_FILTER": "always_on",
        "OTEL_RL_EXPERIMENT": "demo",
        "OTEL_RL_TRIAL": trial,
    }


def said_of_the_end(sink: Sink) -> list[object]:
    return [event.attributes[names.RL_EXPERIMENT_STATUS] for event in sink.events(END)]


@pytest.mark.slow
def test_a_killed_replica_is_replaced_and_its_requests_are_done_by_others(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def serves_again() -> bool:
        shown.append(capfd.readouterr().out)
        return "generator-1 serves again" in "".join(shown)

    with serve(Sink()) as sink:
        running = start(small(steps=100_000, kill_share=0.0001), **reporting_to(sink))
        wait_until(serves_again)
        os.kill(running.orchestrator(), signal.SIGTERM)
        result = running.future.result(DEADLINE_S)
        assert said_of_the_end(sink) == ["aborted"]
    assert result.failures == 1
    assert result.rerouted > 0
    assert len(result.recoveries_s) == 1
    running.wait_for_its_end()


@pytest.mark.slow
def test_a_crashed_trainer_ends_the_run_and_is_named(start: Start) -> None:
    with serve(Sink()) as sink:
        running = start(small(steps=100_000), **reporting_to(sink))
        wait_until(lambda: running.pids("trainer", 1))
        os.kill(running.pids("trainer", 1)[0], signal.SIGKILL)
        result = running.future.result(DEADLINE_S)
        assert said_of_the_end(sink) == ["crashed"]
    assert "trainer-1 ended (SIGKILL)" in result.reason
    assert str(result.logs) in result.reason
    running.wait_for_its_end()


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sink]:
    """What a bridge receives of a short run, configured as ``otel-rl run`` does."""
    with serve(Sink()) as sink:
        settings = small(steps=8).model_copy(update={"work_dir": tmp_path_factory.mktemp("demo")})
        result = run(settings, clean_environment(**reporting_to(sink)))
        assert result.ok, result.reason
        yield sink


def names_by_role(sink: Sink) -> dict[object, set[str]]:
    found: dict[object, set[str]] = defaultdict(set)
    for request in sink.metrics:
        for resource in request.resource_metrics:
            role = pairs(resource.resource.attributes)[names.RL_WORKER_ROLE]
            for scope in resource.scope_metrics:
                found[role] |= {metric.name for metric in scope.metrics}
    return found


def every_span(sink: Sink) -> Iterator[Span]:
    for request in sink.traces:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                yield from scope.spans


@pytest.mark.parametrize("role", REPORTED)
def test_each_role_reports_its_part_of_the_list(reported: Sink, role: str) -> None:
    assert REPORTED[role] - names_by_role(reported)[role] == set()


def test_every_reported_name_is_in_the_conventions(reported: Sink) -> None:
    every = set().union(*names_by_role(reported).values())
    assert {name for name in every if not name.startswith("otel_rl.")} - set(names.METRICS) == set()


@pytest.mark.parametrize("role", PHASES)
def test_each_role_reports_its_phases(reported: Sink, role: str) -> None:
    phases = {
        measured.attributes[names.RL_PHASE]
        for measured in reported.measurements(names.RL_PHASE_DURATION)
        if measured.resource[names.RL_WORKER_ROLE] == role
    }
    assert phases == PHASES[role]


def test_every_step_of_the_loss_arrives_once_from_each_rank(reported: Sink) -> None:
    steps: dict[object, list[int | None]] = defaultdict(list)
    for measured in reported.measurements(names.RL_TRAIN_LOSS):
        steps[measured.resource[names.RL_WORKER_INDEX]].append(measured.step)
    assert steps == {0: [*range(1, 9)], 1: [*range(1, 9)]}


def test_the_phases_of_a_trainer_step_are_its_wall_time(reported: Sink) -> None:
    def key(measured: Measurement) -> tuple[object, object]:
        return measured.resource[names.RL_WORKER_INDEX], measured.step

    spent: dict[tuple[object, object], float] = defaultdict(float)
    for measured in reported.measurements(names.RL_PHASE_DURATION):
        is_trainer = measured.resource[names.RL_WORKER_ROLE] == "trainer"
        if is_trainer and measured.attributes[names.RL_PHASE] not in PARTS:
            spent[key(measured)] += measured.value
    walls = {
        key(measured): measured.value
        for measured in reported.measurements(names.RL_ITERATION_DURATION)
        if measured.resource[names.RL_WORKER_ROLE] == "trainer"
    }
    assert spent.keys() == walls.keys()
    assert all(spent[each] == pytest.approx(walls[each], rel=1e-9) for each in walls)


def test_a_train_span_links_to_the_samples_that_it_trains_on(reported: Sink) -> None:
    spans = [*every_span(reported)]
    samples = {(span.trace_id, span.span_id) for span in spans if span.name == "rl.sample"}
    rewards = [span for span in spans if span.name == "rl.reward"]
    trains = [span for span in spans if span.name == "rl.train"]
    assert len(trains) == 2 * 8
    for train in trains:
        assert len(train.links) == SMALL["groups_per_rank"]
        assert {(link.trace_id, link.span_id) for link in train.links} <= samples
    # A sample ends when it is made; to hand it over is a span of its own, in which it is scored.
    handed_over = {
        (span.trace_id, span.span_id): (span.trace_id, span.parent_span_id)
        for span in spans
        if span.name == "replay"
    }
    assert rewards
    assert {handed_over[span.trace_id, span.parent_span_id] for span in rewards} <= samples


def test_a_sample_leads_to_the_weights_that_it_was_made_with(reported: Sink) -> None:
    spans = {(span.trace_id, span.span_id): span for span in every_span(reported)}
    samples = [span for span in spans.values() if span.name == "rl.sample"]
    # The first ones are made with the weights that the generator began with.
    made = [span for span in samples if pairs(span.attributes)["rl.policy.version"]]
    assert made
    for sample in made:
        (pull,) = [spans[link.trace_id, link.span_id] for link in sample.links]
        (push,) = [spans[link.trace_id, link.span_id] for link in pull.links]
        assert (pull.name, push.name) == ("rl.sync", "weight_push")
        versions = {pairs(span.attributes)["rl.policy.version"] for span in (sample, pull, push)}
        assert len(versions) == 1


@pytest.mark.slow
def test_whole_steps_are_kept_over_all_processes() -> None:
    with serve(Sink()) as sink:
        # Of this run the first eight steps are not kept, and the next eight are.
        environment = {
            **reporting_to(sink),
            "OTEL_RL_TRIAL": "one",
            "OTEL_RESOURCE_ATTRIBUTES": "rl.experiment.name=demo,rl.trial.name=one",
            "OTEL_RL_TRACE_STEPS": "0.5",
        }
        result = run(small(steps=9), clean_environment(**environment))
        assert result.ok, result.reason
        spans = [*every_span(sink)]
        losses = sink.measurements(names.RL_TRAIN_LOSS)
        assert {measured.step for measured in losses} == set(range(1, 10))
    loops = Counter(
        pairs(span.attributes)[names.RL_LOOP_ITERATION] for span in spans if span.name == "rl.loop"
    )
    assert loops == {8: 2, 9: 2}
    there = {(span.trace_id, span.span_id) for span in spans}
    trains = [span for span in spans if span.name == "rl.train"]
    assert len(trains) == 2 * 2
    for train in trains:
        assert len(train.links) == SMALL["groups_per_rank"]
        assert {(link.trace_id, link.span_id) for link in train.links} <= there


def test_the_settings_are_the_config_of_the_run(reported: Sink) -> None:
    said = [event.attributes for event in reported.events(names.RL_EXPERIMENT_START)]
    (config,) = [one[names.RL_EXPERIMENT_CONFIG] for one in said if len(one) > 1]
    assert config == small(steps=8).hyper_parameters


def test_every_process_but_the_weight_store_says_how_it_ended(reported: Sink) -> None:
    ended = Counter(
        (event.resource[names.RL_WORKER_ROLE], event.attributes[names.RL_WORKER_STATUS])
        for event in reported.events(names.RL_WORKER_END)
    )
    counts = {"orchestrator": 1, "trainer": 2, "generator": 2, "reward": 1, "replay_buffer": 1}
    assert ended == {(role, "complete"): count for role, count in counts.items()}


def test_the_run_is_complete_when_its_last_step_is(reported: Sink) -> None:
    (end,) = reported.events(END)
    assert end.attributes[names.RL_EXPERIMENT_STATUS] == "complete"
    last_step_ns = max(each.time_ns for each in reported.measurements(names.RL_TRAIN_LOSS))
    assert end.time_ns > last_step_ns


def test_the_best_and_the_worst_of_each_policy_version_are_shown(reported: Sink) -> None:
    shown: dict[object, list[dict[str, object]]] = defaultdict(list)
    for event in reported.events(names.RL_ROLLOUT_SAMPLE):
        if event.attributes[names.RL_SAMPLE_TABLE] != "rollouts":
            continue  # requests of the orchestrator, which know no reward
        assert isinstance(event.body, dict)
        shown[event.attributes[names.RL_LOOP_ITERATION]].append(event.body)
    scored = {
        pairs(span.attributes)[names.RL_POLICY_VERSION]
        for span in every_span(reported)
        if span.name == "rl.reward"
    }
    assert {0} <= scored <= shown.keys() <= set(range(9))
    for best, worst in shown.values():
        assert [*best] == ["prompt", "completion", "reward"]
        assert best["prompt"] == worst["prompt"]
        assert float(str(best["reward"])) >= float(str(worst["reward"]))
