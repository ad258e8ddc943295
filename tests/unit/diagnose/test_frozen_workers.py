"""A process that is stopped, or dead, is named, not those who wait for it.

As in a job of real processes under SIGSTOP and SIGKILL.
"""

import time
from collections.abc import Collection, Mapping, Sequence

import pytest

from otel_rl.diagnose.detectors.frozen_workers import frozen_workers
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.explain import unexplained
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause, Evidence, Kind, Verdict
from otel_rl.records import ExperimentStatus, WorkerFailure

S = 1_000_000_000
STEPS = 40
STANDS_S = 20
RANKS = ("trainer/0", "trainer/1", "trainer/2")
WORKERS = (*RANKS, "generator/0", "reward/0")


def snapshot(
    at_s: int, step: int, silent: Collection[str] = (), ages: Mapping[tuple[str, str], float] = {}
) -> Facts:
    """One second of a run: all report the time in their collector; ranks train a step."""
    alive = [worker for worker in WORKERS if worker not in silent]
    workers = {
        f"{worker.partition('/')[0]}/worker/gc/time": [WorkerFacts(worker, None, 1, 0.0, 0)]
        for worker in alive
    }
    for (worker, phase), age_s in ages.items():
        key = f"{worker.partition('/')[0]}/worker/phase/age/{phase}"
        workers[key] = [WorkerFacts(worker, None, 1, age_s, 0)]
    return Facts(
        (1_000 + at_s) * S,
        step,
        workers=workers,
        lags=[(worker, 0.1) for worker in alive],
        status=ExperimentStatus.RUNNING,
    )


def trained(facts: Facts) -> Facts:
    """The same with a step of all ranks in it."""
    spans = [
        SpanFacts(facts.step, "trainer", "train", rank, False, 1, 0.9, 0.9, 0) for rank in RANKS
    ]
    return facts._replace(spans=spans)


def run(
    silent: Collection[str],
    ages: Mapping[tuple[str, str], float] = {},
    *,
    goes_on: bool,
    stands_s: int = STANDS_S,
) -> list[Facts]:
    """A run of steps of a second that stands still, with these workers silent, and may go on."""
    facts = [trained(snapshot(step, step)) for step in range(STEPS)]
    for at in range(stands_s):
        grown = {place: age_s + at for place, age_s in ages.items()}
        facts.append(snapshot(STEPS + at, STEPS - 1, silent, grown))
    if goes_on:
        more = range(STEPS, 2 * STEPS)
        facts += [trained(snapshot(stands_s + step, step)) for step in more]
    return facts


@pytest.mark.parametrize("rank", RANKS)
def test_a_frozen_rank_is_named_after_it_went_on(rank: str) -> None:
    report = diagnose(RunHistory(run({rank}, goes_on=True)), passed=True)
    (cause,) = report.causes
    assert (cause.kind, cause.worker) == (Kind.STALL, rank)
    assert (cause.since, cause.until) == (STEPS - 1, STEPS)
    assert "frozen, or cut off" in cause.words


@pytest.mark.parametrize(
    "silent",
    [(), ("trainer/0", "generator/0", "reward/0"), WORKERS],
    ids=["an evaluation", "of SDKs that send changes only", "a suspended job"],
)
def test_a_pause_in_which_no_few_are_silent_is_no_fault(silent: Collection[str]) -> None:
    report = diagnose(RunHistory(run(silent, goes_on=True)), passed=True)
    assert report.verdict is Verdict.HEALTHY


def test_workers_that_send_only_spans_are_not_frozen_in_an_evaluation() -> None:
    silent = ("generator/0", "reward/0")
    facts = [
        one._replace(workers={key: of for key, of in one.workers.items() if "trainer" in key})
        for one in run(silent, goes_on=True, stands_s=60)
    ]
    assert diagnose(RunHistory(facts), passed=True).verdict is Verdict.HEALTHY


def of_stock_sdks(facts: Sequence[Facts]) -> list[Facts]:
    """The same of workers that report nothing of themselves."""
    return [one._replace(workers={}) for one in facts]


@pytest.mark.parametrize("rank", RANKS)
def test_a_frozen_rank_of_a_stock_sdk_is_named_as_its_peers_go_on_to_report(rank: str) -> None:
    history = RunHistory(of_stock_sdks(run({rank}, goes_on=True)))
    (cause,) = diagnose(history, passed=True).causes
    assert (cause.kind, cause.worker) == (Kind.STALL, rank)


