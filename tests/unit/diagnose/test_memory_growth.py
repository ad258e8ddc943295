"""Memory that grows until it does not fit, and memory that grows and is no fault."""

import math
import random
from collections.abc import Callable, Mapping

import pytest

from otel_rl.diagnose.detectors.memory_growth import memory_growth
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.render import in_words
from otel_rl.diagnose.result import Cause, Kind
from tests.support.slow import examples
from tests.unit.diagnose.made import Series, made

GIB = float(1 << 30)
LIMIT = 80 * GIB
DRAWN, INNOCENT = 60, examples(180)


def noisy(of: Series, seed: int, sigma: float) -> Series:
    return lambda step: of(step) * (1 + random.Random(f"{seed} {step}").gauss(0, sigma))


def on_a_process(of: Series, steps: int, limit: float = LIMIT, workers: int = 2) -> RunHistory:
    """The last worker has the memory, the others have as much as at the start."""
    usage, most = "trainer/process/memory/usage", "trainer/process/memory/limit"
    found: dict[tuple[str, str], Series] = {}
    for index in range(workers):
        name = f"trainer/{index}"
        found[usage, name] = of if index == workers - 1 else noisy(lambda _: of(0), index, 0.002)
        found[most, name] = lambda _: limit
    return made(steps, workers=found)


def on_a_device(of: Series, steps: int, phase: str = "") -> RunHistory:
    key = f"owner/memory/usage/{phase}" if phase else "memory/usage"
    rows: Mapping[str, Series] = {
        f"gpu/node1/gpu0/{key}": of,
        "gpu/node1/gpu0/memory/limit": lambda _: LIMIT,
    }
    return made(steps, rows=rows)


def grown(history: RunHistory) -> list[Cause]:
    return [one for one in diagnose(history).causes if one.kind is Kind.MEMORY_GROWTH]


def leak(seed: int) -> tuple[Series, int, int, int]:
    """A leak, the number of steps that have been done, its first step, and when it is full."""
    chance = random.Random(f"leak {seed}")
    usual = chance.uniform(0.1, 0.5) * LIMIT
    since = chance.randrange(0, 120)
    lasts = chance.randrange(30, 200)  # steps until it is full
    per_step = (LIMIT - usual) / lasts
    seen = math.ceil(lasts * chance.uniform(0.68, 0.92))
    jagged = chance.choice([0.0, 0.1, 0.3])  # of what a step needs for a while

    def of(step: int) -> float:
        more = max(0, step - since) * per_step
        return usual + more + jagged * usual * random.Random(f"{seed}{step}").random()

    return noisy(of, seed, 0.004), since + seen, since, since + lasts


def test_leaks_are_named_with_the_worker_and_about_the_step_at_which_they_do_not_fit() -> None:
    right = 0
    for seed in range(DRAWN):
        of, steps, since, full = leak(seed)
        causes = diagnose(on_a_process(of, steps)).causes
        if not causes or causes[0].kind is not Kind.MEMORY_GROWTH:
            continue
        (told,) = [int(word) for word in causes[0].words.split("at about step ")[1].split()[:1]]
        is_in_time = told >= steps - 1 and abs(told - full) <= 0.35 * (full - since)
        right += causes[0].worker == "trainer/1" and is_in_time
    assert right >= 0.95 * DRAWN


def test_it_is_told_before_it_happens() -> None:
    for seed in range(20):
        of, _, since, full = leak(seed)
        in_time = math.floor(full - 0.2 * (full - since))
        looks = range(in_time, since + 11, -1)  # the last ones see the longest part of the leak
        assert any([*memory_growth(on_a_process(of, steps))] for steps in looks), seed


@pytest.mark.parametrize("phase", ["", "train", "offload"])
def test_a_device_is_named_also_by_what_is_left_while_an_engine_sleeps(phase: str) -> None:
    of, steps, _, _ = leak(1)
    (cause,) = grown(on_a_device(of, steps, phase))
    assert (cause.host, cause.phase) == ("node1", phase or None)
    assert "gpu0" in cause.words


def fills_and_levels_off(chance: random.Random) -> Series:
    to, fill = chance.uniform(0.2, 0.6) * LIMIT, chance.uniform(10, 60)
    return lambda step: 0.2 * LIMIT + to * (1 - math.exp(-step / fill))


