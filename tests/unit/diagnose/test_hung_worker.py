"""A worker that hangs in its work is named, though the run goes on without it."""

from collections.abc import Iterator, Sequence

import pytest

from otel_rl.diagnose.detectors.hung_worker import held_up_workers, hung_workers
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
    first_s: float = 2.0,
) -> RunHistory:
    """Four workers, of which one reports the age of its phase, or of ``is_in``, to no end.

    Meanwhile, a step takes so much longer; dead ones are lost a few steps before. What a worker
    does first takes longer.
    """
    facts = []
    for step in range(STEPS):
        is_stuck = SINCE <= step < until
        spans = [
            SpanFacts(step, "generator", phase, worker, is_wait, 1, took_s, took_s, 0)
            for worker in WORKERS
            for took_s in [2.0 if step else first_s]
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


def test_what_took_long_as_the_run_began_is_no_bound_of_its_work() -> None:
    """Kernels are compiled then, and caches are empty."""
    (cause,) = stalls(run(first_s=40.0))
    assert (cause.worker, cause.phase) == (STUCK, "generate")


@pytest.mark.parametrize(("first_s", "is_told"), [(80.0, False), (60.0, True)])
def test_a_worker_may_compile_again_for_as_long_as_at_first(
    first_s: float, *, is_told: bool
) -> None:
    """One that was restarted, or that has inputs of another shape. It is in it for 96 s."""
    assert bool(stalls(run(first_s=first_s))) is is_told


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


LONG = 60  # usual times of a piece of work


def once_held_up(
    long: Sequence[str] = (STUCK,),
    *,
    took_s: float = LONG * 0.1,
    others_s: float = 0.1,
    role: str = "generator",
    steps: int = STEPS,
    since: int = SINCE,
) -> RunHistory:
    """Steps of 0.25 s, in which all do 0.1 s of work, but some of them longer, once."""
    facts = []
    for step in range(steps):
        spans = []
        for worker in WORKERS:
            seconds = 0.1
            if step == since:
                seconds = took_s if worker in long else others_s
            name = worker.replace("generator", role)
            spans.append(SpanFacts(step, role, "generate", name, False, 1, seconds, seconds, 0))
        rows = [RowFacts(step, step * S, {"trainer/loss": 1.0})]
        lags = [(worker, 0.1) for worker in WORKERS]
        time_ns = int((1_000 + 0.25 * step) * S)
        facts.append(Facts(time_ns, step, rows, spans=spans, lags=lags))
    return RunHistory(facts)


def held_up(history: RunHistory) -> Sequence[Cause]:
    return [*held_up_workers(history)]


def test_a_worker_that_hung_for_many_short_steps_and_went_on_is_named_after_it() -> None:
    (cause,) = diagnose(once_held_up(), passed=True).causes
    assert (cause.kind, cause.worker, cause.phase) == (Kind.STALL, STUCK, "generate")
    assert cause.until == SINCE
    assert "was in generate for 6 s" in cause.words


@pytest.mark.parametrize(("took_s", "is_told"), [(2.4, False), (2.6, True)])
def test_it_took_as_long_as_a_stall(took_s: float, *, is_told: bool) -> None:
    assert bool(held_up(once_held_up(took_s=took_s))) is is_told


def test_work_that_took_its_peers_nearly_as_long_had_a_reason_of_all() -> None:
    assert not held_up(once_held_up(others_s=LONG * 0.1 / 3))
    assert held_up(once_held_up(others_s=LONG * 0.1 / 5))


def test_half_of_a_role_that_takes_long_is_no_hang_of_one() -> None:
    assert not held_up(once_held_up(WORKERS[:2]))


def test_steps_that_are_too_few_tell_no_usual_time() -> None:
    assert not held_up(once_held_up(steps=6))


@pytest.mark.parametrize(("since", "is_told"), [(0, False), (SINCE, True)])
def test_the_first_work_of_a_worker_may_take_long(since: int, *, is_told: bool) -> None:
    """It compiles what it does, and of several one may take longest."""
    assert bool(held_up(once_held_up(since=since))) is is_told


def test_what_a_worker_hides_while_others_go_on_is_told() -> None:
    (cause,) = stalls(run())
    assert not cause.words.endswith("is lost")  # nothing measures how long steps take
