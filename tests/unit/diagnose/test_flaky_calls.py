"""Calls of which a few take far longer since a step, and innocent twins."""

import math
import random
from collections.abc import Callable, Mapping

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Kind
from tests.unit.diagnose.made import AT, Series, changed, made
from tests.unit.diagnose.test_evidence import jittered

IsLong = Callable[[int, int], bool]


def drawn(step: int, env: int) -> random.Random:
    return random.Random(f"{step} {env}")


def now_and_then(step: int, env: int) -> bool:
    return drawn(step, env).random() < 0.15


def calls(
    is_long: IsLong,
    *,
    phase: str = "tool_search",
    times: float = 20.0,
    steps: int = 80,
    rows: Mapping[str, Series] | None = None,
) -> RunHistory:
    def of(env: int) -> Callable[[int], float]:
        def seconds(step: int) -> float:
            noise = math.exp(random.Random(f"noise {step} {env}").gauss(0, 0.3))
            return 0.1 * noise * (times if is_long(step, env) else 1.0)

        return seconds

    spans = {("env", phase, env): of(env) for env in range(6)}
    return made(steps, spans=spans, step_s=lambda _: 2.0, rows=rows)


def test_calls_that_fail_now_and_then_name_their_tool_and_the_first_of_those_steps() -> None:
    (cause,) = diagnose(calls(lambda step, env: step >= AT and now_and_then(step, env))).causes
    assert (cause.kind, cause.worker, cause.phase) == (Kind.SLOW_TOOL, None, "tool_search")
    assert abs((cause.since or 0) - AT) <= 2


@pytest.mark.parametrize(
    "is_long",
    [
        now_and_then,
        lambda step, _: step >= AT and step % 10 == 0,
        lambda step, env: AT <= step < AT + 12 and now_and_then(step, env),
    ],
    ids=["from the beginning on", "in evaluations", "for a while"],
)
def test_calls_are_not_flaky_that_take_long(is_long: IsLong) -> None:
    found = diagnose(calls(is_long)).causes
    assert not [cause for cause in found if "now and then" in cause.words]


def test_generation_of_long_answers_is_no_failing_call() -> None:
    history = calls(lambda step, env: step >= AT and now_and_then(step, env), phase="generate")
    assert not diagnose(history).causes


def test_long_calls_that_cost_little_are_no_fault() -> None:
    some = calls(lambda step, env: step >= AT and now_and_then(step, env), times=4.0)
    assert not diagnose(some).causes


def test_failing_calls_of_one_worker_are_those_of_the_worker() -> None:
    found = diagnose(calls(lambda step, env: env == 2 and step >= AT and now_and_then(step, env)))
    assert [cause.worker for cause in found.causes] == ["env/2"]


@pytest.mark.parametrize("tokens", [1.0, 3.0], ids=["same batch", "larger batch"])
def test_calls_that_are_longer_for_a_larger_batch_do_not_fail_now_and_then(tokens: float) -> None:
    history = calls(
        lambda step, _: step >= AT,
        phase="grading",
        times=3.0,  # about half of them are farther than is called far
        steps=AT + 6,
        rows={"trainer/num_tokens": changed(1_000.0, 1_000.0 * tokens)},
    )
    assert bool(diagnose(history).causes) == (tokens == 1.0)


@pytest.mark.parametrize(("longer", "is_told"), [(1.5, True), (1.0, False)])
def test_few_far_calls_are_trouble_if_steps_take_longer_since_then(
    longer: float, *, is_told: bool
) -> None:
    """By their number alone, they might be of a tail that is long at all times."""

    def of(index: int) -> Series:
        usual = jittered(lambda _: 0.8, 0.05)
        return lambda step: 40.0 if step >= AT and (3 * step + 7 * index) % 19 == 0 else usual(step)

    spans = {("agent", "execute_tool search", index): of(index) for index in range(6)}
    step_s = jittered(changed(6.0, 6.0 * longer), 0.02)
    found = [one.phase for one in diagnose(made(spans=spans, step_s=step_s)).causes]
    assert found == (["execute_tool search"] if is_told else [])