def test_a_worker_of_a_stock_sdk_that_often_has_nothing_to_tell_is_not_frozen() -> None:
    facts = of_stock_sdks(run({"trainer/1"}, goes_on=True))
    facts[10:20] = [
        one._replace(lags=[(worker, s) for worker, s in one.lags if worker != "trainer/1"])
        for one in facts[10:20]
    ]
    history = RunHistory(facts)
    assert "frozen" not in str([one.words for one in diagnose(history, passed=True).causes])


def test_a_silence_of_a_stock_sdk_that_is_as_long_as_those_of_its_peers_is_no_freeze() -> None:
    """Its answers are long by chance, and its SDK sends what has changed alone."""
    facts = of_stock_sdks(run({"trainer/1"}, goes_on=True))
    facts[10:26] = [
        one._replace(lags=[(worker, s) for worker, s in one.lags if worker != "trainer/2"])
        for one in facts[10:26]
    ]
    assert "frozen" not in str(diagnose(RunHistory(facts), passed=True).causes)


def test_many_workers_that_are_silent_together_take_little_time() -> None:
    generators = [f"generator/{n}" for n in range(300)]
    facts = []
    for at in range(400):
        is_quiet = at % 100 >= 80
        alive = ["trainer/0"] if is_quiet else ["trainer/0", *generators]
        one = snapshot(at, at - at % 100 + 80 if is_quiet else at)
        facts.append(one._replace(lags=[(worker, 0.1) for worker in alive]))
    history = RunHistory(facts)
    begun_s = time.thread_time()
    assert not [*frozen_workers(history)]
    assert time.thread_time() - begun_s < 2


def test_a_worker_that_was_replaced_is_a_known_failure_and_not_frozen() -> None:
    facts = run({"generator/0"}, goes_on=True)
    failure = WorkerFailure("generator/0", (1_000 + STEPS) * S, step=STEPS - 1, recovery_s=20.0)
    facts[-STEPS] = facts[-STEPS]._replace(lost=["generator/0"], failures=[failure])
    assert not diagnose(RunHistory(facts), passed=True).causes


@pytest.mark.parametrize("told_s", [0, 4])
def test_a_worker_that_left_in_order_and_came_back_was_not_frozen(told_s: int) -> None:
    """As one that is moved to another node: the run is slower without it.

    It tells its end in its last export, so rows have it while it is heard.
    """
    facts = run({"generator/0"}, goes_on=True, stands_s=60)
    for at, one in enumerate(facts):
        is_away = STEPS - told_s <= at < STEPS + 60
        row = RowFacts(one.step, one.time_ns, {"service/generator/expected": 0.0 if is_away else 1})
        facts[at] = one._replace(rows=[row] if at % 2 == 0 else [])
    assert not diagnose(RunHistory(facts), passed=True).causes


def test_a_worker_that_left_and_is_back_was_not_frozen_before_a_row_counts_it_again() -> None:
    """A row of what is expected comes every ten seconds or so."""
    facts = run({"generator/0"}, goes_on=True)
    for at, one in enumerate(facts):
        is_away = STEPS - 1 <= at < STEPS + STANDS_S
        row = RowFacts(one.step, one.time_ns, {"service/generator/expected": 1.0 if is_away else 2})
        facts[at] = one._replace(rows=[row] if at < STEPS + STANDS_S else [])
    seen = facts[: STEPS + STANDS_S + 5]
    assert not diagnose(RunHistory(seen), passed=True).causes


def test_a_worker_that_left_for_good_excuses_no_peer_that_freezes_soon_after() -> None:
    facts = run({"generator/0"}, goes_on=True)
    for at, one in enumerate(facts):
        row = RowFacts(
            one.step, one.time_ns, {"service/generator/expected": 2.0 if at < STEPS - 2 else 1.0}
        )
        facts[at] = one._replace(rows=[row])
    (cause,) = diagnose(RunHistory(facts), passed=True).causes
    assert (cause.kind, cause.worker) == (Kind.STALL, "generator/0")


def test_in_a_stall_a_silent_worker_is_named_and_not_who_waits_for_it() -> None:
    """The call of a dead reward worker is work of its caller, by what that knows of it."""
    ages = {("generator/0", "rollout"): 1.0}
    (cause,) = diagnose(RunHistory(run({"reward/0"}, ages, goes_on=False))).causes
    assert (cause.kind, cause.worker) == (Kind.STALL, "reward/0")
    assert "reported nothing for" in cause.words


