"""The rules mean what the registry means."""

import re
from string import Formatter

import pytest

from otel_rl.semconv.aliases import Alias, Dialect, Rule, dialect, programs, scraped_alias
from otel_rl.semconv.names import METRICS, PHASES, RL_STATISTIC
from otel_rl.semconv.spec import Instrument

# A table may have spans only.
PROGRAMS = [program for program in programs() if dialect(program).rules]
SCRAPED = [program for program in PROGRAMS if dialect(program).prefixes]
ALL = [(program, rule) for program in PROGRAMS for rule in dialect(program).rules]


def groups(rule: Rule) -> set[str]:
    return set(re.compile(rule.match).groupindex)


def alternatives(rule: Rule) -> list[str]:
    """What the group that is a part of the metric's name may be, as in ``(?P<g>min|max)``."""
    found = re.search(r"\(\?P<g>([a-z|]+)\)", rule.match)
    return found[1].split("|") if found and "{g}" in rule.name else []


def used(rule: Rule) -> set[str]:
    texts = [rule.name, rule.statistic, *rule.attributes.values()]
    return {name for text in texts for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_rule_uses_every_group_and_known_attributes(program: str) -> None:
    rules = dialect(program).rules
    assert [rule for rule in rules if used(rule) != groups(rule)] == []
    assert {key for rule in rules for key in rule.attributes} <= {
        "rl.loss.type",
        "rl.phase",
        "rl.phase_class",
        "rl.staleness.part",
        "rl.environment.name",
        "rl.reward.name",
        "hw.id",
        "hw.type",
        "error.type",
        "rl.gpu.clock.domain",
        "system.memory.state",
        "network.io.direction",
        "disk.io.direction",
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_rule_leads_into_the_registry(program: str) -> None:
    names = {
        name
        for rule in dialect(program).rules
        for name in [rule.name.format(g=g) for g in alternatives(rule)] or [rule.name]
    }
    own = f"rl.gpu.{program}."
    assert [n for n in names if n not in METRICS and not n.startswith(own)] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_phase_is_in_the_registry_or_says_its_class(program: str) -> None:
    for rule in dialect(program).rules:
        if rule.name == "rl.phase.duration":
            is_known = rule.attributes["rl.phase"] in PHASES
            assert is_known != ("rl.phase_class" in rule.attributes), rule


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p not in SCRAPED])
def test_no_two_rules_of_a_logger_give_one_series(program: str) -> None:
    made = [
        (rule.name, tuple(rule.attributes.items()), rule.statistic)
        for rule in dialect(program).rules
        if "{" not in rule.name
    ]
    assert len(made) == len(set(made))


def test_no_prefix_begins_another() -> None:
    prefixes = [prefix for program in SCRAPED for prefix in dialect(program).prefixes]
    assert prefixes
    assert not [(a, b) for a in prefixes for b in prefixes if a != b and b.startswith(a)]


@pytest.mark.parametrize("program", SCRAPED)
def test_a_scraped_metric_is_no_statistic(program: str) -> None:
    assert [rule.match for rule in dialect(program).rules if rule.statistic] == []


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
    ("program", "name", "alias"),
    [
        ("verl", "actor/lr", Alias("rl.train.learning_rate", "1")),
        (
            "verl",
            "timing_s/gen",
            Alias("rl.phase.duration", "s", 1.0, {"rl.phase": "generate"}),
        ),
        ("verl", "timing_s/testing", None),
        (
            "verl",
            "critic/score/max",
            Alias("rl.reward.max", "1"),
        ),
        (
            "areal",
            "ppo_actor/update/approx_kl/avg",
            Alias("rl.policy.kl.update", "1", -1.0),
        ),
        ("areal", "ppo_actor/update/approx_kl/max", None),
        (
            "areal",
            "ppo_actor/update/entropy/avg",
            Alias("rl.policy.entropy", "1", 1.0, {RL_STATISTIC: "mean"}, "mean"),
        ),
        (
            "prime_rl",
            "off_policy/in_queue/max",
            Alias(
                "rl.policy.staleness",
                "{version}",
                1.0,
                {"rl.staleness.part": "in_queue", RL_STATISTIC: "max"},
                "max",
            ),
        ),
        ("prime_rl", "perf/mfu", Alias("rl.train.mfu", "1", 0.01)),
        (
            "skyrl",
            "ray/node.1.gpu.3.util",
            Alias("hw.gpu.utilization", "1", 0.01, {"hw.id": "1.3"}),
        ),
        (
            "trl",
            "rewards/accuracy/mean",
            Alias("rl.reward.component", "1", 1.0, {"rl.reward.name": "accuracy"}),
        ),
        ("trl", "rewards/accuracy/std", None),
        ("trl", "frac_reward_zero_std", Alias("rl.group.no_signal", "1")),
    ],
)
def test_names_become_what_they_mean(program: str, name: str, alias: Alias | None) -> None:
    assert dialect(program).alias(name) == alias


def test_the_first_rule_that_matches_the_whole_name_counts() -> None:
    first, second, third = "rl.reward.min", "rl.reward.mean", "rl.reward.max"
    found = Dialect([Rule("a", first), Rule("a.*", second), Rule("ab", third)])
    assert [found.alias(name) for name in ("a", "ab", "ba")] == [
        Alias(first, "1"),
        Alias(second, "1"),
        None,
    ]


def test_a_program_without_a_table_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        dialect("none")


@pytest.mark.parametrize(
    ("name", "program", "alias"),
    [
        ("vllm:num_requests_waiting", "vllm", Alias("rl.generator.queue.depth", "{request}")),
        ("ray_vllm_num_requests_waiting", "vllm", Alias("rl.generator.queue.depth", "{request}")),
        ("DCGM_FI_DEV_GPU_UTIL", "dcgm", Alias("hw.gpu.utilization", "1", 0.01)),
        ("nccl_bus_bandwidth_gbs", "nccl", Alias("rl.gpu.nccl.bus_bandwidth_gbs")),
        ("DCGM_FI_PROF_SM_ACTIVE", "dcgm", Alias("rl.gpu.dcgm.prof_sm_active")),
        ("ray_node_gram_used", "ray", Alias("hw.gpu.memory.usage", "By", float(1 << 20))),
    ],
)
def test_a_scraped_name_is_known_by_its_prefix(name: str, program: str, alias: Alias) -> None:
    assert scraped_alias(name) == (dialect(program), alias)


@pytest.mark.parametrize("name", ["num_requests_waiting", "ray_tasks", "timing_s/gen"])
def test_any_other_scraped_name_stays(name: str) -> None:
    assert scraped_alias(name) is None


def test_a_scraped_name_without_a_rule_keeps_it_and_its_program_is_known() -> None:
    assert scraped_alias("vllm:mine") == (dialect("vllm"), None)
