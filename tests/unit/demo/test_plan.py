import pytest

from otel_rl.demo import DemoSettings
from otel_rl.demo.faults import Fault, FaultPlan, Kind, kinds_help

PROCESSES = DemoSettings().processes


@pytest.mark.parametrize(
    ("text", "kind", "step", "size", "worker"),
    [
        ("straggler", Kind.STRAGGLER, None, None, None),
        ("straggler@30", Kind.STRAGGLER, 30, None, None),
        ("slow_sync:0.5", Kind.SLOW_SYNC, None, 0.5, None),
        ("reward_bug@7:-1", Kind.REWARD_BUG, 7, -1, None),
        ("nan@trainer/0", Kind.NAN, None, None, "trainer/0"),
        ("network_delay:0.1@reward", Kind.NETWORK_DELAY, None, 0.1, "reward"),
        ("slow_generation@30:4@generator/1", Kind.SLOW_GENERATION, 30, 4, "generator/1"),
    ],
)
def test_a_fault_is_read_as_it_is_written(
    text: str, kind: Kind, step: int | None, size: float | None, worker: str | None
) -> None:
    assert Fault.parse(text) == Fault(kind=kind, step=step, size=size, worker=worker)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slow", "one of none, slow_generation"),
        ("straggler@", "write KIND"),
        ("straggler:fast", "write KIND"),
        ("straggler@generator/0", "straggler affects trainer"),
        ("none@trainer/0", "none affects no process"),
        ("slow_training:0.5", "the size of slow_training is at least 1"),
        ("slow_sync:-1", "the size of slow_sync is at least 0"),
    ],
)
def test_what_cannot_be_done_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Fault.parse(text)


def test_a_worker_that_is_not_there_is_refused_by_the_settings() -> None:
    with pytest.raises(ValueError, match="there is no trainer/7"):
        DemoSettings(faults=(Fault.parse("straggler@trainer/7"),))


@pytest.mark.parametrize(
    ("text", "victims"),
    [
        ("none", []),
        ("slow_generation", [("generator", 0), ("generator", 1), ("generator", 2)]),
        ("slow_generation@generator/1", [("generator", 1)]),
        ("straggler", [("trainer", 1)]),
        ("gc_pauses@reward", [("reward", 1)]),
        ("starvation", [("orchestrator", 0)]),
        ("slow_sync", [("weight_store", 0)]),
    ],
)
def test_a_fault_happens_to_these(text: str, victims: list[tuple[str, int]]) -> None:
    assert Fault.parse(text).victims(PROCESSES) == victims


def test_a_fault_begins_after_two_fifths_of_the_steps() -> None:
    assert Fault(kind=Kind.STRAGGLER).first_step(100) == 40


def test_a_wrong_clock_is_wrong_from_the_beginning() -> None:
    assert Fault(kind=Kind.CLOCK_SKEW).first_step(100) == 1


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_explained_and_can_be_asked_for_by_name_alone(kind: Kind) -> None:
    assert any(line.startswith(f"{kind} ") for line in kinds_help().splitlines())
    assert Fault.parse(kind).first_step(60) >= 1


def test_who_comes_up_later_has_the_troubles_that_have_begun() -> None:
    faults = [Fault.parse("crash_loop@10:5@generator/1"), Fault.parse("kv_thrash@20")]
    plan = FaultPlan(faults, steps=60, processes=PROCESSES)
    assert plan.faults(("generator", 1), step=9) == {}
    assert plan.faults(("generator", 1), step=10) == {Kind.CRASH_LOOP: 5}
    assert plan.faults(("generator", 1), step=20) == {Kind.CRASH_LOOP: 5, Kind.KV_THRASH: 4}
    assert plan.faults(("generator", 0), step=10) == {}


def test_a_fault_begins_once() -> None:
    plan = FaultPlan([Fault.parse("nan@10")], steps=60, processes=PROCESSES)
    begun = [step for step in range(1, 61) if plan.beginning(step)]
    assert begun == [10]


def test_the_config_of_the_run_does_not_say_that_there_is_a_fault() -> None:
    faulty = DemoSettings(faults=(Fault.parse("straggler"),))
    assert faulty.hyper_parameters == DemoSettings().hyper_parameters
