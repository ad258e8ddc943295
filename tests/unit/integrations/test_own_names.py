"""What frameworks log arrives under their own names, and under the shared ones for comparison."""

from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace

import pytest

import otel_rl
from otel_rl.bridge.delivery.selection import KeySelection
from otel_rl.bridge.keys import KeyNames
from otel_rl.bridge.rows.run import Run
from otel_rl.records import Batch, ExperimentKey, Signal
from otel_rl.semconv.spec import Tier
from tests.support.doors import decode
from tests.support.otlp_sink import Sink

Adapter = Callable[[str], ModuleType]

VERL = {
    "actor/pg_loss": "trainer/loss/policy",
    "actor/entropy": "trainer/policy/entropy",
    "actor/kl_loss": "trainer/policy/kl/reference",
    "actor/ppo_kl": "trainer/policy/kl/update",
    "actor/pg_clipfrac": "trainer/policy/clip_fraction",
    "actor/grad_norm": "trainer/grad/norm",
    "actor/lr": "trainer/learning_rate",
    "critic/score/mean": "trainer/reward/mean",
    "critic/score/max": "trainer/reward/max",
    "critic/rewards/mean": "trainer/critic/rewards/mean",
    "critic/advantages/mean": "trainer/policy/advantage/mean",
    "response_length/mean": "trainer/episode/length/mean",
    "response_length/max": "trainer/episode/length/max",
    "prompt_length/mean": "trainer/prompt_length/mean",
    "perf/throughput": "trainer/perf/throughput",
    "perf/mfu/actor": "trainer/mfu",
    "perf/total_num_tokens": "trainer/perf/total_num_tokens",
    "timing_s/step": "trainer/iteration/duration",
    "timing_s/gen": "phase/trainer/generate",
    "timing_s/update_actor": "phase/trainer/train",
    "val-core/gsm8k/reward/mean@1": "trainer/val-core/gsm8k/reward/mean@1",
    "training/global_step": "trainer/training/global_step",
}

TRL = {
    "loss": "trainer/loss",
    "grad_norm": "trainer/grad/norm",
    "learning_rate": "trainer/learning_rate",
    "reward": "trainer/reward/mean",
    "reward_std": "trainer/reward/std",
    "rewards/accuracy/mean": "trainer/reward/component/accuracy",
    "rewards/accuracy/std": "trainer/rewards/accuracy/std",
    "kl": "trainer/policy/kl/reference",
    "entropy": "trainer/policy/entropy",
    "clip_ratio/region_mean": "trainer/policy/clip_fraction",
    "clip_ratio/low_mean": "trainer/policy/clip_fraction/low",
    "clip_ratio/high_max": "trainer/clip_ratio/high_max",
    "frac_reward_zero_std": "trainer/group/no_signal",
    "sampling/importance_sampling_ratio/mean": "trainer/policy/importance_ratio/mean",
    "sampling/importance_sampling_ratio/max": "trainer/policy/importance_ratio/max",
    "completions/mean_length": "trainer/episode/length/mean",
    "completions/max_length": "trainer/episode/length/max",
    "completions/clipped_ratio": "trainer/sample/truncated",
    "num_tokens": "trainer/num_tokens",
    "step_time": "trainer/step_time",  # the adapter measures the whole step
    "epoch": "trainer/epoch",
}

PRIME_RL = {
    "perf/mfu": "trainer/mfu",
    "time/step": "trainer/iteration/duration",
    "train/agg/all/solver/reward/mean": "trainer/sample/reward",
    "train/agg/effective/solver/reward/mean": "trainer/sample/reward/effective",
    "train/swe/effective/solver/reward/mean": "trainer/sample/reward/effective/swe",
}


def logged_by_verl(adapter: Adapter, metrics: Mapping[str, float]) -> None:
    verl = adapter("verl")
    verl.OtelLogger("project", "experiment").log(metrics, 4)


def logged_by_trl(adapter: Adapter, metrics: Mapping[str, float]) -> None:
    callback = adapter("trl").OtelCallback()
    args, control = SimpleNamespace(run_name="r"), SimpleNamespace()
    state = SimpleNamespace(global_step=4, is_world_process_zero=True)
    callback.on_train_begin(args, state, control)
    callback.on_log(args, state, control, logs=metrics)


def logged_by_prime_rl(adapter: Adapter, metrics: Mapping[str, float]) -> None:
    recorder = adapter("adapter")
    recorder.start(recorder.WorkerNames(role="trainer"))
    recorder.Recorder("prime_rl").record(metrics, 4)


BY = {
    "verl": (logged_by_verl, VERL),
    "trl": (logged_by_trl, TRL),
    "prime_rl": (logged_by_prime_rl, PRIME_RL),
}


def sent(sink: Sink, framework: str, names: KeyNames) -> dict[str, float]:
    """What a tracker gets of a run with these requests, in the usual detail."""
    scopes = {"otel_rl", f"otel_rl.integrations.{framework}"}
    assert otel_rl.flush(timeout_s=60)
    aligner = Run()
    for request in sink.metrics:
        for of_resource in request.resource_metrics:
            # Instruments of other tests live as long as the process.
            ours = [of for of in of_resource.scope_metrics if of.scope.name in scopes]
            del of_resource.scope_metrics[:]
            of_resource.scope_metrics.extend(ours)
        batch = Batch(ExperimentKey("exp"), Signal.METRICS, request.SerializeToString(), 1)
        aligner.add(decode(batch), received_ns=1)
    rows = aligner.close(2, everything=True)
    catalogue = aligner.row_maker.keys.take()
    selection = KeySelection(Tier.BASIC, names, per_worker=False, keys=lambda: catalogue)
    found: dict[str, float] = {}
    for row in selection.rows(rows):
        # What the bridge adds by itself is no metric of the framework.
        found |= {
            key: value
            for key, value in row.values.items()
            if "service/" not in key and not key.startswith("goodput/")
        }
    return found


@pytest.mark.parametrize("framework", BY)
def test_what_a_framework_logs_arrives_as_it_is(
    framework: str, sink: Sink, adapter: Adapter
) -> None:
    log, table = BY[framework]
    metrics = {name: 0.25 + place for place, name in enumerate(table)}
    log(adapter, metrics)
    found = sent(sink, framework, KeyNames.FRAMEWORK)
    counters = {"trainer/tokens", "trainer/tokens/rate"}
    assert {key: found[key] for key in found if key not in counters} == pytest.approx(metrics)


@pytest.mark.parametrize("framework", BY)
def test_both_names_have_the_values_of_one_metric(
    framework: str, sink: Sink, adapter: Adapter
) -> None:
    log, table = BY[framework]
    log(adapter, {name: 0.25 + place for place, name in enumerate(table)})
    both = sent(sink, framework, KeyNames.BOTH)
    shared = sent(sink, framework, KeyNames.OTEL_RL)
    assert set(table) <= both.keys()
    assert set(table.values()) == shared.keys() - {"trainer/tokens", "trainer/tokens/rate"}
    assert both == {**{name: both[name] for name in table}, **shared}


def test_twenty_names_of_each_are_in_the_table() -> None:
    assert min(len(VERL), len(TRL)) >= 20


def test_other_metrics_of_the_program_arrive_as_they_are_too(sink: Sink, adapter: Adapter) -> None:
    logged_by_trl(adapter, {"loss": 1.0})
    otel_rl.log({"mine": 2.0}, 4)
    assert sent(sink, "trl", KeyNames.FRAMEWORK) == {"loss": 1.0, "mine": 2.0}
