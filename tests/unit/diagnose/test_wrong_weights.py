"""Servers whose weights are not those that they were sent, and servers that are sound."""

import math
import random

import pytest

from otel_rl.diagnose.detectors.wrong_weights import proved_equal
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.render import in_words
from otel_rl.diagnose.result import Cause, Kind
from tests.support.slow import examples
from tests.unit.diagnose.made import AT, Series, changed, made

DRAWN, INNOCENT = 60, examples(180)
TRL = "trainer/sampling/sampling_logp_difference/mean"


def checks(
    states: dict[int, list[str]], steps: int, rows: dict[str, Series] | None = None
) -> RunHistory:
    """What each server finds in each step: a state, or nothing where it is ''."""

    def number(index: int, state: str) -> Series:
        return lambda step: float(states[index][step] == state)

    workers = {
        (f"generator/policy/weights/checked/{state}", f"generator/{index}"): number(index, state)
        for index in states
        for state in ("equal", "stale", "different", "unsigned")
    }
    return made(steps, workers=workers, rows=rows)


def wrong(history: RunHistory) -> list[Cause]:
    return [one for one in diagnose(history).causes if one.kind is Kind.WRONG_WEIGHTS]


def test_a_server_that_keeps_its_weights_or_has_others_is_named() -> None:
    right = 0
    for seed in range(DRAWN):
        chance = random.Random(f"wrong {seed}")
        servers, steps = chance.randrange(1, 6), chance.randrange(20, 120)
        every, since = chance.randrange(1, 5), chance.randrange(0, steps - 12)
        state, is_all = chance.choice(["stale", "different"]), chance.random() < 0.3
        victim = chance.randrange(servers)
        states = {
            index: [
                (state if (is_all or index == victim) and step >= since else "equal")
                if step % every == 0
                else ""
                for step in range(steps)
            ]
            for index in range(servers)
        }
        causes = diagnose(checks(states, steps)).causes
        if not causes or causes[0].kind is not Kind.WRONG_WEIGHTS:
            continue
        named = causes[0].worker == f"generator/{victim}"
        is_named = servers == 1 or named != is_all
        words = "an earlier push" if state == "stale" else "none that it was sent"
        right += (
            is_named and abs((causes[0].since or 0) - since) <= every and words in causes[0].words
        )
    assert right >= 0.95 * DRAWN


def test_sound_servers_are_not_named() -> None:
    alarms = []
    for seed in range(INNOCENT):
        chance = random.Random(f"sound {seed}")
        servers, steps = chance.randrange(1, 6), chance.randrange(20, 120)
        bad = chance.choice([0.0, 0.05, 0.2])  # overtaken pulls: told once, and then equal again
        share = chance.choice([0.0, 1.0])  # unsigned alone, or checked
        states: dict[int, list[str]] = {}
        for index in range(servers):
            of = ["unsigned" if share else "equal"] * steps
            if not share:
                for step in range(steps):
                    if of[step - 1] == "equal" and chance.random() < bad:
                        of[step] = chance.choice(["stale", "different"])
            states[index] = of
        alarms += [seed for _ in wrong(checks(states, steps))]
    assert len(alarms) <= INNOCENT // 60


def test_a_server_that_was_repaired_is_not_named() -> None:
    of = ["stale" if 20 <= step < 30 else "equal" for step in range(60)]
    assert wrong(checks({0: of, 1: ["equal"] * 60}, 60)) == []


def gap(step: int) -> float:
    noise = math.exp(random.Random(f"gap {step}").gauss(0, 0.15))
    return changed(0.012, 0.2)(step) * noise


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        ("stale", Kind.WRONG_WEIGHTS, "an earlier push"),
        ("equal", Kind.LOGPROB_MISMATCH, "so the engines differ"),
        ("unsigned", Kind.LOGPROB_MISMATCH, "nobody can tell without lineage.verify"),
    ],
)
def test_a_gap_of_log_probabilities_is_split_into_weights_and_engines(
    state: str, kind: Kind, words: str
) -> None:
    of = [state if step >= AT or state == "unsigned" else "equal" for step in range(80)]
    (cause,) = diagnose(checks({0: of, 1: of}, 80, rows={TRL: gap})).causes
    assert cause.kind is kind
    assert words in cause.words


@pytest.mark.parametrize(("equal", "proved"), [(0, False), (2, False), (9, False)])
def test_weights_that_differ_to_the_end_are_proved_to_differ(equal: int, proved: bool) -> None:
    of = ["equal" if step < equal else "different" for step in range(12)]
    assert proved_equal(checks({0: of}, 12)) is proved


def test_few_checks_that_were_equal_prove_nothing() -> None:
    assert proved_equal(checks({0: ["equal", "equal", "unsigned"]}, 3)) is None
    assert proved_equal(checks({0: ["equal"] * 3}, 3)) is True


def test_what_to_look_at_next_is_told() -> None:
    history = checks({0: ["stale"] * 30, 1: ["equal"] * 30}, 30)
    assert any(
        "next: how generator/0 loads weights" in line for line in in_words(diagnose(history))
    )
