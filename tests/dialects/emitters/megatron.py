"""Ranks of Megatron-LM as its documentation describes them, through nemo-lens.

It needs ``nemo.lens`` in ``PYTHONPATH``. Megatron-LM's own call sites are not released: the names
of spans, attributes and metrics are those of ``megatron/core/telemetry`` (68f6422) and of
``docs/user-guide/observability``.
"""

import os
import subprocess
import sys
import time

STEPS, RANKS = 20, 3
TRAINS_S, SLOWLY_S = 0.05, 0.25
SLOW_RANK, SLOW_FROM = 1, 10


def rank_of(rank: int) -> None:
    """Make the steps of one rank, each a trace of its own."""
    from nemo.lens import NemoLensConfig, managed_span, setup_telemetry

    config = NemoLensConfig.from_env(prefix="MEGATRON_OTEL", fallback_prefix="NEMO_LENS")
    handle = setup_telemetry(config, rank=rank, world_size=RANKS)
    loss = handle.meter.create_gauge("megatron.training.loss")
    norm = handle.meter.create_gauge("megatron.training.grad_norm")
    begin_s = float(os.environ["BEGIN_S"])
    time.sleep(max(0.0, begin_s - time.time()))
    for step in range(1, STEPS + 1):
        is_slow = rank == SLOW_RANK and step >= SLOW_FROM
        slow_steps = max(0, step - SLOW_FROM)
        ends_s = begin_s + step * (TRAINS_S + 0.03) + slow_steps * (SLOWLY_S - TRAINS_S)
        ends_s += (SLOWLY_S - TRAINS_S) * (step >= SLOW_FROM)
        with managed_span("step", "megatron.train_step", **{"megatron.iteration": step}):
            with managed_span("forward_backward", "megatron.forward_backward"):
                time.sleep(SLOWLY_S if is_slow else TRAINS_S)
            # All ranks meet here.
            with managed_span("optimizer", "megatron.grad_sync.finish"):
                time.sleep(max(0.0, ends_s - time.time()))
            with managed_span("optimizer", "megatron.optimizer_step"):
                time.sleep(0.01)
        loss.set(1 / step)
        norm.set(1.5)
    handle.shutdown()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_of(int(sys.argv[1]))
    else:
        environment = os.environ | {
            "MEGATRON_OTEL_ENABLED": "1",
            "MEGATRON_OTEL_EXPORT_STRATEGY": "all_ranks",
            "MEGATRON_OTEL_SPAN_GROUPS": "step,forward_backward,optimizer",
            "MEGATRON_OTEL_RUN_ID": "4711",
            "OTEL_SERVICE_NAME": "megatron-lm",
            "BEGIN_S": str(time.time() + 3),
        }
        ranks = [
            subprocess.Popen([sys.executable, __file__, str(rank)], env=environment)
            for rank in range(RANKS)
        ]
        sys.exit(max(rank.wait() for rank in ranks))
