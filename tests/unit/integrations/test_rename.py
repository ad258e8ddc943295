"""The rules mean what the registry means."""

import re
import tomllib
from importlib.resources import files
from string import Formatter

import pytest

from otel_rl.integrations.rename import Meaning, Rule, Rules, rules_of
from otel_rl.semconv.names import METRICS, PHASES, RL_STATISTIC
from otel_rl.semconv.spec import Instrument

FILE = files("otel_rl.integrations").joinpath("rename.toml")
TABLE: dict[str, list[dict[str, object]]] = {
    framework: section["rules"] for framework, section in tomllib.loads(FILE.read_text()).items()
}


def rules_in(framework: str) -> list[Rule]:
    return [Rule(**rule) for rule in TABLE[framework]]  # type: ignore[arg-type]  # as the loader


ALL = [(framework, rule) for framework in TABLE for rule in rules_in(framework)]


def groups(rule: Rule) -> set[str]:
    return set(re.compile(rule.match).groupindex)


def alternatives(rule: Rule) -> list[str]:
    """What the group that is a part of the metric's name may be, as in ``(?P<g>min|max)``."""
    found = re.search(r"\(\?P<g>([a-z|]+)\)", rule.match)
    return found[1].split("|") if found and "{g}" in rule.name else []


def used(rule: Rule) -> set[str]:
    texts = [rule.name, rule.statistic, *rule.attributes.values()]
    return {name for text in texts for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize(("framework", "rule"), ALL, ids=lambda value: str(value)[:60])
def test_a_rule_is_well_formed(framework: str, rule: Rule) -> None:
    assert used(rule) <= groups(rule), "every group that is used is there"
    assert groups(rule) <= used(rule), "every group is used"
    assert set(rule.attributes) <= {
        "rl.loss.type",
        "rl.phase",
        "rl.phase_class",
        "rl.staleness.part",
        "hw.id",
    }


@pytest.mark.parametrize(("framework", "rule"), ALL, ids=lambda value: str(value)[:60])
def test_a_rule_leads_into_the_registry(framework: str, rule: Rule) -> None:
    names = [rule.name.format(g=g) for g in alternatives(rule)] or [rule.name]
    assert [name for name in names if name not in METRICS] == []


@pytest.mark.parametrize(("framework", "rule"), ALL, ids=lambda value: str(value)[:60])
def test_a_phase_is_in_the_registry_or_says_its_class(framework: str, rule: Rule) -> None:
    phase = rule.attributes.get("rl.phase")
    if rule.name == "rl.phase.duration":
        assert phase is not None
        assert (phase in tuple(PHASES)) != ("rl.phase_class" in rule.attributes)


@pytest.mark.parametrize("framework", TABLE)
def test_no_two_rules_of_a_framework_give_one_series(framework: str) -> None:
    made = [
        (rule.name, tuple(rule.attributes.items()), rule.statistic)
        for rule in rules_in(framework)
        if "{" not in rule.name
    ]
    assert len(made) == len(set(made))


def test_no_statistic_is_a_counter() -> None:
    wrong = [
        rule.name
        for _, rule in ALL
        if rule.statistic
        and rule.name in METRICS
        and METRICS[rule.name].instrument in (Instrument.COUNTER, Instrument.UP_DOWN_COUNTER)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("framework", "name", "meaning"),
    [
        ("verl", "actor/lr", Meaning("rl.train.learning_rate", "1", is_renamed=True)),
        (
            "verl",
            "timing_s/gen",
            Meaning("rl.phase.duration", "s", 1.0, {"rl.phase": "generate"}, is_renamed=True),
        ),
        ("verl", "timing_s/testing", Meaning("timing_s/testing")),
        (
            "verl",
            "critic/score/max",
            Meaning("rl.reward.max", "1", is_renamed=True),
        ),
        (
            "areal",
            "ppo_actor/update/approx_kl/avg",
            Meaning("rl.policy.kl.update", "1", -1.0, is_renamed=True),
        ),
        ("areal", "ppo_actor/update/approx_kl/max", Meaning("ppo_actor/update/approx_kl/max")),
        (
            "areal",
            "ppo_actor/update/entropy/avg",
            Meaning("rl.policy.entropy", "1", 1.0, {RL_STATISTIC: "mean"}, "mean", is_renamed=True),
        ),
        (
            "prime_rl",
            "off_policy/in_queue/max",
            Meaning(
                "rl.policy.staleness",
                "{version}",
                1.0,
                {"rl.staleness.part": "in_queue", RL_STATISTIC: "max"},
                "max",
                is_renamed=True,
            ),
        ),
        ("prime_rl", "perf/mfu", Meaning("rl.train.mfu", "1", 0.01, is_renamed=True)),
        (
            "skyrl",
            "ray/node.1.gpu.3.util",
            Meaning("hw.gpu.utilization", "1", 0.01, {"hw.id": "1.3"}, is_renamed=True),
        ),
        ("trl", "rewards/accuracy/mean", Meaning("rewards/accuracy/mean")),
    ],
)
def test_names_become_what_they_mean(framework: str, name: str, meaning: Meaning) -> None:
    assert rules_of(framework)(name) == meaning


def test_the_first_rule_that_matches_the_whole_name_counts() -> None:
    first, second, third = "rl.reward.min", "rl.reward.mean", "rl.reward.max"
    rules = Rules([Rule("a", first), Rule("a.*", second), Rule("ab", third)])
    assert [rules(name).name for name in ("a", "ab", "ba")] == [first, second, "ba"]


def test_a_framework_without_rules_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        rules_of("none")
