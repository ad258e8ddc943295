"""Ranks of Megatron-LM by its own telemetry code, through nemo-lens.

It needs ``megatron/core/telemetry`` and ``megatron/training/training.py`` of Megatron-LM,
``nemo.lens`` and tests/frameworks in ``PYTHONPATH``. Only the work inside of the spans is missing;
their order and attributes are those of ``train``, ``train_step`` and ``save_checkpoint_and_time``.
"""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

STEPS, RANKS = 20, 3
TRAINS_S, SLOWLY_S = 0.05, 0.25
SLOW_RANK, SLOW_FROM = 1, 10
SAVES_EVERY = 8


def rank_of(rank: int) -> None:
    """Make the steps of one rank."""
    from nemo.lens import NemoLensConfig, setup_telemetry
    from stand_ins import stand_in

    stand_in("torch", "megatron", "numpy", "transformer_engine", "nvidia_resiliency_ext")
    from megatron.core.telemetry.span_groups import MegatronSpanGroup
    from megatron.core.telemetry.training_metrics import record_training_metrics
    from megatron.training import training

    config = NemoLensConfig.from_env(
        prefix="MEGATRON_OTEL", fallback_prefix="NEMO_LENS", span_group_cls=MegatronSpanGroup
    )
    handle = setup_telemetry(config, rank=rank, world_size=RANKS)
    training.get_telemetry = lambda: handle
    training.get_args = lambda: SimpleNamespace(save_interval=SAVES_EVERY)
    span = training._otel_managed_span
    begin_s = float(os.environ["BEGIN_S"])
    training._start_otel_job_spans("ModelType.encoder_or_decoder", time.time())
    with span("model_init", "megatron.startup.model_init", is_goodput_span=True):
        time.sleep(max(0.0, begin_s - time.time()))
    training._end_otel_startup_span()
    training._start_otel_train_span()
    for step in range(STEPS):
        training._maybe_reroot_otel_interval()
        slow_steps = max(0, step + 1 - SLOW_FROM)
        ends_s = begin_s + (step + 1) * (TRAINS_S + 0.03) + slow_steps * (SLOWLY_S - TRAINS_S)
        begun_s = time.time()
        named = {"megatron.iteration": step}
        with span("step", "megatron.train.iteration", is_goodput_span=True, **named):
            with span("forward_backward", "megatron.train.iteration.forward_backward"):
                is_slow = rank == SLOW_RANK and step >= SLOW_FROM
                time.sleep(SLOWLY_S if is_slow else TRAINS_S)
                with span("communication", "megatron.grad_sync.finish"):  # all ranks meet here
                    time.sleep(max(0.0, ends_s - time.time()))
            with span("optimizer", "megatron.train.iteration.optimizer"):
                time.sleep(0.01)
        with span("step", "megatron.train.log", is_goodput_span=True):
            took_ms = (time.time() - begun_s) * 1000
            record_training_metrics(
                handle.meter, took_ms, loss=1 / (step + 1), grad_norm=1.5, tokens_per_sec=4096.0
            )
        if step % SAVES_EVERY == SAVES_EVERY - 1:
            with span("checkpoint", "megatron.checkpoint.save", is_goodput_span=True, **named):
                time.sleep(0.02)
    training._end_otel_job_spans()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_of(int(sys.argv[1]))
    else:
        environment = os.environ | {
            "MEGATRON_OTEL_ENABLED": "1",
            "MEGATRON_OTEL_EXPORT_STRATEGY": "all_ranks",
            "MEGATRON_OTEL_SPAN_GROUPS": "per_step",
            "MEGATRON_OTEL_RUN_ID": "4711",
            "OTEL_SERVICE_NAME": "megatron-lm",
            "BEGIN_S": str(time.time() + 3),
        }
        ranks = [
            subprocess.Popen([sys.executable, __file__, str(rank)], env=environment)
            for rank in range(RANKS)
        ]
        sys.exit(max(rank.wait() for rank in ranks))
