"""A small asynchronous GRPO run of NeMo-RL, by its own telemetry code.

It needs ``nemo_rl.telemetry`` and ``nemo.lens`` in ``PYTHONPATH``, from the repositories of NeMo-RL
and Lens. Only the work inside of the spans is missing; their order and attributes are those of
``nemo_rl/algorithms/grpo.py`` and ``trajectory_collector.py``.
"""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

STEPS = 24
GENERATES_S, SLOWLY_S = 0.05, 0.3
SLOW_FROM = 12  # its generation takes that long
TRAINS_S = 0.1
RANKS = 2


def driver() -> None:
    """Train: start the workers, make the steps, end."""
    from nemo_rl.telemetry.config import TelemetryConfig
    from nemo_rl.telemetry.instrumentation import (
        current_trace_carrier,
        efficiency_span,
        managed_span,
    )
    from nemo_rl.telemetry.metrics import tee_rl_metrics_to_otel
    from nemo_rl.telemetry.setup import init_telemetry_driver, shutdown_telemetry
    from nemo_rl.telemetry.span_groups import RLSpanGroup

    telemetry = TelemetryConfig(enabled=True, span_groups="per_step")
    policy = {"model_name": "tiny", "precision": "bfloat16"}
    init_telemetry_driver(SimpleNamespace(telemetry=telemetry, policy=policy), "grpo")
    workers = [
        start(part, group, rank)
        for part, group in (("policy", "lm_policy"), ("generation", "vllm_policy"))
        for rank in range(RANKS)
    ]
    collector = start("collector", "trajectory_collector", 0, **current_trace_carrier())
    assert collector.stdout is not None
    for step in range(STEPS):
        with managed_span(RLSpanGroup.STEP, "rl.grpo.step", **{"rl.iteration": step + 1}):
            with efficiency_span("idle/buffer_starvation"):
                collector.stdout.readline()
            with managed_span(RLSpanGroup.REWARD, "rl.grpo.compute_rewards"):
                time.sleep(0.01)
            with managed_span(RLSpanGroup.LOGPROB, "rl.grpo.compute_logprobs"):
                time.sleep(0.03)
            with managed_span(RLSpanGroup.ADVANTAGE, "rl.grpo.compute_advantages"):
                time.sleep(0.01)
            with managed_span(
                RLSpanGroup.POLICY_UPDATE, "rl.grpo.policy_update", **{"rl.iteration": step + 1}
            ):
                time.sleep(TRAINS_S)
            with efficiency_span("idle/refit_bubble"):
                time.sleep(0.04)
        measured = {
            "loss": 1 / (step + 1),
            "reward": step / 10,
            "kl_penalty": 0.01,
            "grad_norm": 1.5,
            "lr": 1e-6,
            "approx_entropy": 0.7,
            "mean_gen_tokens_per_sample": 128.0 + step,
        }
        tee_rl_metrics_to_otel(measured, "train")
    for worker in [*workers, collector]:
        worker.wait()
    shutdown_telemetry()


def start(part: str, group: str, rank: int, **carrier: str) -> subprocess.Popen[bytes]:
    """Start a worker as Ray does: with the driver's environment and its place in the group."""
    count = RANKS if part != "collector" else 1
    place = {"NRL_WORKER_GROUP": group, "RANK": str(rank), "WORLD_SIZE": str(count)}
    command = [sys.executable, __file__, part, *carrier.values()]
    return subprocess.Popen(command, env=os.environ | place, stdout=subprocess.PIPE)


def worker(part: str, carrier: dict[str, str]) -> None:
    """Load the model, and collect samples if that is the part."""
    from nemo_rl.telemetry.instrumentation import managed_span, remote_trace_context
    from nemo_rl.telemetry.setup import init_telemetry_worker, shutdown_telemetry
    from nemo_rl.telemetry.span_groups import RLSpanGroup

    init_telemetry_worker()
    if part == "generation":
        with managed_span(RLSpanGroup.MODEL_INIT, "rl.vllm.load_model"):
            time.sleep(0.05)
    for version in range(STEPS if part == "collector" else 0):
        marks = {"rl.weight_version": version, "rl.target_weight_version": version}
        with (
            remote_trace_context(carrier),
            managed_span(RLSpanGroup.ROLLOUT, "rl.grpo.collect_rollouts", **marks),
        ):
            time.sleep(GENERATES_S if version < SLOW_FROM else SLOWLY_S)
        sys.stdout.write(f"{version}\n")
        sys.stdout.flush()
        time.sleep(TRAINS_S)
    shutdown_telemetry()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        driver()
    else:
        worker(sys.argv[1], {"traceparent": sys.argv[2]} if len(sys.argv) > 2 else {})
