"""Asynchronous GRPO run on CPU, in ten processes, small enough to watch.

``run(DemoSettings())`` starts them and returns the result.

A transformer with random weights learns to reverse digits from rewards alone. Two trainer ranks,
three generator replicas, two reward workers, a replay buffer, a weight store and an orchestrator
are separate processes; weights are pushed and pulled, samples are stale, a replica is killed
half-way. Each process reports its own metrics. The generators use only OpenTelemetry's API, the
others `otel_rl`; `otel-rl demo` adds a bridge.

Of the metrics in the registry, the demo cannot measure these, and reports none of them:

* ``hw.gpu.*``, ``rl.gpu.*``, ``hw.*``: it uses no GPU. For the same reason the phase for copies
  to a device is a copy from memory to memory, into arrays that represent a device's.
* ``env_step_total``, ``mlp_infer``, ``generate``, ``reward``, ``idle``: phases of workers that do
  not split their steps; these report finer ones.
* ``checkpoint``: nothing is saved.
* ``rl.service.silent``: all processes end cleanly.
* ``rl.service.step.*``: most rows have all workers.
* ``rl.policy.kl.rollout``: generators and trainers compute the same values with the same code.
* ``rl.policy.kl.update``: it would need another forward pass after each update.
* ``system.disk.io``, ``system.network.io``: some machines show neither.
* ``rl.policy.clip_fraction.low``, ``rl.policy.clip_fraction.high``: its figure is of both
  sides together.
* ``rl.reward.component``: the reward is one number.
* ``rl.sample.effective_size``: the trainer does not hand its weights to ``lineage``.
* ``rl.train.grad.applied.norm``: it trains without torch, so nothing is watched.
* ``rl.loss.type``, ``rl.staleness.part``: only totals are reported.
"""

from otel_rl.demo.launch import run
from otel_rl.demo.result import DemoResult
from otel_rl.demo.settings import DemoSettings

__all__ = ["DemoResult", "DemoSettings", "run"]
