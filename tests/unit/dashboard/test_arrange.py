"""The sections and panels of a dashboard."""

from collections.abc import Sequence

import pytest

from otel_rl.dashboard.arrange import Panel, arrange
from otel_rl.dashboard.sections import SECTIONS, rule_of
from otel_rl.records import KeySpec
from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument, Tier


def panels(*keys: KeySpec) -> list[tuple[str, Panel]]:
    return [(section.title, panel) for section in arrange(keys) for panel in section.panels]


def phase(name: str, statistic: str = "value") -> KeySpec:
    suffix = "" if statistic == "value" else f"/{statistic}"
    return KeySpec(
        f"phase/trainer/{name}{suffix}",
        names.RL_PHASE_DURATION,
        "trainer",
        ((names.RL_PHASE, name),),
        statistic,
        "s",
        "step",
    )


def test_the_phases_of_a_role_are_areas_that_add_up_to_its_step() -> None:
    shown = ["collector_wait", "train", "unaccounted", "weight_sync"]
    left_out = [phase("weight_push"), phase("train", "rank_max")]  # within another; not a time
    ((section, panel),) = panels(*map(phase, shown), *left_out)
    assert (section, panel.title) == ("Step time", "Time by phase, trainer (s)")
    assert panel.is_stacked
    assert panel.keys == tuple(f"phase/trainer/{name}" for name in shown)


def test_the_statistics_of_a_series_share_a_panel_and_its_count_has_its_own() -> None:
    def latency(statistic: str) -> KeySpec:
        return KeySpec(
            f"generator/latency/{statistic}",
            "gen_ai.server.request.duration",
            "generator",
            statistic=statistic,
            unit="s",
        )

    found = panels(*map(latency, ("mean", "p50", "p99", "count")))
    assert [len(panel.keys) for _, panel in found] == [3, 1]


def test_layers_are_in_the_order_of_their_numbers() -> None:
    layers = [KeySpec(f"trainer/layer{n}/norm", f"layer{n}/norm", "trainer") for n in (10, 2, 1)]
    found = [panel.title for _, panel in panels(*layers)]
    assert found == [f"layer{n}/norm, trainer" for n in (1, 2, 10)]


def test_the_workers_of_all_roles_are_in_one_panel() -> None:
    alive = [
        KeySpec(f"service/{role}/alive", names.RL_SERVICE_ALIVE, role, unit="{worker}")
        for role in ("generator", "trainer")
    ]
    assert panels(*alive) == [
        (
            "Workers",
            Panel(
                "Workers alive (worker)",
                ("service/generator/alive", "service/trainer/alive"),
                "time",
                "worker",
                is_stacked=False,
            ),
        )
    ]


def test_all_is_drawn_over_time_while_there_is_no_key_of_steps() -> None:
    keys = [KeySpec("cpu", "cpu"), KeySpec("service/alive", names.RL_SERVICE_ALIVE)]
    assert {panel.axis for _, panel in panels(*keys)} == {"time"}
    of_steps = KeySpec("loss", "loss", axis="step")
    found = {panel.keys: panel.axis for _, panel in panels(*keys, of_steps)}
    assert found == {("cpu",): "step", ("service/alive",): "time", ("loss",): "step"}


@pytest.mark.parametrize(
    ("unit", "title"),
    [("{token}/s", "Train tokens, trainer (token/s)"), ("1", "Train tokens, trainer")],
)
def test_a_title_ends_in_the_unit(unit: str, title: str) -> None:
    spec = KeySpec("k", names.RL_TRAIN_TOKENS, "trainer", statistic="rate", unit=unit)
    ((_, panel),) = panels(spec)
    assert panel.title == title


@pytest.mark.parametrize(
    ("name", "title"),
    [
        (names.RL_POLICY_KL_REFERENCE, "Policy KL reference, trainer"),
        (names.RL_TRAIN_MFU, "Train MFU, trainer"),
        (names.OTEL_RL_WORKER_SPANS_DROPPED, "Worker spans dropped, trainer"),
    ],
)
def test_a_title_is_in_words_and_abbreviations(name: str, title: str) -> None:
    ((_, panel),) = panels(KeySpec("k", name, "trainer"))
    assert panel.title == title


def test_what_is_no_chart_of_a_run_has_no_panel() -> None:
    drops = "otel_rl.worker.spans.dropped"
    assert not panels(
        KeySpec("workers/trainer/0/loss", names.RL_TRAIN_LOSS, "trainer", worker="0"),
        KeySpec("diagnosis/cause", statistic="text"),
        KeySpec("trainer/samples", statistic="table"),
        KeySpec("otel_rl/worker/spans/dropped", drops, tier=Tier.FULL),
    )


def test_metrics_of_ones_own_and_of_a_framework_keep_their_names() -> None:
    own = KeySpec("trainer/mine", "mine", "trainer")
    renamed = KeySpec("actor/pg_loss", names.RL_TRAIN_LOSS, "trainer", own_name="actor/pg_loss")
    found = panels(own, renamed)
    assert [(section, panel.keys) for section, panel in found] == [
        ("Learning", ("actor/pg_loss",)),
        ("Your metrics", ("trainer/mine",)),
    ]


def test_every_metric_of_the_registry_has_a_section_of_the_table() -> None:
    assert {rule_of(name)[1].section for name in names.METRICS} <= set(SECTIONS)
    assert "Your metrics" not in {rule_of(name)[1].section for name in names.METRICS}


def test_the_reward_comes_first() -> None:
    keys: Sequence[KeySpec] = [
        KeySpec(name, name, "trainer")
        for name, spec in names.METRICS.items()
        if spec.instrument is Instrument.GAUGE
    ]
    assert arrange(keys)[0].panels[0].keys == (names.RL_REWARD_MEAN,)


def test_a_chart_has_what_is_healthy_of_its_metric_and_one_of_an_own_name_has_nothing() -> None:
    group = KeySpec("trainer/group/no_signal", names.RL_GROUP_NO_SIGNAL, "trainer", axis="step")
    (section, panel), (_, own) = panels(group, KeySpec("mine", "mine", "trainer", axis="step"))
    assert (section, panel.healthy) == ("Learning", names.METRICS[group.name].healthy)
    assert panel.healthy
    assert own.healthy == ""


def test_samples_by_how_they_ended_share_a_chart() -> None:
    ends = [
        KeySpec(
            f"env/sample/outcomes/swe/{end}/rate",
            names.RL_SAMPLE_OUTCOMES,
            "env",
            ((names.RL_ENVIRONMENT_NAME, "swe"), (names.RL_SAMPLE_OUTCOME, end)),
            "rate",
            "{sample}/s",
            "step",
        )
        for end in ("environment_failed", "trained")
    ]
    ((section, panel),) = panels(*ends)
    assert (section, panel.title) == ("Learning", "Samples by outcome, env (sample/s)")
    assert panel.keys == tuple(spec.key for spec in ends)
