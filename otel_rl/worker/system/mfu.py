"""Model FLOPs utilisation (MFU) of steps, where the model's FLOPs and the device's peak are known.

    tokens trained on in the step * FLOPs per token / (step's duration * devices * peak)

The tokens are what the process's counter ``rl.train.tokens`` counts within the step's block.
"""

import logging
import os
import re
import threading
from contextlib import closing
from typing import Final

from otel_rl.worker.guard import Guard
from otel_rl.worker.settings import MfuSettings
from otel_rl.worker.system.nvml import Device, Driver, NoDriver

__all__ = ["ModelFlops", "peak_flops_per_s"]

_REMEDY: Final = "Set OTEL_RL_PEAK_FLOPS_PER_S to the peak of one device."

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
        """Find out the peak of the visible GPUs, if it is needed. Idempotent, does not wait.

        A thread asks the driver, which may take long to answer.
        """
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
                devices = _visible_devices()
            except NoDriver as reason:
                _log.warning("No MFU is reported: %s. %s", reason, _REMEDY)
                return
            # Nobody says how much of its GPU an instance is.
            peaks = {None if one.parent else peak_flops_per_s(one.model) for one in devices}
            if len(peaks) == 1 and (peak := peaks.pop()) is not None:
                self._peak_flops_per_s = peak
                return
            models = {f"{'a part of ' * bool(one.parent)}{one.model}" for one in devices}
            found = ", ".join(sorted(models)) or "none is visible"
            _log.warning("No MFU is reported: GPUs without one known peak (%s). %s", found, _REMEDY)


def _visible_devices() -> list[Device]:
    """Return the GPUs and MIG instances that CUDA shows.

    Raises:
        NoDriver: There is no driver.
    """
    with closing(Driver(set())) as driver:
        devices, _ = driver.devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
    divided = {device.parent for device in devices}
    return [device for device in devices if device.uuid not in divided]


_PEAKS: Final[tuple[tuple[str, float], ...]] = (
    # All words of an entry occur in the device's name; of several entries the first one counts.
    ("GB200", 2500),
    ("B200", 2250),
    ("GH200", 989.4),
    ("H200 NVL", 835.5),
    ("H200", 989.4),
    ("H100 PCIe", 756.5),
    ("H100 NVL", 835.5),
    ("H100", 989.4),
    ("H800 PCIe", 756.5),
    ("H800", 989.4),
    ("H20", 148),
    ("A100", 312),
    ("A800", 312),
    ("A30", 165),
    ("A40", 149.7),
    ("A10", 125),
    ("A10G", 70),
    ("L4", 121),
    ("L40", 181),
    ("L40S", 362),
    ("RTX A6000", 154.8),
    ("RTX 6000 Ada", 364.2),
    ("V100 PCIE", 112),
    ("V100", 125),
    ("T4", 65),
)
"""Dense matrix multiplication in BF16 (V100 and T4: FP16) with accumulation in FP32, in 1e12
operations a second, from NVIDIA's data sheets, which give twice as much for sparse matrices."""

_WORDS: Final = re.compile(r"[^ \-_/]+")

_MAKERS: Final = frozenset({"NVIDIA", "TESLA"})

_SHARE: Final = re.compile(r"MIG|\d+[ABCQ]")
"""Words of the names of parts of a device: MIG instances, and virtual GPUs such as A40-8Q."""


def peak_flops_per_s(model: str) -> float | None:
    """Return the peak of a device with NVML's name ``model``; None if it is not known."""
    words = {word.upper() for word in _WORDS.findall(model)}
    if not words & _MAKERS or any(map(_SHARE.fullmatch, words)):
        return None
    for name, tera in _PEAKS:
        if words.issuperset(name.upper().split()):
            return tera * 1e12
    return None
