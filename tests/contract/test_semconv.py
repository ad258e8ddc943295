"""The registry, the constants, the instruments and the page say the same, and say it of everything.

What the field asks of telemetry for distributed RL is written out here as data; every line of it
must be answered by a metric of the right instrument, unit and reduction.
"""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import opentelemetry.semconv
import pytest

from otel_rl.bridge.counters import Counter, Gauge
from otel_rl.bridge.keys import tracker_key
from otel_rl.semconv import names
from otel_rl.semconv.spec import METRICS, Instrument, Reduction, described
from tools.semconv import definition, generate, render

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = definition.read(generate.REGISTRY)

GAUGE, COUNTER = Instrument.GAUGE, Instrument.COUNTER
LEVEL, HISTOGRAM = Instrument.UP_DOWN_COUNTER, Instrument.HISTOGRAM
MEAN, SUM, MIN, MAX = Reduction.MEAN, Reduction.SUM, Reduction.MIN, Reduction.MAX

# Item of the field's list, and (metric, instrument, unit, reduction) that answers it.
REQUIRED_METRICS = [
    ("trainer: loss curves", "rl.train.loss", GAUGE, "1", MEAN),
    ("trainer: gradient abs-max", "rl.train.grad.abs_max", GAUGE, "1", MAX),
    ("trainer: gradient mean-squared norm", "rl.train.grad.mean_square", GAUGE, "1", MEAN),
    ("trainer: learning rate", "rl.train.learning_rate", GAUGE, "1", MEAN),
    ("trainer: advantage min", "rl.policy.advantage.min", GAUGE, "1", MIN),
    ("trainer: advantage max", "rl.policy.advantage.max", GAUGE, "1", MAX),
    ("trainer: advantage mean", "rl.policy.advantage.mean", GAUGE, "1", MEAN),
    ("trainer: KL(policy||reference)", "rl.policy.kl.reference", GAUGE, "1", MEAN),
    ("trainer: entropy", "rl.policy.entropy", GAUGE, "1", MEAN),
    ("trainer: total reward per batch", "rl.reward.sum", GAUGE, "1", SUM),
    ("trainer: episode length", "rl.episode.length", GAUGE, "{step}", MEAN),
    ("trainer: MFU", "rl.train.mfu", GAUGE, "1", MEAN),
    ("trainer: policy update frequency", "rl.policy.updates", COUNTER, "{update}", MEAN),
    ("trainer: parameter update magnitude", "rl.train.update.norm", GAUGE, "1", MEAN),
    ("trainer: idle time", "rl.worker.idle.time", COUNTER, "s", MEAN),
    ("generator: KV-cache size", "rl.generator.kv_cache.limit", LEVEL, "{token}", SUM),
    ("generator: KV-cache utilisation", "rl.generator.kv_cache.utilization", GAUGE, "1", MEAN),
    ("generator: KV-cache miss rate", "rl.generator.kv_cache.miss.ratio", GAUGE, "1", MEAN),
    ("generator: token rate", "rl.generator.tokens", COUNTER, "{token}", SUM),
    ("generator: requests per replica", "rl.generator.requests", COUNTER, "{request}", SUM),
    (
        "generator: sequence-length distribution",
        "rl.generator.response.tokens",
        HISTOGRAM,
        "{token}",
        MEAN,
    ),
    (
        "generator: sequence-length distribution",
        "rl.generator.prompt.tokens",
        HISTOGRAM,
        "{token}",
        MEAN,
    ),
    ("generator: idle time", "rl.worker.idle.time", COUNTER, "s", MEAN),
    ("generator: tokenisation time", "rl.generator.tokenize.duration", HISTOGRAM, "s", MEAN),
    (
        "generator: sampling-parameter distributions",
        "rl.generator.sampling.temperature",
        HISTOGRAM,
        "1",
        MEAN,
    ),
    (
        "generator: sampling-parameter distributions",
        "rl.generator.sampling.top_p",
        HISTOGRAM,
        "1",
        MEAN,
    ),
    (
        "generator: sampling-parameter distributions",
        "rl.generator.sampling.max_tokens",
        HISTOGRAM,
        "{token}",
        MEAN,
    ),
    ("generator: policy staleness", "rl.policy.staleness", HISTOGRAM, "{version}", MEAN),
    ("generator: request queue depth", "rl.generator.queue.depth", LEVEL, "{request}", SUM),
    ("service: per-replica queue depth", "rl.replica.queue.depth", LEVEL, "{request}", SUM),
    ("service: per-replica failures", "rl.replica.failures", COUNTER, "{failure}", SUM),
    ("service: time to recovery", "rl.replica.recovery.duration", HISTOGRAM, "s", MEAN),
    ("replay buffer: size", "rl.replay_buffer.size", LEVEL, "{sample}", SUM),
    ("replay buffer: queue depth", "rl.replay_buffer.queue.depth", LEVEL, "{request}", SUM),
    ("replay buffer: eviction rate", "rl.replay_buffer.evictions", COUNTER, "{sample}", SUM),
    ("replay buffer: write throughput", "rl.replay_buffer.writes", COUNTER, "{sample}", SUM),
    ("replay buffer: read throughput", "rl.replay_buffer.reads", COUNTER, "{sample}", SUM),
    (
        "replay buffer: retrieval latency",
        "rl.replay_buffer.retrieval.duration",
        HISTOGRAM,
        "s",
        MEAN,
    ),
    ("waits: iteration wall", "rl.iteration.duration", GAUGE, "s", MEAN),
    ("waits: derived pipeline time", "rl.pipeline.duration", GAUGE, "s", MEAN),
]

