"""``wandb.integration.sb3``: Stable-Baselines3's callback, for the run in progress.

Metrics come from the algorithm's TensorBoard writer: ``init(sync_tensorboard=True)``.
"""

import os
from pathlib import Path

from stable_baselines3.common.callbacks import (  # type: ignore[import-not-found]  # no dependency
    BaseCallback,
)

from otel_rl.integrations.wandb._absent import warn_once
from otel_rl.integrations.wandb._run import current
from otel_rl.worker.tensors import PLAIN

__all__ = ["WandbCallback"]


class WandbCallback(BaseCallback):  # type: ignore[misc]  # Any where it is not installed
    """Sets the algorithm's settings as config, and saves ``model.zip`` on this machine.

    Args:
        verbose: Of the callback, as in Stable-Baselines3.
        model_save_path: A directory for the model; None saves nothing.
        model_save_freq: Calls between two saves; 0 saves at the end only.
        gradient_save_freq: Ignored, with a warning: no gradient is watched.
        log: Ignored.
    """

    def __init__(
        self,
        verbose: int = 0,
        model_save_path: "str | os.PathLike[str] | None" = None,
        model_save_freq: int = 0,
        gradient_save_freq: int = 0,
        log: str | None = "all",
    ) -> None:
        super().__init__(verbose)
        self._directory = None if model_save_path is None else Path(model_save_path)
        self._save_every = model_save_freq
        if gradient_save_freq > 0 and log is not None:
            warn_once("WandbCallback(gradient_save_freq=...) does nothing: no gradient is watched.")

    def _init_callback(self) -> None:
        if (run := current()) is not None:
            settings = {"algo": type(self.model).__name__}
            for name, value in vars(self.model).items():
                settings[name] = value if type(value) in PLAIN or value is None else str(value)
            run.config.setdefaults(settings)

    def _on_step(self) -> bool:
        if self._save_every and self.n_calls % self._save_every == 0:
            self._on_training_end()
        return True

    def _on_training_end(self) -> None:
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self.model.save(self._directory / "model.zip")
