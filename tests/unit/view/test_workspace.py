"""Keys of a program become sections and charts in which a person finds one."""

from collections.abc import Sequence
from typing import Any

from otel_rl.records import KeySpec
from otel_rl.semconv import names
from otel_rl.semconv.spec import Tier
from otel_rl.view.parts.workspace import Catalogue, amounts, first_row, workspace
from otel_rl.view.run_data import RunData, Series


def own(*keys: str) -> list[KeySpec]:
    return [KeySpec(f"trainer/{key}", key, "trainer", axis="step") for key in keys]


REWARD = KeySpec("trainer/reward/mean", names.RL_REWARD_MEAN, "trainer", axis="step")


def titles(keys: Sequence[KeySpec]) -> dict[str, list[str]]:
    return {section.title: [panel.title for panel in section.panels] for section in workspace(keys)}


def test_own_keys_stand_under_the_first_segment_of_their_names() -> None:
    found = titles([REWARD, *own("actor/entropy", "actor/kl", "critic/score/mean", "lr")])
    assert found == {
        "Learning": ["Reward mean, trainer"],
        "Your metrics": ["lr, trainer"],
        "actor": ["actor/kl, trainer", "actor/entropy, trainer"],
        "critic": ["critic/score/mean, trainer"],
    }


def test_series_that_differ_by_one_number_share_a_chart() -> None:
    (section,) = workspace(own(*(f"actor/layers/{n}/norm" for n in range(12)), "actor/loss"))
    together = next(panel for panel in section.panels if len(panel.keys) > 1)
    assert together.title == "actor/layers/*/norm, trainer"
    assert together.keys == tuple(f"trainer/actor/layers/{n}/norm" for n in range(12))
    assert len(section.panels) == 2


def test_two_numbers_that_differ_are_no_chart_of_one() -> None:
    (section,) = workspace(own("val/aime24/mean@8", "val/math500/mean@16", "val/math500/mean@32"))
    assert sorted(len(panel.keys) for panel in section.panels) == [1, 2]


def test_of_a_thousand_that_differ_by_a_number_a_chart_has_sixty() -> None:
    keys = own(*(f"env/{n}/reward" for n in range(1_000)))
    panels = [panel for section in workspace(keys) for panel in section.panels]
    joined = [panel for panel in panels if "*" in panel.title]
    assert {key for panel in panels for key in panel.keys} == {spec.key for spec in keys}
    assert [len(panel.keys) for panel in joined] == [*16 * [60], 40]
    assert len({panel.title for panel in joined}) == len(joined)


def charts(keys: Sequence[KeySpec]) -> dict[str, Any]:
    data = RunData()
    data.series.update({spec.key: Series() for spec in keys})
    sections = Catalogue(keys, Tier.BASIC).sections(data)
    return {panel["id"]: panel for section in sections for panel in section["panels"]}


def test_a_joined_chart_tells_all_its_keys_to_who_searches() -> None:
    keys = own(*(f"actor/layers/{n}/norm" for n in range(28)))
    (chart,) = charts(keys).values()
    assert chart["keys"] == [spec.key for spec in keys]


def test_a_joined_chart_stays_the_same_when_a_key_comes_before_its_others() -> None:
    keys = own(*(f"actor/layers/{n}/norm" for n in range(5)))
    assert [*charts(keys[2:])] == [*charts(keys)]


def test_a_section_of_the_program_joins_ours_of_the_same_name() -> None:
    assert list(titles([REWARD, *own("Learning/rate")])) == ["Learning"]


def test_what_matters_comes_first_once_for_each_question() -> None:
    keys = [
        REWARD,
        *own("val/acc/mean@8", "response_length/mean", "response_length/max", "actor/kl_coef"),
        *own("actor/ppo_kl", "actor/entropy", "actor/grad_norm", "noise/a", "noise/b"),
    ]
    first = [panel.title for _, panel in first_row(workspace(keys), keys)]
    assert first == [
        "Reward mean, trainer",
        "val/acc/mean@8, trainer",
        "response_length/mean, trainer",
        "actor/ppo_kl, trainer",
        "actor/entropy, trainer",
        "actor/grad_norm, trainer",
    ]


def test_amounts_of_tokens_and_samples_can_be_the_axis() -> None:
    keys = own("perf/total_num_tokens", "data/samples", "perf/tokens_per_second", "actor/entropy")
    assert amounts(keys) == {
        "trainer/perf/total_num_tokens": "tokens",
        "trainer/data/samples": "samples",
    }
