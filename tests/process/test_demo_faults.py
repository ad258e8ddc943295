"""The demo's faults are really done: by what its processes report, and by nothing else."""

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint

from otel_rl.demo import DemoSettings, run
from otel_rl.demo.faults import Fault
from otel_rl.semconv import names
from tests.process.test_demo_learns import (
    SMALL,
    clean_environment,
    orchestrator,
    reporting_to,
)
from tests.support.otlp_sink import Measurement, Sink, pairs, serve, sums
from tests.support.strays import processes_with
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes by /proc"),
]

STEPS = 6
AHEAD_S = 7200
LIE = 0.25
DELAY_S = 0.1
PAUSE_S = 0.2
MARK = "OTEL_RL_DEMO_FAULTS_TEST"
PATIENCE_S = 240.0


def settings(work_dir: Path, *faults: str, **more: object) -> DemoSettings:
    return DemoSettings.model_validate(
        {
            **SMALL,
            "steps": STEPS,
            "kill_share": None,
            "work_dir": work_dir,
            "faults": [Fault.parse(fault) for fault in faults],
            **more,
        }
    )


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sink]:
    """Requests of a run in which values are wrong and things are slow from the first step on."""
    with serve(Sink()) as sink:
        faults = (
            "nan@1@trainer/1",
            f"reward_bug@1:{LIE}",
            f"clock_skew:{AHEAD_S}@generator/0",
            f"slow_sync@1:{DELAY_S}",
            f"slow_reward@1:{DELAY_S}",
            f"network_delay@1:{DELAY_S}@trainer/0",
            f"gc_pauses@1:{PAUSE_S}@trainer/1",
        )
        result = run(
            settings(tmp_path_factory.mktemp("run"), *faults),
            # A difference to the commit may name faults: it is of this repository.
            clean_environment(OTEL_RL_PROVENANCE="command", **reporting_to(sink)),
        )
        assert result.ok, result.reason
        yield sink


def of(sink: Sink, name: str, role: str, **attributes: object) -> list[Measurement]:
    return [
        measured
        for measured in sink.measurements(name)
        if measured.resource[names.RL_WORKER_ROLE] == role
        and measured.attributes.items() >= attributes.items()
    ]


def test_a_nan_is_in_the_own_gradient_of_the_rank_that_has_it(faulty: Sink) -> None:
    found = {
        measured.resource[names.RL_WORKER_INDEX]: measured.value
        for measured in of(faulty, names.RL_TRAIN_GRAD_NONFINITE, "trainer")
        if measured.step == 1
    }
    assert found == {0: 0, 1: 1}


def test_a_nan_of_one_rank_is_in_everybodys_next_gradient(faulty: Sink) -> None:
    after = [
        measured.value
        for measured in of(faulty, names.RL_TRAIN_GRAD_NONFINITE, "trainer")
        if measured.step is not None and measured.step > 1
    ]
    assert len(after) == 2 * (STEPS - 1)
    assert all(count > 0 for count in after)


def test_a_lying_reward_worker_gives_everybody_the_same(faulty: Sink) -> None:
    means = {measured.value for measured in of(faulty, names.RL_SAMPLE_REWARD, "reward")}
    deviations = {measured.value for measured in of(faulty, names.RL_REWARD_STD, "reward")}
    assert (means, deviations) == ({LIE}, {0.0})


def test_a_wrong_clock_dates_all_of_its_process_wrong(faulty: Sink) -> None:
    starts_ns: dict[bool, list[int]] = {True: [], False: []}
    for request in faulty.traces:
        for resource in request.resource_spans:
            attributes = pairs(resource.resource.attributes)
            place = attributes[names.RL_WORKER_ROLE], attributes[names.RL_WORKER_INDEX]
            starts_ns[place == ("generator", 0)] += [
                span.start_time_unix_nano for scope in resource.scope_spans for span in scope.spans
            ]
    assert min(starts_ns[True]) - max(starts_ns[False]) > AHEAD_S / 2 * 1e9


