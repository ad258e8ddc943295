"""One slow tool among several, and a slow source of data."""

import math
import random

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.render import in_words
from otel_rl.diagnose.result import Kind
from tests.unit.diagnose.made import AT, Series, changed, made


def noisy(of: Series, name: object, sigma: float = 0.3) -> Series:
    return lambda step: of(step) * math.exp(random.Random(f"{name} {step}").gauss(0, sigma))


def causes(history: RunHistory) -> list[tuple[Kind, str | None, str | None, int | None]]:
    return [(one.kind, one.worker, one.phase, one.since) for one in diagnose(history).causes]


def calls(search: float, python: float = 1.0, *, only: int | None = None) -> RunHistory:
    """Four environments with three tools, of which two may be slower from a step on."""
    times = {"search": (0.3, search), "python": (0.2, python), "browser": (0.5, 1.0)}
    workers = {
        (f"env/env/step/duration/{tool}", f"env/{index}"): noisy(
            changed(usual, usual * (slower if only in {None, index} else 1.0)), (tool, index)
        )
        for tool, (usual, slower) in times.items()
        for index in range(4)
    }
    spans = {("env", "env_step", n): noisy(changed(1.0, 1.0), n) for n in range(4)}
    return made(workers=workers, spans=spans, step_s=changed(4.0, 4.0))


def test_the_tool_whose_calls_take_longer_is_named() -> None:
    ((kind, worker, tool, since),) = causes(calls(3.5))
    assert (kind, worker, tool) == (Kind.SLOW_TOOL, None, "search")
    assert abs((since or 0) - AT) <= 2


def test_tools_that_become_slower_together_are_told_as_one_fault() -> None:
    (cause,) = diagnose(calls(4.0, 3.0)).causes
    assert (cause.kind, cause.phase) == (Kind.SLOW_TOOL, "search")
    assert "so do those of python" in cause.words


def test_the_only_worker_whose_calls_take_longer_is_named() -> None:
    found = [one[:3] for one in causes(calls(14.0, only=2))]
    assert found == [(Kind.STRAGGLER, "env/2", "search")]


@pytest.mark.parametrize(
    "history",
    [calls(1.0), calls(1.3), calls(1.0, 1.25)],
    ids=["as before", "a little", "of another one"],
)
def test_calls_are_no_fault_if_they_take(history: RunHistory) -> None:
    assert causes(history) == []


@pytest.mark.parametrize(("times", "is_told"), [(1, True), (0.01, False)])
def test_a_tool_that_is_rarely_called_costs_nothing(times: float, *, is_told: bool) -> None:
    def of(index: int) -> Series:
        return noisy(changed(0.3 * times, 1.2 * times), index)

    workers = {("env/execute_tool/duration/search", f"env/{n}"): of(n) for n in range(4)}
    spans = {("env", "env_step", n): noisy(changed(1.0, 1.0), n) for n in range(4)}
    history = made(workers=workers, spans=spans, step_s=changed(4.0, 4.0))
    assert bool(causes(history)) == is_told


def test_spans_of_each_tool_name_the_slow_one_whatever_it_is_called() -> None:
    tools = {"execute_tool search": 3.0, "execute_tool code_verifier": 1.0}
    spans = {
        ("env", tool, index): noisy(changed(0.3, 0.3 * slower), (tool, index), 0.1)
        for tool, slower in tools.items()
        for index in range(3)
    }
    found = [one[:3] for one in causes(made(spans=spans, step_s=changed(1.0, 1.7)))]
    assert found == [(Kind.SLOW_TOOL, None, "execute_tool search")]


@pytest.mark.parametrize(("role", "kind"), [("env", Kind.SLOW_TOOL), ("reward", Kind.SLOW_REWARD)])
def test_an_environment_of_scorers_is_their_scoring(role: str, kind: Kind) -> None:
    spans = {(role, "env_step", n): noisy(changed(1.0, 3.0), n) for n in range(2)}
    found = causes(made(spans=spans, step_s=changed(4.0, 6.0)))
    assert [one[0] for one in found] == [kind]


@pytest.mark.parametrize("phase", ["load_data", "dataloader", "fetch_prompts", "data_preprocess"])
def test_a_slow_source_of_data_is_told_as_such(phase: str) -> None:
    spans = {("trainer", phase, n): noisy(changed(0.1, 0.8), (phase, n), 0.1) for n in range(3)}
    report = diagnose(made(spans=spans, step_s=changed(1.0, 1.7)))
    assert [one.kind for one in report.causes] == [Kind.SLOW_DATA]
    assert any("storage" in line for line in in_words(report))


def test_a_wait_for_a_data_loader_is_no_want_of_samples() -> None:
    spans = {("trainer", "dataloader_wait", n): noisy(changed(0.05, 0.8), n, 0.1) for n in range(3)}
    spans |= {("trainer", "train", n): noisy(changed(0.5, 0.5), ("t", n), 0.05) for n in range(3)}
    history = made(spans=spans, step_s=changed(1.0, 1.8), waits=["dataloader_wait"])
    assert [one.kind for one in diagnose(history).causes] == [Kind.SLOW_DATA]


def test_one_rank_that_waits_for_its_data_is_a_straggler() -> None:
    spans = {
        ("trainer", "load_data", n): noisy(changed(0.1, 0.9 if n == 1 else 0.1), n, 0.1)
        for n in range(4)
    }
    found = [one[:2] for one in causes(made(spans=spans, step_s=changed(1.0, 1.8)))]
    assert found == [(Kind.STRAGGLER, "trainer/1")]


def test_a_tool_whose_agents_measure_nothing_else_is_a_tool() -> None:
    times = {"search": (0.8, 1.0), "python": (0.4, 9.0)}
    workers = {
        (f"agent/tool/duration/{tool}", f"agent/{index}"): noisy(
            changed(usual, usual * slower), (tool, index)
        )
        for tool, (usual, slower) in times.items()
        for index in range(4)
    }
    found = [one[:3] for one in causes(made(workers=workers, step_s=changed(4.0, 8.0)))]
    assert found == [(Kind.SLOW_TOOL, None, "execute_tool python")]


@pytest.mark.parametrize("call_s", [0.498, 0.502, 0.51])
def test_a_part_that_does_nothing_but_call_a_tool_is_no_cause(call_s: float) -> None:
    spans = {("env", "env_step", n): noisy(changed(0.5, 4.0), n, 0.001) for n in range(2)} | {
        ("generator", "rl.rollout", n): noisy(changed(call_s, call_s + 3.5), n + 2, 0.001)
        for n in range(4)
    }
    found = [one[:3] for one in causes(made(spans=spans, step_s=changed(7.0, 10.5)))]
    assert found == [(Kind.SLOW_TOOL, None, "env_step")]


def test_an_agent_that_asks_three_times_takes_as_many_times_as_long() -> None:
    spans = {("generator", "generate", n): noisy(changed(1.5, 3.3), n, 0.02) for n in range(2)} | {
        ("agent", "invoke_agent", n): noisy(changed(4.5, 9.9), n + 2, 0.02) for n in range(4)
    }
    found = [one[:3] for one in causes(made(spans=spans, step_s=changed(6.0, 11.4)))]
    assert found == [(Kind.SLOW_GENERATION, None, "generate")]