# Item of the field's list, and (value of rl.phase, kind of time) that answers it.
REQUIRED_PHASES = [
    ("trainer: batch creation time", "batch_create", "compute"),
    ("trainer: weight synchronisation overhead", "weight_sync", "sync"),
    ("trainer: time to push weights", "weight_push", "transfer"),
    ("generator: time to pull weights", "weight_pull", "transfer"),
    ("generator: model loading time", "model_load", "io"),
    ("learner: collector_wait", "collector_wait", "wait"),
    ("learner: replay_batch_wait", "replay_batch_wait", "wait"),
    ("learner: rank_barrier", "rank_barrier", "wait"),
    ("learner: sync_coordination", "sync_coordination", "sync"),
    ("learner: h2d_copy", "h2d_copy", "transfer"),
    ("learner: train", "train", "compute"),
    ("learner: param_sync", "param_sync", "sync"),
    ("learner: weight_sync", "weight_sync", "sync"),
    ("collector: weight_sync", "weight_sync", "sync"),
    ("collector: action_select", "action_select", "compute"),
    ("collector: env_step", "env_step", "compute"),
    ("collector: replay", "replay", "transfer"),
    ("collector: sync_coordination", "sync_coordination", "sync"),
    ("collector: env_step_total", "env_step_total", "compute"),
    ("collector: mlp_infer", "mlp_infer", "compute"),
]


@pytest.mark.parametrize(("item", "name", "instrument", "unit", "reduction"), REQUIRED_METRICS)
def test_every_item_of_the_list_has_its_metric(
    item: str, name: str, instrument: Instrument, unit: str, reduction: Reduction
) -> None:
    spec = names.METRICS[name]
    assert (spec.instrument, spec.unit, spec.reduction) == (instrument, unit, reduction)
    assert item in next(metric.answers for metric in REGISTRY.metrics if metric.name == name)


@pytest.mark.parametrize(("item", "phase", "phase_class"), REQUIRED_PHASES)
def test_every_phase_of_the_list_has_its_value(item: str, phase: str, phase_class: str) -> None:
    assert names.RlPhaseValues(phase).value == phase
    assert names.PHASES[phase].phase_class == phase_class
    side = item.split(":")[0]
    if side in ("learner", "collector"):
        member = next(
            member
            for attribute in REGISTRY.attributes
            if attribute.key == "rl.phase"
            for member in attribute.members
            if member.value == phase
        )
        assert member.side in (side, "both")


def test_no_item_is_answered_that_is_not_on_the_list() -> None:
    listed = {item for item, *_ in REQUIRED_METRICS} | {item for item, *_ in REQUIRED_PHASES}
    answered = {item for metric in REGISTRY.metrics for item in metric.answers}
    assert answered <= listed


def test_every_distribution_has_its_quantiles_and_extremes() -> None:
    expected = {"p50", "p90", "p99", "min", "max"}
    lacking = [
        spec.name
        for spec in names.METRICS.values()
        if spec.instrument is HISTOGRAM and not expected <= set(spec.statistics)
    ]
    assert lacking == []


