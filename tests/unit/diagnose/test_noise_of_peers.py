"""The noise of a few values is that of all peers: eight of one worker agree by chance."""

import math
import random

import pytest

from otel_rl.diagnose.detectors.slow_phases import slow_work
from tests.unit.diagnose.made import Series, made


def drawn(chance: random.Random, steps: int, noise: float, factor: float) -> Series:
    """Seconds of each step, longer by a factor from the middle on."""
    took = [4.0 * math.exp(chance.gauss(0, noise)) for _ in range(steps)]
    return lambda step: took[step] * (factor if step >= steps // 2 else 1.0)


def named(
    seed: int, noise: float, factor: float = 1.0, *, ranks: int = 9, steps: int = 10
) -> list[str | None]:
    chance = random.Random(seed)
    spans = {
        ("trainer", "train", rank): drawn(chance, steps, noise, factor if rank == 3 else 1.0)
        for rank in range(ranks)
    }
    history = made(steps, step_s=lambda step: max(of(step) for of in spans.values()), spans=spans)
    return [one.worker for one in slow_work(history)]


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2, 0.3])
def test_none_of_many_ranks_is_a_straggler_by_chance_after_a_few_steps(noise: float) -> None:
    assert [one for seed in range(60) for one in named(seed, noise)] == []


@pytest.mark.parametrize("steps", [12, 17])
def test_two_ranks_are_no_slower_together_by_chance(steps: int) -> None:
    assert [one for seed in range(300) for one in named(seed, 0.15, ranks=2, steps=steps)] == []


@pytest.mark.parametrize(("noise", "factor"), [(0.03, 1.4), (0.1, 3.0)])
def test_a_rank_that_is_slower_by_more_than_the_noise_is_named_as_soon(
    noise: float, factor: float
) -> None:
    found = [named(seed, noise, factor) for seed in range(30)]
    assert sum(one == ["trainer/3"] for one in found) >= 29


def on_a_busy_machine(seed: int, factor: float) -> list[str]:
    """Phases that are named of a run whose machine becomes busy, and its training slower still."""
    chance = random.Random(f"busy-{seed}")
    spans = {
        (role, phase, index): drawn(chance, 60, 0.8, of)
        for role, phase, of in (
            ("trainer", "train", 2 * factor),
            ("trainer", "reference", 1.9),
            ("generator", "generate", 2.2),
            ("generator", "tokenize", 2.1),
            ("reward", "reward", 1.8),
        )
        for index in range(2)
    }
    history = made(60, step_s=lambda step: spans["trainer", "train", 0](step), spans=spans)
    return [str(one.phase) for one in slow_work(history)]


def test_work_that_takes_many_times_as_long_is_named_though_it_varies_by_as_many_seconds() -> None:
    assert [seed for seed in range(30) if "train" not in on_a_busy_machine(seed, 4.0)] == []
    assert [one for seed in range(60) for one in on_a_busy_machine(seed, 1.0)] == []