def test_a_slow_transfer_of_weights_shows_in_every_push(faulty: Sink) -> None:
    pushes = of(faulty, names.RL_PHASE_DURATION, "trainer", **{names.RL_PHASE: "weight_push"})
    of_rank_0 = [each.value for each in pushes if each.resource[names.RL_WORKER_INDEX] == 0]
    assert len(of_rank_0) == STEPS
    assert min(of_rank_0) >= DELAY_S


def test_a_slow_reward_worker_shows_in_its_own_phase(faulty: Sink) -> None:
    scored = of(faulty, names.RL_PHASE_DURATION, "reward", **{names.RL_PHASE: "env_step"})
    assert min(each.value for each in scored) >= DELAY_S


def test_a_slow_network_shows_to_the_caller_and_not_to_the_one_that_answers(faulty: Sink) -> None:
    asked = calls(faulty, names.RPC_CLIENT_CALL_DURATION, role="trainer", index=0)
    assert sum(point.count for point in asked) == STEPS
    assert min(point.min for point in asked) >= 2 * DELAY_S
    answered = calls(faulty, names.RPC_SERVER_CALL_DURATION, role="replay_buffer", index=0)
    assert min(point.min for point in answered) < DELAY_S


def calls(sink: Sink, name: str, *, role: str, index: int) -> list[ExponentialHistogramDataPoint]:
    """The points of the calls that fetch a batch: a server has it ready, so it need not wait."""
    return [
        point
        for request in sink.metrics
        for resource in request.resource_metrics
        if pairs(resource.resource.attributes).items()
        >= {names.RL_WORKER_ROLE: role, names.RL_WORKER_INDEX: index}.items()
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.exponential_histogram.data_points
        if pairs(point.attributes)["rpc.method"] == "Fetch"
        and names.OTEL_RL_STEP_SHARE not in pairs(point.attributes)  # counted by the process, too
    ]


def test_pauses_of_the_garbage_collector_are_of_the_process_that_has_them(faulty: Sink) -> None:
    last: dict[object, float] = {}
    for request in faulty.metrics:
        for (instance, *_), value in sums([request], names.RL_WORKER_GC_TIME).items():
            last[instance] = value
    role_of = {
        each["service.instance.id"]: (each[names.RL_WORKER_ROLE], each[names.RL_WORKER_INDEX])
        for each in faulty.resources()
    }
    by_time = sorted(last, key=lambda instance: last[instance])
    assert role_of[by_time[-1]] == ("trainer", 1)
    assert last[by_time[-1]] >= PAUSE_S


def test_no_telemetry_says_that_anything_is_done_on_purpose(faulty: Sink) -> None:
    telling = re.compile(rb"(?<!de)fault|reward_bug|clock_skew|slow_|network_delay|gc_pauses")
    for request in (*faulty.metrics, *faulty.traces, *faulty.logs):
        assert telling.search(request.SerializeToString().lower()) is None


def test_replicas_crash_again_caches_thrash_and_policies_go_stale(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = str(tmp_path)
    shown: list[str] = []

    def crashes() -> int:
        shown.append(capfd.readouterr().out)
        return "".join(shown).count("generator-1 is gone (exit 1)")

    with serve(Sink()) as sink, ThreadPoolExecutor(1) as pool:

        def preemptions() -> float:
            return sum(sums(sink.metrics, "rl.generator.preemptions").values())

        def oldest() -> float:
            ages = sink.measurements(names.RL_SAMPLE_AGE_VERSIONS)
            return max((age.value for age in ages), default=0)

        faults = ("crash_loop@1:3@generator/1", "kv_thrash@1:100@generator/0", "stale_policy@1:9")
        asked = settings(tmp_path, *faults, steps=100_000, max_staleness=100_000)
        running = pool.submit(run, asked, clean_environment(**reporting_to(sink), **{MARK: mark}))
        try:
            wait_until(
                lambda: crashes() >= 2 and preemptions() > 0 and oldest() >= 5,
                timeout_s=PATIENCE_S,
            )
        finally:
            os.kill(orchestrator(processes_with(MARK, mark)), signal.SIGTERM)
        assert not running.result(PATIENCE_S).ok  # it was interrupted
