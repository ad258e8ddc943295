"""TRL and transformers adapter: a ``TrainerCallback``.

trainer = GRPOTrainer(..., callbacks=[otel_rl.integrations.trl.OtelCallback()])

Each optimizer step is a step of otel_rl: its phase is ``train``, but for what TRL's trainers time
by themselves (``ProfilingContext``). Evaluations and checkpoints are phases between steps.
"""

from otel_rl.integrations.trl.callback import OtelCallback, QuietCallback

__all__ = ["OtelCallback", "QuietCallback"]
