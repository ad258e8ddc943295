"""The former home of the W&B drop-in: use ``otel_rl.integrations.wandb``."""