@pytest.mark.parametrize("more", [0, 4])
def test_errors_long_after_the_loss_of_a_worker_follow_from_it(more: int) -> None:
    """A buffer had some more batches ready; then all stood still until a person ended them."""
    facts = run({"reward/0"}, goes_on=False, stands_s=60)
    dead = WorkerFailure("reward/0", (1_000 + STEPS) * S, step=STEPS - 1 - more)
    facts[-30] = facts[-30]._replace(lost=["reward/0"], failures=[dead])
    end_ns = facts[-1].time_ns
    errors = [WorkerFailure(rank, end_ns, "JSONDecodeError", step=STEPS - 1) for rank in RANKS]
    facts.append(
        Facts(
            end_ns + S, STEPS - 1, lost=[*RANKS], failures=errors, status=ExperimentStatus.CRASHED
        )
    )
    cause = diagnose(RunHistory(facts)).causes[0]
    assert (cause.kind, cause.worker) == (Kind.CRASH, "reward/0")


def test_an_error_among_steps_is_the_cause_of_a_crash_though_a_worker_was_lost_before() -> None:
    facts = [trained(snapshot(step, step, {"reward/0"} if step > 20 else ())) for step in range(60)]
    dead = WorkerFailure("reward/0", 1_020 * S, step=20)
    facts[40] = facts[40]._replace(lost=["reward/0"], failures=[dead])
    error = WorkerFailure("trainer/1", 1_060 * S, "ValueError", step=59)
    facts.append(
        Facts(1_061 * S, 59, lost=["trainer/1"], failures=[error], status=ExperimentStatus.CRASHED)
    )
    assert diagnose(RunHistory(facts)).causes[0].worker == "trainer/1"


def test_an_error_in_the_long_step_in_which_a_worker_was_lost_is_the_cause_of_a_crash() -> None:
    """The step would have taken that long with it, too: nobody stood still."""
    facts = [trained(snapshot(60 * step, step)) for step in range(STEPS)]
    begun_s = 60 * (STEPS - 1)
    facts += [snapshot(begun_s + n, STEPS - 1, {"reward/0"}) for n in range(1, 40)]
    dead = WorkerFailure("reward/0", (1_000 + begun_s + 5) * S, step=STEPS - 1)
    facts[-10] = facts[-10]._replace(lost=["reward/0"], failures=[dead])
    end_ns = facts[-1].time_ns
    error = WorkerFailure("trainer/1", end_ns, "ValueError", step=STEPS - 1)
    status = ExperimentStatus.CRASHED
    facts.append(Facts(end_ns + S, STEPS - 1, lost=["trainer/1"], failures=[error], status=status))
    assert diagnose(RunHistory(facts)).causes[0].worker == "trainer/1"


def test_a_frozen_generator_explains_the_steps_that_wait_for_it_in_vain() -> None:
    """Its callers wait until their time is up, so that steps come, and take longer."""
    facts = [trained(snapshot(step, step)) for step in range(STEPS)]
    slow = range(STEPS, STEPS + 10)
    for step in slow:
        at_s = STEPS + 3 * (step - STEPS)
        facts += [snapshot(at_s + n, step, {"generator/0"}) for n in (0, 1)]
        spans = [SpanFacts(step, "trainer", "weight_sync", "trainer/0", False, 1, 2.0, 2.0, 0)]
        facts.append(trained(snapshot(at_s + 2, step, {"generator/0"})))
        facts[-1] = facts[-1]._replace(spans=[*facts[-1].spans, *spans])
    facts += [trained(snapshot(STEPS + 30 + n, STEPS + 10 + n)) for n in range(20)]
    causes = diagnose(RunHistory(facts), passed=True).causes
    assert (causes[0].kind, causes[0].worker) == (Kind.STALL, "generator/0")


def test_reports_that_arrive_late_do_not_make_their_generator_stale() -> None:
    """After an outage each exporter comes back in its turn, and sends what it has kept."""
    facts = []
    for at in range(120):
        is_out, is_behind = 40 <= at < 50, 40 <= at < 80
        trainers = [WorkerFacts("trainer/0", at, 1, float(at), 0)]
        late_s = 0.1
        version = float(at)
        if is_behind and not is_out:
            late_s = (80 - at) / 3  # the oldest first, four for each three that are new
            version = float(at - int(late_s))
        generators = [WorkerFacts("generator/0", None, 1, version, 0)]
        one = trained(snapshot(at, at))
        workers = {**one.workers, "trainer/policy/version": trainers}
        lags = [("trainer/0", 0.1), ("generator/0", late_s)]
        if is_out:
            workers, lags = {}, []
        else:
            workers["generator/policy/version"] = generators
        facts.append(one._replace(workers=workers, lags=lags))
    assert not [
        cause
        for end in range(60, 121, 5)
        for cause in diagnose(RunHistory(facts[:end])).causes
        if cause.kind is Kind.STALE_POLICY
    ]