def test_an_instrument_has_the_unit_and_the_words_of_the_registry() -> None:
    for metric in REGISTRY.metrics:
        assert described(metric.name) == (metric.name, metric.unit, metric.brief)


def test_every_event_is_named_among_the_events() -> None:
    assert {event.name for event in REGISTRY.events} == names.EVENTS
    assert names.RL_WORKER_END in names.EVENTS


def test_bridge_metrics_are_those_of_the_bridge() -> None:
    counted: dict[str, tuple[str, tuple[str, ...]]] = {
        str(counter): (counter.unit, ("rl.reason",) if counter.reasons else ())
        for counter in Counter
    }
    counted |= {str(gauge): (gauge.unit, ()) for gauge in Gauge}
    registered = {
        spec.name: (spec.unit, spec.attributes)
        for spec in names.METRICS.values()
        if spec.name.startswith("otel_rl.bridge.")
    }
    assert registered == counted


def test_upstream_metrics_have_opentelemetry_s_instruments_and_units() -> None:
    incubating = Path(next(iter(opentelemetry.semconv.__path__))) / "_incubating" / "metrics"
    # Read as text: the modules are private, and only what they say matters here.
    published = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted(incubating.glob("*_metrics.py"))
    )
    methods = {
        GAUGE: "create_observable_gauge",
        COUNTER: "create_counter",
        LEVEL: "create_up_down_counter",
        HISTOGRAM: "create_histogram",
    }
    checked = [metric for metric in REGISTRY.metrics if metric.upstream or "gen_ai." in metric.name]
    differing = []
    for metric in checked:
        method, constant = methods[metric.instrument], render.constant(metric.name)
        unit = re.escape(metric.unit)
        made = rf'meter\.{method}\(\s+name={constant},(?:(?!meter\.)[\s\S])*?unit="{unit}"'
        if re.search(made, published) is None:
            differing.append(metric.name)
    assert checked
    assert differing == []


def test_the_page_shows_the_keys_that_the_bridge_writes() -> None:
    page = (ROOT / "docs" / "semantic-conventions.md").read_text(encoding="utf-8")
    section = page.split("## Names in the tracker")[1].split("\n## ")[0]
    rows = re.findall(r"^- `([^`]+)`, (\w+)(?:, `([^`]+)`)?: (.+)$", section, re.MULTILINE)
    assert len(rows) >= 10
    for name, role, attribute, keys in rows:
        key, _, value = attribute.partition("=")
        attributes = [(key, value)] if attribute else []
        assert keys.split(", ")[0] == f"`{tracker_key(role, name, attributes)}`"


@pytest.mark.process
def test_importing_the_names_loads_neither_opentelemetry_nor_yaml() -> None:
    script = (
        "import sys, otel_rl.semconv.names\n"
        "print(sorted({'opentelemetry', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.process
def test_the_wheel_ships_the_registry(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        timeout=240,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    assert {
        path.relative_to(ROOT).as_posix() for path in generate.REGISTRY.glob("*.yaml")
    } <= shipped


def test_the_metrics_to_watch_are_in_the_registry_and_have_the_keys_that_are_shown() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", page, re.MULTILINE)
    assert len(rows) >= 30
    wrong = [(key, name) for key, name in rows if name not in METRICS or not _is_key(key, name)]
    assert wrong == []


def test_what_is_healthy_is_the_same_on_the_page_and_in_the_registry() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `[^`]+` \| `([^`]+)` \| ([^|]+) \|", page, re.MULTILINE)
    told = {name: words for name, words in rows if METRICS[name].healthy}
    assert told == {name: METRICS[name].healthy for name in told}
    assert {name for name, spec in METRICS.items() if spec.healthy} <= told.keys()


_ROLES = ("trainer", "generator", "replay_buffer")


def _is_key(key: str, name: str) -> bool:
    """Whether a metric has this key, of any role or of the whole run, or one of its statistics."""
    attributes = [("rl.phase", key.rpartition("/")[2])] if name == "rl.phase.duration" else []
    keys = [tracker_key(role, name, attributes) for role in _ROLES]
    keys += [of_role.replace("/trainer/", "/") for of_role in keys]
    return any(f"{key}/".startswith(f"{one}/") for one in keys)
