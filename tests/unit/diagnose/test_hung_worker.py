"""A worker that hangs in its work is named, though the run goes on without it."""

from collections.abc import Iterator, Sequence

import pytest

from otel_rl.diagnose.detectors.hung_worker import hung_workers
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.result import Cause, Kind, Verdict

S = 1_000_000_000
WORKERS = [f"generator/{index}" for index in range(4)]
STUCK = "generator/2"
STEP_S, SINCE, STEPS = 5, 20, 40
DIES = SINCE - 4


def run(
    phase: str = "generate",
    *,
    reports_age: bool = True,
    exports: bool = True,
    until: int = STEPS,
    is_wait: bool = False,
    stuck: Sequence[str] = (STUCK,),
    is_in: str = "",
    longer_s: float = 0.0,
    dead: Sequence[str] = (),
) -> RunHistory:
    """Four workers, of which one reports the age of its phase, or of ``is_in``, to no end.

    Meanwhile, a step takes so much longer; dead ones are lost a few steps before.
    """
    facts = []
    for step in range(STEPS):
        is_stuck = SINCE <= step < until
        spans = [
            SpanFacts(step, "generator", phase, worker, is_wait, 1, 2.0, 2.0, 0)
            for worker in WORKERS
            if worker not in stuck or not is_stuck
            if worker not in dead or step < DIES
        ]
        age = WorkerFacts(STUCK, None, 1, 1.0 + STEP_S * (step - SINCE), 0)
        told = is_stuck and reports_age
        workers = {f"generator/worker/phase/age/{is_in or phase}": [age]} if told else {}
        rows = [RowFacts(step, step * STEP_S * S, {"trainer/loss": 1.0})]
        live = [one for one in WORKERS if exports or one not in stuck or not is_stuck]
        live = [one for one in live if one not in dead or step < DIES]
        lags = [(worker, 0.1) for worker in live]
        time_ns = int((1_000 + step * STEP_S + longer_s * max(0, step - SINCE)) * S)
        lost = dead if step == DIES + 1 else ()
        facts.append(Facts(time_ns, step, rows, workers=workers, spans=spans, lags=lags, lost=lost))
    return RunHistory(facts)


def stalls(history: RunHistory) -> Sequence[Cause]:
    return [one for one in diagnose(history).causes if one.kind is Kind.STALL]


def test_it_is_named_with_its_phase_and_the_step_in_which_it_began() -> None:
    (cause,) = stalls(run())
    assert (cause.worker, cause.phase, cause.since) == (STUCK, "generate", SINCE - 1)


def test_it_has_not_been_removed_on_purpose() -> None:
    assert not diagnose(run()).changes


@pytest.mark.parametrize("until", [SINCE + 1, SINCE + 10, STEPS - 3])
def test_a_phase_that_has_ended_is_no_hang(until: int) -> None:
    assert not stalls(run(until=until))


def test_a_long_wait_for_others_is_no_hang() -> None:
    assert not stalls(run("collector_wait", is_wait=True))


def test_a_worker_that_tells_no_age_and_is_silent_may_be_gone_on_purpose() -> None:
    history = run(reports_age=False, exports=False)
    assert not stalls(history)
    assert diagnose(history).changes


def test_a_worker_that_tells_no_age_and_reports_without_any_work_hangs_if_it_is_missed() -> None:
    history = run(reports_age=False, longer_s=0.15 * STEP_S)
    (cause,) = stalls(history)
    assert (cause.worker, cause.phase, cause.since) == (STUCK, "generate", SINCE - 1)
    assert "still reports, and has done no generate for" in cause.words
    assert not diagnose(history).changes


def test_a_worker_that_reports_and_is_not_missed_may_be_idle_on_purpose() -> None:
    found = diagnose(run(reports_age=False))
    assert (found.verdict, [*found.causes], found.changes) == (Verdict.CANNOT_TELL, [], [])
    (doubt,) = found.doubts
    assert doubt.startswith(f"{STUCK} still reports, and has done no generate for")
    assert doubt.endswith(": it hangs, or is not used any more")


def test_a_dead_worker_does_not_hide_one_that_hangs() -> None:
    dead = WORKERS[:1]
    (cause,) = stalls(run(reports_age=False, longer_s=0.15 * STEP_S, dead=dead))
    assert cause.worker == STUCK


def test_workers_that_are_half_of_a_role_are_not_used_any_more_on_purpose() -> None:
    assert not stalls(run(reports_age=False, stuck=WORKERS[:2]))


def test_a_worker_that_has_its_turn_now_and_then_does_not_hang() -> None:
    assert not stalls(run(reports_age=False, until=SINCE + 10))


@pytest.mark.parametrize("is_in", ["collector_wait", "unaccounted"])
def test_a_worker_that_tells_what_it_is_in_is_idle_if_that_is_no_work(is_in: str) -> None:
    """A replica that was taken out of use, or a spare one."""
    assert not stalls(run(is_in=is_in))


def evaluating(evaluator: str, steps: range) -> RunHistory:
    history = run(reports_age=False, stuck=[evaluator])
    place = PhaseKey("generator", "evaluate")
    for step in steps:
        at_s = history.begun_s[step]
        history.spans[place][evaluator].add(step, at_s, 3.0)
        history.counts[place][evaluator].add(step, at_s, 1.0)
    history.lags[evaluator] = history.lags[WORKERS[0]].copy()
    return history


def test_a_worker_that_ends_what_no_other_does_has_no_peers_that_go_on() -> None:
    assert not stalls(evaluating("generator/4", range(SINCE)))


def test_a_worker_that_now_does_what_no_other_does_is_at_work() -> None:
    assert not stalls(evaluating(STUCK, range(SINCE, STEPS)))


def test_a_worker_that_is_no_more_among_the_extreme_ones_of_a_large_role_does_not_hang() -> None:
    """Of many workers, the journal keeps the times of the fastest and the slowest of each step."""
    extreme = [f"generator/{index}" for index in range(32)]
    facts = []
    for step in range(STEPS):
        told = [*extreme[1:], "generator/50"] if step < SINCE else extreme
        spans = [
            SpanFacts(step, "generator", "generate", worker, False, 1, 2.0, 2.0, 0)
            for worker in told
        ]
        rows = [RowFacts(step, step * STEP_S * S, {"trainer/loss": 1.0})]
        lags = [(f"generator/{index}", 0.1) for index in range(64)]
        time_ns = (1_000 + step * STEP_S) * S
        facts.append(Facts(time_ns, step, rows, spans=spans, lags=lags))
    assert not stalls(RunHistory(facts))


class Read(list[float]):
    """Values that count how often all of them are read."""

    times = 0

    def __iter__(self) -> Iterator[float]:
        self.times += 1
        return super().__iter__()


@pytest.mark.parametrize(("age_s", "is_read"), [(3.0, False), (500.0, True)])
def test_times_of_peers_are_read_for_work_that_is_old_alone(age_s: float, *, is_read: bool) -> None:
    """Else a look at many workers, each in some phase, reads the times of all for each of them."""
    history = run(until=0)
    tracks = history.spans[PhaseKey("generator", "generate")]
    tracks[STUCK].values = told = Read(tracks[STUCK].values)
    history.workers["generator/worker/phase/age/generate"] = {
        worker: Track.of([STEPS - 1], [history.ends_s], [age_s]) for worker in WORKERS
    }

    assert len([*hung_workers(history)]) == (len(WORKERS) if is_read else 0)
    assert (told.times >= len(WORKERS)) == is_read
