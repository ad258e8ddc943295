"""A run that ends or stands still is blamed on whoever is at fault, and on nobody at its end."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from exams.first.effects import Effect
from exams.first.faults import Collector, Hang
from exams.first.programs import Job, Program, Topology
from exams.first.styles import Style
from otel_rl.diagnose.classify import Work, work_of
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.explain import unexplained
from otel_rl.diagnose.history.records import Facts, SpanFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import Loss, PhaseKey, RunHistory, Track
from otel_rl.diagnose.history.timings import timed_part
from otel_rl.diagnose.result import Cause, Kind, Verdict
from otel_rl.diagnose.stats.peers import Peers, turn_length
from otel_rl.records import WorkerFailure
from tests.unit.diagnose.made import AT, Series, changed, made
from tests.unit.diagnose.played import Played
from tests.unit.diagnose.standing import hung

S = 1_000_000_000
SINCE = 30


def stock_run(ends: dict[str, int], steps: int = 40) -> list[Facts]:
    """Records of workers that report a gauge until their last step, by an SDK without more."""
    facts = []
    for step in range(steps):
        alive = [worker for worker, last in ends.items() if step <= last]
        some = [WorkerFacts(worker, step, 1, 1.0, 0) for worker in alive]
        lags = [(worker, 0.1) for worker in alive]
        facts.append(
            Facts((1_000 + step) * S, step, workers={"actor/x": some}, lags=lags, status="running")
        )
    return facts


def with_end(facts: list[Facts], missed: Sequence[str], last: int) -> RunHistory:
    """Return the history if these workers are missed 16 s after the last record."""
    end_ns = facts[-1].time_ns + 16 * S
    failures = [
        WorkerFailure(worker, (1_000 + last) * S, step=last, reports_ends=False)
        for worker in missed
    ]
    end = Facts(end_ns, last, lost=list(missed), failures=failures, status="crashed")
    return RunHistory([*facts, end])


def test_the_first_lease_to_end_after_the_run_is_no_crash() -> None:
    facts = stock_run({f"actor/{index}": 39 for index in range(4)})
    report = diagnose(with_end(facts, ["actor/2"], 39))
    assert not report.causes
    assert report.verdict is Verdict.CANNOT_TELL


@pytest.mark.parametrize("reports_ends", [False, True])
def test_a_worker_that_is_silent_may_have_been_stopped_if_its_sdk_reports_no_end(
    *, reports_ends: bool
) -> None:
    """Nothing tells a SIGTERM of a stock worker from a SIGKILL: both stay an alarm."""
    facts = stock_run({"actor/0": 79, "actor/1": 40, "actor/2": 79, "actor/3": 79}, steps=80)
    failure = WorkerFailure("actor/1", 1_040 * S, step=40, reports_ends=reports_ends)
    facts[56] = facts[56]._replace(lost=["actor/1"], failures=[failure])
    (found,) = diagnose(RunHistory(facts)).causes
    assert (found.kind, found.worker, found.since) == (Kind.CRASH, "actor/1", 40)
    assert "killed" in found.words
    assert ("stopped in order" in found.words) is not reports_ends


def test_a_controller_that_ends_long_after_the_others_has_lost_none_of_them() -> None:
    last = {f"{role}/{index}": 60 for role in ("sampler", "learner") for index in range(4)}
    facts = stock_run({**last, "driver/0": 79}, steps=80)
    report = diagnose(with_end(facts, [*last, "driver/0"], 79))
    assert not [cause for cause in report.causes if cause.kind is Kind.CRASH]


@pytest.mark.parametrize(
    ("works", "is_crash"),
    [
        pytest.param(True, False, id="they had steps to catch up with"),
        pytest.param(False, True, id="they stood still"),
    ],
)
def test_workers_that_were_through_while_others_went_on_are_no_crash(
    works: bool, is_crash: bool
) -> None:
    facts = []
    for second in range(80):
        own = {f"actor/{n}": second for n in range(3)} if second < 40 else {}
        slow = second // 2 if works else min(second, 39)
        own |= {"actor/3": slow, "actor/4": slow}
        spans = [
            SpanFacts(step, "actor", "work", of, False, 1, 0.5, 0.5, 0)
            for of, step in own.items()
            if works or second < 40
        ]
        lags = [(of, 0.1) for of in own]
        at_ns, step = (1_000 + second) * S, min(second, 39)
        facts.append(Facts(at_ns, step, spans=spans, lags=lags, status="running"))
    failures = [
        WorkerFailure(
            f"actor/{n}", (1_000 + (39 if n < 3 else 79)) * S, step=39, reports_ends=False
        )
        for n in range(5)
    ]
    lost = [one.worker for one in failures]
    facts.append(Facts(1_095 * S, 39, lost=lost, failures=failures, status="complete"))
    report = diagnose(RunHistory(facts))
    assert (Kind.CRASH in [one.kind for one in report.causes]) == is_crash


def test_workers_of_a_role_that_end_together_are_no_crash_loop() -> None:
    facts = stock_run({f"actor/{index}": 39 for index in range(6)})
    report = diagnose(with_end(facts, ["actor/1", "actor/2", "actor/4", "actor/5"], 39))
    assert not report.causes


@pytest.mark.parametrize(("restarts", "is_loop"), [(1, False), (3, True)])
def test_a_restart_of_all_workers_is_one_failure_of_them(restarts: int, is_loop: bool) -> None:
    """Their leases end one after the other, over the interval in which each of them exports."""
    facts = stock_run({f"actor/{index}": 119 for index in range(8)}, steps=120)
    for at in range(30, 30 + 30 * restarts, 30):
        for index in range(8):
            failure = WorkerFailure(
                f"actor/{index}", (1_000 + at) * S, step=at, recovery_s=9.0, reports_ends=False
            )
            facts[at + index] = facts[at + index]._replace(
                lost=[failure.worker], failures=[failure]
            )
    assert (Kind.CRASH_LOOP in {one.kind for one in diagnose(RunHistory(facts)).causes}) == is_loop


@pytest.mark.parametrize(("apart_s", "is_loop"), [(1, False), (8, True)])
def test_workers_that_fail_one_after_the_other_for_long_have_not_stopped_together(
    apart_s: int, *, is_loop: bool
) -> None:
    facts = stock_run({f"actor/{index}": 119 for index in range(6)}, steps=120)
    for index in range(6):
        at = 30 + index * apart_s
        failure = WorkerFailure(
            f"actor/{index}", (1_000 + at) * S, step=at, recovery_s=9.0, reports_ends=False
        )
        facts[at] = facts[at]._replace(lost=[failure.worker], failures=[failure])
    assert (Kind.CRASH_LOOP in {one.kind for one in diagnose(RunHistory(facts)).causes}) == is_loop


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_buffer_that_outlives_those_who_work_on_steps_makes_their_end_no_crash(
    *, is_gone: bool
) -> None:
    """It has no phases, and is silent for less long than they are when it is missed as well."""
    ends = {"trainer/0": 38, "trainer/1": 38, "generator/0": 39, "buffer/0": 79}
    facts = [
        one._replace(
            step=min(n, 39),
            workers={"actor/x": [who._replace(step=min(n, 39)) for who in one.workers["actor/x"]]},
            spans=[
                SpanFacts(
                    n, who.worker.partition("/")[0], "work", who.worker, False, 1, 1.0, 1.0, 0
                )
                for who in one.workers["actor/x"]
                if who.worker != "buffer/0"
            ],
        )
        for n, one in enumerate(stock_run(ends, 80))
    ]
    missed = [worker for worker in ends if is_gone or worker != "buffer/0"]
    assert not diagnose(with_end(facts, missed, 39)).causes


def test_a_worker_that_others_have_outlived_is_a_crash() -> None:
    history = RunHistory(stock_run({"actor/0": 39, "actor/1": 20, "actor/2": 39}))
    history.failures = [WorkerFailure("actor/1", 1_020 * S, step=20)]
    history.losses = [Loss(25, 25.0, "actor/1")]
    (first, *_) = diagnose(history).causes
    assert (first.kind, first.worker, first.since) == (Kind.CRASH, "actor/1", 20)


def test_a_lost_connection_follows_from_the_worker_that_is_gone() -> None:
    gone = WorkerFailure("critic/1", 1_000 * S, step=15)
    others = [
        WorkerFailure(f"actor/{index}", 1_001 * S, "ConnectionError", step=16) for index in range(3)
    ]
    assert WorkerFailure.first_cause([*others, gone]) == gone
    error = replace(others[0], error="RuntimeError")
    assert WorkerFailure.first_cause([error, gone]) == error


def test_peers_that_a_launcher_kills_after_a_lost_connection_are_no_cause() -> None:
    lost = WorkerFailure("actor/0", 1_001 * S, "ConnectionError", step=16)
    killed = [WorkerFailure(f"actor/{index}", 1_000 * S, step=15) for index in range(1, 4)]
    assert WorkerFailure.first_cause([*killed, lost]) == lost


@pytest.mark.parametrize("seed", [3, 5, 8])
def test_a_rank_that_hangs_is_who_has_trained_once_less(seed: int) -> None:
    def hangs(program: Program) -> Sequence[Effect]:
        stage = program.stage_of(Job.TRAINING)
        assert stage is not None
        return [Hang(program.workers(stage.role)[0], stage, SINCE)]

    run = Played(seed, Topology.LOCKSTEP, Style.SPANS, hangs, stock=True)
    (first, *_) = diagnose(run.history).causes
    stuck = str(run.program.workers(run.program.learner)[0])
    assert (first.kind, first.worker) == (Kind.STALL, stuck)


def test_garbage_collection_is_found_if_a_step_has_several_exports() -> None:
    def collects(program: Program) -> Sequence[Effect]:
        who = program.workers(program.maker)[1]
        return [Collector(who, 0.9 * program.usual_step_s, SINCE)]

    run = Played(12, Topology.LOCKSTEP, Style.PHASES, collects)
    (first, *_) = diagnose(run.history, passed=True).causes
    stopped = str(run.program.workers(run.program.maker)[1])
    assert (first.kind, first.worker) == (Kind.GC_PAUSES, stopped)


def test_a_buffer_that_fills_ever_slower_is_no_growing_staleness() -> None:
    history = made(
        60, workers={("trainer/staleness", "trainer/0"): lambda step: round(8 * step**0.5) / 4}
    )
    assert not diagnose(history).causes


def test_preemptions_now_and_then_are_no_thrashing() -> None:
    counted = {5, 19, 41, 43, 44}
    key = "generator/generator/preemptions"
    facts = [
        Facts(
            (1_000 + step) * S,
            step,
            workers={key: [WorkerFacts("generator/0", None, 1, 1.0, 0)]} if step in counted else {},
        )
        for step in range(60)
    ]
    assert not diagnose(RunHistory(facts)).causes


def test_servers_that_take_turns_are_compared_over_their_turns() -> None:
    tracks = {f"reward/{index}": Track() for index in range(4)}
    for step in range(80):
        index = step % 4
        slow = 3.0 if index == 2 and step >= 40 else 1.0
        tracks[f"reward/{index}"].add(step, float(step), slow)
    assert turn_length(tracks) == 4
    relative = Peers(tracks, turn_length(tracks)).relative("reward/2")
    assert relative.values == pytest.approx([1.0] * 10 + [3.0] * 10)


def test_who_has_left_had_no_turn_after_that() -> None:
    """Of three workers whose news skip some steps, one leaves after a third of them."""
    tracks = {f"generator/{index}": Track() for index in range(3)}
    for step in range(60):
        for index, track in enumerate(tracks.values()):
            if (step + index) % 4 and (index or step < 20):
                track.add(step, float(step), 1.0)
    assert turn_length(tracks) == 1


def test_thrown_away_samples_explain_who_waits_for_samples() -> None:
    evicts = Cause(Kind.EVICTION, "", role="replay_buffer", since=30)
    waits = Cause(Kind.STARVATION, "", role="trainer", since=30)
    assert list(unexplained([evicts, waits])) == [evicts]


@pytest.mark.parametrize(("since", "is_told"), [(21, False), (42, True)])
def test_a_nan_explains_slower_work_only_if_it_is_slower_at_once(since: int, is_told: bool) -> None:
    nan = Cause(Kind.NAN, "", role="trainer", worker="trainer/1", since=19)
    slow = Cause(Kind.SLOW_REWARD, "", role="env", since=since)
    assert (slow in unexplained([nan, slow])) is is_told


def test_words_of_programs_are_what_they_mean() -> None:
    assert timed_part("environment/time/tool_call") == ("environment", "tool_call")
    assert timed_part("trainer/time/actor/update_policy") == ("trainer", "actor.update_policy")
    assert timed_part("trainer/time/actor/update_policy/rank_max") is None
    assert timed_part("trainer/http/client/request/duration/POST/8000") is None
    assert timed_part("generator/timing/call_judge") is None
    assert timed_part("replay_buffer/process/cpu/time/user") is None
    assert work_of(PhaseKey("learner", "sync_params")) is Work.SYNC
    assert work_of(PhaseKey("sampler", "pull_sync_params")) is Work.SYNC
    assert work_of(PhaseKey("learner", "async_update")) is Work.TRAINING
    assert work_of(PhaseKey("learner", "next_prompt_batch")) is Work.DATA


@pytest.mark.parametrize(("last", "is_crash"), [(20, True), (22, True), (39, False)])
def test_a_kill_after_which_the_run_stands_still_is_a_crash_though_short_steps_came_late(
    last: int, *, is_crash: bool
) -> None:
    facts = stock_run({"actor/0": last, "actor/1": 20, "actor/2": last}, steps=last + 1)
    stands = [
        Facts(facts[-1].time_ns + second * S, last, lags=[("actor/0", 0.1)], status="running")
        for second in range(1, 60)
    ]
    history = RunHistory([*facts, *stands])
    history.failures = [WorkerFailure("actor/1", (1_000 + 20) * S, step=20)]
    crashes = [one.worker for one in diagnose(history).causes if one.kind is Kind.CRASH]
    assert crashes == (["actor/1"] if is_crash else [])


@pytest.mark.parametrize(
    "name",
    ["fps", "iterations", "time_elapsed", "env_steps_per_sec", "since_restore", "num_batches"],
)
def test_numbers_beside_times_are_no_times(name: str) -> None:
    assert timed_part(f"trainer/time/{name}") is None


def test_a_growing_count_among_times_is_no_slow_phase() -> None:
    """Stable-Baselines3 logs these as ``time/...``."""
    logged: dict[str, Series] = {
        "time/iterations": lambda step: step + 1.0,
        "time/time_elapsed": lambda step: 2.0 * step + 1.0,
        "time/fps": lambda _: 900.0,
        "rollout/ep_rew_mean": lambda step: 20.0 + step,
    }
    history = made(
        step_s=lambda _: 2.0,
        rows={f"trainer/{key}": of for key, of in logged.items()},
        workers={(f"trainer/{key}", "trainer/0"): of for key, of in logged.items()},
    )
    assert not diagnose(history).causes


def test_the_only_worker_of_a_run_that_stands_still_is_named() -> None:
    """Its exports tell all parts of its steps together, so none comes first."""
    facts = hung(2.0, 40, 120.0, phase=None)
    for place, one in enumerate(facts):
        known = [row.step for row in one.rows]
        parts = {
            f"trainer/{part}_seconds": [WorkerFacts("trainer/0", step, 1, 1.0, 0) for step in known]
            for part in ("rollout", "update")
        }
        facts[place] = one._replace(workers={**one.workers, **parts})
    (cause,) = diagnose(RunHistory(Facts.decode(one.encode()) for one in facts)).causes
    assert (cause.kind, cause.worker) == (Kind.STALL, "trainer/0")


def test_times_in_milliseconds_are_told_in_seconds() -> None:
    """RLlib logs some of its times so, and that of a step beside them."""
    logged: dict[str, Series] = {
        "timers/sample_time_ms": changed(1_600.0, 3_200.0),
        "time_this_iter_s": changed(2.3, 3.9),
    }
    history = made(
        rows={f"trainer/{key}": of for key, of in logged.items()},
        workers={(f"trainer/{key}", "trainer/0"): of for key, of in logged.items()},
    )
    (cause,) = diagnose(history).causes
    assert (cause.phase, cause.since) == ("sample", AT)
    assert "1.6 s before, 3.2 s now" in cause.words


@pytest.mark.parametrize("is_of_all", [True, False])
def test_a_job_that_was_requeued_twice_is_no_crash_loop(*, is_of_all: bool) -> None:
    """Its SDK reports no end, so it may have been ended in order; one worker alone may not."""
    workers = [f"actor/{index}" for index in range(4)]
    facts = stock_run(dict.fromkeys(workers, 60), 60)
    for step in (20, 40):
        missed = workers if is_of_all else workers[:1]
        back = [
            WorkerFailure(one, (1_000 + step) * S, step=step, recovery_s=20.0, reports_ends=False)
            for one in missed
        ]
        facts[step] = facts[step]._replace(lost=missed, failures=back)
    found = [one.kind for one in diagnose(RunHistory(facts)).causes]
    assert found == ([] if is_of_all else [Kind.CRASH_LOOP])
