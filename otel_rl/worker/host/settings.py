"""Settings of the host's metrics, from the environment. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_rl.errors import ConfigError

__all__ = ["HostSettings", "read_host_settings"]

_SWITCH: Final = "OTEL_RL_HOST"
_INTERVAL: Final = "OTEL_RL_HOST_INTERVAL"

_DEFAULT_INTERVAL_S: Final = 15.0
"""Equals that of W&B's own sampler."""

_MIN_INTERVAL_S: Final = 1.0
"""A sample takes milliseconds, and shorter ones of the CPU are noise."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Reports of the host.

    Attributes:
        enabled: False reports nothing.
        interval_s: Between two samples, at least; they are taken at exports.
    """

    enabled: bool = True
    interval_s: float = _DEFAULT_INTERVAL_S


def read_host_settings(environ: Mapping[str, str]) -> HostSettings:
    """Read the environment.

    Raises:
        ConfigError: Names the wrong variable, its value and the remedy.
    """
    switch = environ.get(_SWITCH, "").strip().lower()
    if switch not in ("", "on", "off"):
        raise ConfigError(
            f"{_SWITCH}: must be on or off (got {switch!r}).", hint="Correct or unset it."
        )
    return HostSettings(switch != "off", _interval_s(environ.get(_INTERVAL, "").strip()))


def _interval_s(text: str) -> float:
    try:
        interval_s = float(text) / 1000 if text else _DEFAULT_INTERVAL_S
    except ValueError:
        interval_s = 0.0
    if not _MIN_INTERVAL_S <= interval_s < 1e6:
        raise ConfigError(
            f"{_INTERVAL}: must be 1000 milliseconds or more (got {text!r}).",
            hint=f"Leave it out for {_DEFAULT_INTERVAL_S:g} seconds.",
        )
    return interval_s