def fills_evenly_and_is_full(chance: random.Random) -> Series:
    to, fill = chance.uniform(0.1, 0.6) * LIMIT, chance.randrange(10, 60)
    return lambda step: 0.2 * LIMIT + to * min(1.0, step / fill)


def is_fragmented(chance: random.Random) -> Series:
    level, seed = chance.uniform(0.3, 0.9) * LIMIT, chance.random()
    return lambda step: level * (1 + random.Random(f"{seed} {step}").uniform(-0.1, 0.1))


def wanders(chance: random.Random) -> Series:
    at, values = chance.uniform(0.4, 0.8) * LIMIT, list[float]()
    for _ in range(200):
        at = min(0.93 * LIMIT, max(0.3 * LIMIT, at * (1 + chance.gauss(0, 0.01))))
        values.append(at)
    return lambda step: values[step]


def has_a_longer_batch(chance: random.Random) -> Series:
    before, at = chance.uniform(0.2, 0.5) * LIMIT, chance.randrange(20, 120)
    after = before * chance.uniform(1.2, 1.8)
    return lambda step: after if step >= at else before


def is_restarted(chance: random.Random) -> Series:
    every, to = chance.randrange(30, 60), chance.uniform(0.1, 0.3) * LIMIT
    return lambda step: 0.3 * LIMIT + to * (1 - math.exp(-(step % every) / 8))


def follows_the_length_of_answers(chance: random.Random) -> Series:
    every, part = chance.uniform(8, 40), chance.uniform(0.1, 0.4)
    return lambda step: 0.4 * LIMIT * (1 + part * math.sin(step / every))


def grows_too_little_to_matter(chance: random.Random) -> Series:
    level, part = chance.uniform(0.1, 0.4) * LIMIT, chance.uniform(0.0, 0.1)
    return lambda step: level * (1 + part * step / 160)


INNOCENTS: tuple[Callable[[random.Random], Series], ...] = (
    fills_and_levels_off,
    fills_evenly_and_is_full,
    is_fragmented,
    wanders,
    has_a_longer_batch,
    is_restarted,
    follows_the_length_of_answers,
    grows_too_little_to_matter,
)


def test_memory_that_grows_for_a_good_reason_is_no_fault() -> None:
    alarms = []
    for seed in range(INNOCENT):
        of = INNOCENTS[seed % len(INNOCENTS)]
        series = noisy(of(random.Random(f"innocent {seed}")), seed, 0.003)
        on = on_a_process if seed % 2 else on_a_device
        alarms += [(seed, of.__name__) for _ in grown(on(series, 160))]
    assert len(alarms) <= INNOCENT // 60, alarms


def test_a_buffer_that_is_not_full_yet_explains_it() -> None:
    of, steps, _, _ = leak(2)
    usage, most = "replay_buffer/process/memory/usage", "replay_buffer/process/memory/limit"
    workers = {
        (key, f"replay_buffer/{index}"): series
        for key, series in ((usage, of), (most, lambda _: LIMIT))
        for index in range(2)
    }
    rows: Mapping[str, Series] = {
        "replay_buffer/size": lambda step: 10.0 * step,
        "replay_buffer/limit": lambda step: 10.0 * steps + 1,
    }
    assert grown(made(steps, workers=workers, rows=rows)) == []
    assert grown(made(steps, workers=workers)) != []


def test_without_a_limit_nothing_is_told() -> None:
    of, steps, _, _ = leak(3)
    assert grown(made(steps, rows={"gpu/node1/gpu0/memory/usage": of})) == []


def test_a_restart_does_not_hide_a_leak_after_it() -> None:
    of, steps, since, _ = leak(4)
    after = 40

    def series(step: int) -> float:
        return 0.7 * LIMIT if step < after else of(step - after + since)

    (cause,) = grown(on_a_process(series, after + steps - since))
    assert abs((cause.since or 0) - after) <= 4


def test_the_first_step_is_that_of_the_leak_and_not_of_the_start() -> None:
    def series(step: int) -> float:
        return min(0.3, 0.1 + 0.1 * step) * LIMIT + max(0, step - 40) * 0.01 * LIMIT

    (cause,) = grown(on_a_process(noisy(series, 1, 0.003), 95))
    assert abs((cause.since or 0) - 40) <= 8


def test_what_to_look_at_next_is_told() -> None:
    of, steps, _, _ = leak(5)
    assert any(
        "next: what trainer/1 keeps" in line for line in in_words(diagnose(on_a_process(of, steps)))
    )
