"""The former name of ``otel_rl.integrations.wandb``, which it still is."""

import sys
import warnings

from otel_rl.integrations import wandb

warnings.warn(
    "otel_rl.compat.wandb is now otel_rl.integrations.wandb.", DeprecationWarning, stacklevel=2
)
sys.modules[__name__] = wandb
