"""A diagnosis compares steps of one attempt, and knows the losses of all."""

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts, StepFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.result import Kind

S = 1_000_000_000
TRAIN = PhaseKey("trainer", "train")


def facts(attempt: int, step: int, at_s: float, took_s: float, **more: object) -> Facts:
    """What became known with one step that took so long."""
    time_ns = 1_000 * S + int(at_s * S)
    return Facts(
        time_ns,
        step,
        [RowFacts(step, time_ns, {"trainer/loss": took_s}, attempt)],
        [
            StepFacts(
                step, time_ns, [("trainer", "train", "trainer/0", took_s)], [], [], "", attempt
            )
        ],
        {"trainer/loss": [WorkerFacts("trainer/0", step, 1, took_s, 0)]},
        [SpanFacts(step, "trainer", "train", "trainer/0", False, 1, took_s, took_s, 0)],
        attempt=attempt,
        **more,  # type: ignore[arg-type]  # as the caller says
    )


def read(*parts: Facts) -> RunHistory:
    return RunHistory(Facts.decode(one.encode()) for one in parts)


FIRST = [facts(1, step, step, 1.0) for step in range(1, 101)]


def again(took_s: float, last: int = 120) -> list[Facts]:
    """Steps from 60 on, on another machine."""
    return [facts(2, step, 150 + step * took_s, took_s) for step in range(60, last + 1)]


def test_a_history_is_that_of_the_newest_attempt() -> None:
    history = read(*FIRST, *again(3.0))
    alone = read(*again(3.0))
    for name in ("attempt", "first", "last", "steps", "spans", "workers", "measurements", "counts"):
        mine, theirs = getattr(history, name), getattr(alone, name)
        if name in {"spans", "workers", "measurements", "counts"}:
            mine, theirs = (
                {key: {of: (t.steps, t.values) for of, t in one.items()} for key, one in it.items()}
                for it in (mine, theirs)
            )
        assert mine == theirs, name
    assert (history.attempt, history.first, history.last) == (2, 60, 120)
    assert [*history.rows["trainer/loss"].steps] == list(range(60, 121))
    assert sorted(history.begun_s) == list(range(60, 121))


def test_an_attempt_on_a_slower_machine_is_not_slower_than_itself() -> None:
    report = diagnose(read(*FIRST, *again(3.0)))
    assert (report.causes, report.symptoms) == ([], [])


def test_the_first_record_of_an_attempt_may_hold_the_end_of_the_one_before() -> None:
    first, *others = again(1.0)
    old, old_span = WorkerFacts("trainer/0", 100, 1, 50.0, 0), first.spans[0]._replace(step=100)
    mixed = first._replace(
        workers={"trainer/loss": [old, *first.workers["trainer/loss"]]},
        spans=[old_span, *first.spans],
    )
    history = read(*FIRST, mixed, *others)
    assert max(history.workers["trainer/loss"]["trainer/0"].values) == 1.0
    assert [*history.spans[TRAIN]["trainer/0"].steps] == list(range(60, 121))


def test_workers_that_are_lost_in_each_attempt_fail_again_and_again() -> None:
    parts = [*FIRST]
    for attempt in (2, 3, 4):
        parts.append(facts(attempt, 60, 200 * attempt, 1.0, lost=["trainer/0"]))
        parts += [facts(attempt, s, 200 * attempt + s - 60, 1.0) for s in range(61, 80)]
    report = diagnose(read(*parts))
    assert [cause.kind for cause in report.causes] == [Kind.CRASH_LOOP]
