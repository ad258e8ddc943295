import pytest

from bench.diagnose import Case, Verdict, cases, summary
from otel_rl.demo import DemoSettings
from otel_rl.demo.faults.plan import Fault, Kind

STEPS = 60
EVERY = [*cases(list(Kind), seeds=5, healthy=20, steps=STEPS)]


def verdict(
    kind: Kind,
    said: str,
    *,
    worker: str | None = None,
    at_fault: str | None = None,
    error: str = "",
) -> Verdict:
    case = Case(kind, 0, str(kind), 20, at_fault)
    return Verdict(case, said, worker, 1.0, error)


def test_every_kind_has_its_seeds_and_the_healthy_runs_are_apart() -> None:
    count = {kind: sum(case.kind == kind for case in EVERY) for kind in Kind}
    assert count == {kind: 20 if kind is Kind.NONE else 5 for kind in Kind}


@pytest.mark.parametrize("variants", [False, True])
def test_every_case_is_one_that_the_demo_takes(variants: bool) -> None:
    for case in cases(list(Kind), seeds=5, healthy=20, steps=STEPS, variants=variants):
        fault = Fault.parse(case.fault)
        assert DemoSettings(steps=STEPS, faults=(fault,)).faults == (fault,)
        assert case.step is None or case.step == fault.first_step(STEPS)


def test_the_seed_decides_to_whom_it_happens() -> None:
    workers = {case.worker for case in EVERY if case.kind == Kind.CRASH_LOOP}
    assert len(workers) > 1
    assert workers <= {"generator/0", "generator/1", "generator/2"}


def test_variants_are_not_what_is_usual() -> None:
    unusual = [*cases(list(Kind), seeds=5, healthy=20, steps=STEPS, variants=True)]
    same = {case.kind for case in EVERY} & {
        case.kind for case in unusual if case.fault in {usual.fault for usual in EVERY}
    }
    assert same <= {Kind.NONE, Kind.NAN}


def test_a_case_of_many_processes_asks_for_no_worker() -> None:
    assert {case.worker for case in EVERY if case.kind == Kind.SLOW_GENERATION} == {None}


@pytest.mark.parametrize(
    ("found", "figures"),
    [
        (verdict(Kind.NAN, "nan"), (1, 0, 0, 0)),
        (verdict(Kind.NAN, "nan", worker="trainer/1", at_fault="trainer/1"), (1, 1, 1, 0)),
        (verdict(Kind.NAN, "nan", worker="trainer/0", at_fault="trainer/1"), (1, 1, 0, 0)),
        (verdict(Kind.NAN, "healthy"), (0, 0, 0, 0)),
        (verdict(Kind.NONE, "healthy"), (0, 0, 0, 0)),
        (verdict(Kind.NONE, "no clear cause"), (0, 0, 0, 0)),
        (verdict(Kind.NONE, "straggler"), (0, 0, 0, 1)),
        (verdict(Kind.NONE, "", error="it crashed"), (0, 0, 0, 0)),
    ],
)
def test_what_was_said_is_judged(found: Verdict, figures: tuple[int, int, int, int]) -> None:
    counted = summary([found])
    names = ("right_first", "with_worker", "right_worker", "false_alarms")
    assert tuple(counted[name] for name in names) == figures


def test_a_run_that_could_not_be_judged_is_not_taken_for_a_good_one() -> None:
    assert summary([verdict(Kind.NONE, "", error="it crashed")])["failed"] == 1
    assert not verdict(Kind.NONE, "", error="it crashed").is_right
