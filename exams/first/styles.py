"""Instrumentation of a program: what of a recording becomes which OTLP, under which names.

spans    stock OpenTelemetry: spans with names of their own, gauges with a step, counters
phases   otel_rl: spans and durations of phases, ages of open ones, heartbeats, reports of ends
metrics  gauges only, with the times of the program's parts among them; stock or otel_rl
"""

import random
from dataclasses import dataclass
from enum import StrEnum

from exams.first.effects import Measure
from exams.first.programs import Program


class Style(StrEnum):
    SPANS = "spans"
    PHASES = "phases"
    METRICS = "metrics"


@dataclass(frozen=True)
class Instrumentation:
    """How a program is instrumented.

    Attributes:
        style: The style.
        is_ours: Whether otel_rl sends it: reports of ends, heartbeats, exact exemplars.
        names: Metric of each measure.
        timing: Pattern of the metric with a part's time, if the style is metrics.
        step_span: Name of the span of a step.
        tells_step: Whether every span has the step, and not only the step's own.
        propagates: Whether the context goes along with calls and to other roles.
        has_roles: Whether the role is told; else it is the service's name.
        every_s: Time between two exports.
        collector: Whether a Collector joins the requests of all workers.
        lag_s: Time of an export to its arrival.
    """

    style: Style
    is_ours: bool
    names: dict[str, str]
    timing: str
    step_span: str
    tells_step: bool
    propagates: bool
    has_roles: bool
    every_s: float
    collector: bool
    lag_s: float


_CONVENTIONAL = {
    Measure.REWARD: "rl.reward.mean",
    Measure.REWARD_STD: "rl.reward.std",
    Measure.ENTROPY: "rl.policy.entropy",
    Measure.KL: "rl.policy.kl.reference",
    Measure.LENGTH: "rl.episode.length",
    Measure.LOSS: "rl.train.loss",
    Measure.GRAD: "rl.train.grad.norm",
    "version": "rl.policy.version",
    "staleness": "rl.policy.staleness",
    "step_time": "rl.iteration.duration",
    "tokens": "rl.train.tokens",
    "samples": "train/batch_size",
    "throttled": "rl.gpu.throttled",
    "gc": "rl.worker.gc.time",
    "preemptions": "rl.generator.preemptions",
    "writes": "rl.replay_buffer.writes",
    "reads": "rl.replay_buffer.reads",
    "evictions": "rl.replay_buffer.evictions",
}
_OWN: dict[str, tuple[str, ...]] = {
    Measure.REWARD: ("reward/mean", "rewards", "critic/score/mean", "reward", "episode/return"),
    Measure.REWARD_STD: ("reward/std", "critic/score/std", "reward_std", "rewards/std"),
    Measure.ENTROPY: ("entropy", "actor/entropy", "policy/entropy", "actor/entropy_loss"),
    Measure.KL: ("kl", "actor/kl_loss", "policy/kl", "approx_kl"),
    Measure.LENGTH: ("response_length/mean", "completions/mean_length", "response/length"),
    Measure.LOSS: ("loss", "actor/pg_loss", "policy_loss", "train/loss"),
    Measure.GRAD: ("grad_norm", "actor/grad_norm", "optim/grad_norm"),
    "version": ("policy_version", "weight_version", "rl.policy.version"),
    "staleness": ("staleness", "off_policy_steps", "rl.policy.staleness"),
    "step_time": ("step_time", "perf/time_per_step", "timing/step", "rl.iteration.duration"),
    "tokens": ("perf/total_num_tokens", "num_tokens", "tokens_per_step", "train/tokens"),
    "samples": ("batch_size", "train/batch_size", "num_samples", "global_batch_size"),
    "throttled": ("rl.gpu.throttled",),
    "gc": ("gc_time", "rl.worker.gc.time"),
    "preemptions": ("num_preemptions", "rl.generator.preemptions", "vllm/preemptions"),
    "writes": ("writes", "enqueued", "inserted"),
    "reads": ("reads", "dequeued", "sampled"),
    "evictions": ("evictions", "evicted", "rl.replay_buffer.evictions"),
}
_TIMINGS = ("timing_s/{}", "time/{}", "timing/{}", "{}_time_s", "perf/{}_seconds", "time_{}")
_STEP_SPANS = ("rl.loop", "rl.loop", "train_step", "iteration", "step")


def drawn(chance: random.Random, program: Program) -> Instrumentation:
    """Draw how it is instrumented."""
    style = chance.choice([*Style])
    is_ours = style is Style.PHASES or (style is Style.METRICS and chance.random() < 0.5)
    names = dict(_CONVENTIONAL)
    if not program.conventional:
        names = {measure: chance.choice(some) for measure, some in _OWN.items()}
    if is_ours:
        names |= {name: _CONVENTIONAL[name] for name in ("gc", "throttled", "step_time")}
    is_phases = style is Style.PHASES
    return Instrumentation(
        style=style,
        is_ours=is_ours,
        names={str(measure): name for measure, name in names.items()},
        timing=chance.choice(_TIMINGS),
        step_span="rl.loop" if is_phases or program.conventional else chance.choice(_STEP_SPANS),
        tells_step=chance.random() < 0.6,
        propagates=is_phases or chance.random() < 0.7,
        has_roles=is_ours or program.conventional or chance.random() < 0.7,
        every_s=min(8.0, max(1.0, 0.4 * program.usual_step_s)),
        collector=chance.random() < 0.5,
        lag_s=chance.choice((0.02, 0.1, 0.5)),
    )