@pytest.mark.parametrize("worker", ["trainer/0", "generator/0"])
def test_a_clock_that_is_set_back_makes_no_generator_stale(worker: str) -> None:
    facts = []
    for at in range(160):
        one = trained(snapshot(at, at))
        workers = {
            **one.workers,
            "trainer/policy/version": [WorkerFacts("trainer/0", at, 1, float(at), 0)],
            "generator/policy/version": [WorkerFacts("generator/0", None, 1, float(at), 0)],
        }
        behind_s = 10.0 if at >= 80 else 0.0
        lags = [(name, lag_s + behind_s * (name == worker)) for name, lag_s in one.lags]
        facts.append(one._replace(workers=workers, lags=lags))
    assert not [
        cause
        for end in range(90, 161, 10)
        for cause in diagnose(RunHistory(facts[:end])).causes
        if cause.kind is Kind.STALE_POLICY
    ]


@pytest.mark.parametrize("delay_s", [0.1, 30.0])
def test_an_outage_on_the_way_is_told_from_a_standstill(delay_s: float) -> None:
    facts = run(WORKERS, goes_on=True)
    at = STEPS + STANDS_S
    facts[at] = facts[at]._replace(lags=[(worker, delay_s) for worker in WORKERS])
    (words,) = [one for one in diagnose(RunHistory(facts)).changes if "no worker was heard" in one]
    assert ("the reports came later" in words) == (delay_s > 1)


RESET = (
    "[pair.cc:545] Read error [127.0.0.1]:56986: Connection reset by peer. This is typically "
    "caused by a remote worker hanging."
)


@pytest.mark.parametrize("is_missed", [False, True])
def test_a_killed_rank_is_named_and_not_who_lost_its_connection(*, is_missed: bool) -> None:
    """The collectives of PyTorch on CPUs raise plain runtime errors."""
    facts = [trained(snapshot(step, step)) for step in range(STEPS)]
    facts += [snapshot(STEPS + n, STEPS - 1, {"trainer/2"}) for n in range(6)]
    errors = [
        WorkerFailure(rank, facts[-4].time_ns, "RuntimeError", RESET, STEPS, is_in_step=True)
        for rank in RANKS[:2]
    ]
    facts.append(snapshot(STEPS + 6, STEPS - 1, RANKS)._replace(lost=[*RANKS[:2]], failures=errors))
    if is_missed:
        dead = WorkerFailure("trainer/2", facts[STEPS - 1].time_ns, step=STEPS - 2)
        facts += [snapshot(STEPS + n, STEPS - 1, RANKS) for n in range(7, 20)]
        later = snapshot(STEPS + 20, STEPS - 1, RANKS)
        facts.append(later._replace(lost=["trainer/2"], failures=[dead]))
    cause = diagnose(RunHistory(facts)).causes[0]
    assert (cause.kind, cause.worker) == (Kind.CRASH, "trainer/2")


@pytest.mark.parametrize(("slower_s", "is_named_alone"), [(0.2, True), (0.02, False)])
def test_peers_that_wait_for_a_straggler_in_their_backward_pass_are_no_second_cause(
    slower_s: float, *, is_named_alone: bool
) -> None:
    """As in distributed data parallel training, which overlaps collectives with that pass."""

    def of(phase: str, workers: Collection[str], before: float, by: float) -> list[Evidence]:
        return [
            Evidence("time", f"phase/trainer/{phase}", who, before, before + by) for who in workers
        ]

    slow = of("forward", RANKS[1:2], 0.13, slower_s)
    straggler = Cause(Kind.STRAGGLER, "", "trainer", RANKS[1], "forward", 53, evidence=slow)
    victims = of("backward", (RANKS[0], RANKS[2]), 0.04, 0.23)
    waits = Cause(Kind.SLOW_TRAINING, "", "trainer", None, "backward", 55, evidence=victims)
    found = [*unexplained([waits, straggler])]
    assert ([straggler] == found) == is_named_alone
