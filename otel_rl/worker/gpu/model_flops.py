"""Model FLOPs utilisation (MFU) of steps, where the model's FLOPs and the device's peak are known.

    tokens trained on in the step * FLOPs per token / (step's duration * devices * peak)

The tokens are what the process's counter ``rl.train.tokens`` counts within the step's block. The
peak is that of the visible GPUs; a thread asks the driver, which may take long to answer.
"""

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, TypedDict

from otel_rl.errors import ConfigError
from otel_rl.worker.fork_barrier import IMPORTS
from otel_rl.worker.gpu.peak_flops import peak_flops_per_s
from otel_rl.worker.gpu.readings import DriverMemory, NoDriver
from otel_rl.worker.guard import Guard

__all__ = ["MfuOptions", "MfuSettings", "ModelFlops", "read_mfu_settings"]

_FLOPS_VARIABLE: Final = "OTEL_RL_MODEL_FLOPS_PER_TOKEN"
_PEAK_VARIABLE: Final = "OTEL_RL_PEAK_FLOPS_PER_S"
_DEVICES_VARIABLE: Final = "OTEL_RL_MFU_DEVICES"

_log = logging.getLogger("otel_rl")


class MfuOptions(TypedDict, total=False):
    """Options of ``init(mfu=...)``.

    Attributes:
        model_flops_per_token: Of training on one token, forward and backward.
        peak_flops_per_s: Of one device; default that of the visible GPUs.
        devices: That train the tokens which this process counts; default 1.
    """

    model_flops_per_token: float
    peak_flops_per_s: float
    devices: int


@dataclass(frozen=True, slots=True)
class MfuSettings:
    """Known inputs of the MFU.

    Attributes:
        model_flops_per_token: None reports no MFU.
        peak_flops_per_s: Of one device; None for that of the visible GPUs.
        devices: That train the tokens which this process counts.
    """

    model_flops_per_token: float | None = None
    peak_flops_per_s: float | None = None
    devices: float = 1


def read_mfu_settings(
    environ: Mapping[str, str], *, given: MfuOptions | None = None
) -> MfuSettings:
    """Read the environment; arguments of ``init`` take precedence, option by option.

    Args:
        environ: The process's environment.
        given: ``init``'s argument ``mfu``.

    Raises:
        ConfigError: Names the wrong setting, its value and the remedy.
    """
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(
            f"mfu: must be a mapping (got {given!r}).",
            hint='Pass mfu={"model_flops_per_token": 4.2e10}.',
        )
    options: Mapping[str, object] = {**(given or {})}
    unknown = set(options) - set(MfuOptions.__annotations__)
    if unknown:
        raise ConfigError(
            f"mfu: unknown option {min(map(str, unknown))!r}.",
            hint="Options are model_flops_per_token, peak_flops_per_s and devices.",
        )

    def find(option: str, variable: str) -> float | None:
        if options.get(option) is not None:
            return _positive(f"mfu.{option}", options[option])
        text = environ.get(variable, "").strip()
        return _positive(variable, text) if text else None

    settings = MfuSettings(
        find("model_flops_per_token", _FLOPS_VARIABLE),
        find("peak_flops_per_s", _PEAK_VARIABLE),
        find("devices", _DEVICES_VARIABLE) or 1,
    )
    if options and settings.model_flops_per_token is None:
        raise ConfigError(
            "mfu.model_flops_per_token: is missing.",
            hint="For a dense model take 6 times its number of parameters.",
        )
    return settings


def _positive(where: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) else 0.0
    except ValueError:
        number = 0.0
    if isinstance(value, bool) or not 0 < number < inf:
        raise ConfigError(
            f"{where}: must be a positive number (got {value!r}).",
            hint="Correct it or leave it out.",
        )
    return number


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


_REMEDY: Final = f"Set {_PEAK_VARIABLE} to the peak of one device."


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
