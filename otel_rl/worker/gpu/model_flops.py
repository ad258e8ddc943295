"""Model FLOPs utilisation (MFU) of steps, where the model's FLOPs and the device's peak are known.

    tokens trained on in the step * FLOPs per token / (step's duration * devices * peak)

The tokens are what the process's counter ``rl.train.tokens`` counts within the step's block. The
peak is that of the visible GPUs; a thread asks the driver, which may take long to answer.
"""

import logging
import os
import threading
from typing import Final

from otel_rl.worker.fork_barrier import IMPORTS
from otel_rl.worker.gpu.peak_flops import peak_flops_per_s
from otel_rl.worker.gpu.readings import DriverMemory, NoDriver
from otel_rl.worker.guard import Guard
from otel_rl.worker.settings import MfuSettings

__all__ = ["ModelFlops"]

_log = logging.getLogger("otel_rl")


class ModelFlops:
    """MFU of one process's steps. Never raises; any thread may ask.

    Args:
        settings: What is known.
        guard: Catches errors.
    """

    def __init__(self, settings: MfuSettings, guard: Guard) -> None:
        self._settings = settings
        self._guard = guard
        self._peak_flops_per_s = settings.peak_flops_per_s
        self._thread: threading.Thread | None = None

    @property
    def is_known(self) -> bool:
        """Report whether steps have an MFU."""
        return (
            self._settings.model_flops_per_token is not None and self._peak_flops_per_s is not None
        )

    def start(self) -> None:
        """Find out the peak of the visible GPUs, if it is needed. Idempotent, does not wait."""
        is_needed = self._settings.model_flops_per_token is not None
        if not is_needed or self._peak_flops_per_s is not None or self._thread is not None:
            return
        self._thread = threading.Thread(
            target=self._find_out, name="otel-rl-peak-flops", daemon=True
        )
        self._thread.start()

    def utilization(self, tokens: float, duration_s: float) -> float | None:
        """Return the MFU of a step.

        Args:
            tokens: Trained on in the step.
            duration_s: Of the step.

        Returns:
            None if the model's FLOPs or the peak are not known.
        """
        flops_per_token, peak = self._settings.model_flops_per_token, self._peak_flops_per_s
        if flops_per_token is None or peak is None or duration_s <= 0:
            return None
        return tokens * flops_per_token / (duration_s * peak * self._settings.devices)

    def _find_out(self) -> None:
        with self._guard:
            try:
                models = _visible_models()
            except NoDriver as reason:
                _log.warning("No MFU is reported: %s. %s", reason, _REMEDY)
                return
            peaks = {peak_flops_per_s(model) for model in models}
            if len(peaks) == 1 and (peak := peaks.pop()) is not None:
                self._peak_flops_per_s = peak
            else:
                found = ", ".join(sorted(set(models))) or "none is visible"
                _log.warning(
                    "No MFU is reported: GPUs without one known peak (%s). %s", found, _REMEDY
                )


_REMEDY: Final = "Set OTEL_RL_PEAK_FLOPS_PER_S to the peak of one device."


def _visible_models() -> list[str]:
    """Return NVML's name of each visible GPU.

    Raises:
        NoDriver: There is no driver.
    """
    with IMPORTS.work():
        from otel_rl.worker.gpu.nvml import Driver  # few workers need it

        driver = Driver(DriverMemory())
    try:
        devices, _ = driver.devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
        parents = {device.parent for device in devices if device.parent}
        return [
            f"instance of {device.model}" if device.parent else device.model
            for device in devices
            if device.uuid not in parents
        ]
    finally:
        driver.close()
