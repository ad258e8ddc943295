"""GPU sampling settings from arguments and environment. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from otel_rl.errors import ConfigError

__all__ = ["DEFAULT_INTERVAL_S", "GpuOptions", "GpuSettings", "read_gpu_settings"]

DEFAULT_INTERVAL_S: Final = 5.0
"""Equals the bridge's window, so that every window has a sample of every device."""

_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("", "0", "false", "no", "off")


class GpuOptions(TypedDict, total=False):
    """Options that ``init(gpu=...)`` accepts instead of ``True``.

    Attributes:
        roles: Roles whose workers sample; default all.
        devices: NVML numbers or ids; default those visible to the process.
        interval_s: Between two samples of a device.
    """

    roles: Sequence[str]
    devices: Sequence[int | str]
    interval_s: float


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """GPU sampling of a worker.

    Attributes:
        enabled: True if sampling is on.
        roles: Of the workers that sample; empty for all.
        devices: In the format of ``CUDA_VISIBLE_DEVICES``; None uses that variable.
        interval_s: Between two samples of a device.
    """

    enabled: bool = False
    roles: tuple[str, ...] = ()
    devices: str | None = None
    interval_s: float = DEFAULT_INTERVAL_S

    def are_for(self, role: str) -> bool:
        """Report whether a worker of ``role`` samples."""
        return self.enabled and (not self.roles or role in self.roles)


def read_gpu_settings(
    environ: Mapping[str, str], *, given: bool | GpuOptions | None = None
) -> GpuSettings:
    """Read the environment; arguments of ``init`` take precedence, option by option.

    Args:
        environ: The process's environment.
        given: ``init``'s argument ``gpu``.

    Raises:
        ConfigError: Names the wrong setting, its value and the remedy.
    """
    enabled, options = _given(given)
    if enabled is None:
        enabled = _switch(environ.get("OTEL_RL_GPU", ""))
    roles = options.get("roles")
    if roles is None:
        roles = _words(environ.get("OTEL_RL_GPU_ROLES", ""))
    devices = options.get("devices")
    if devices is None:
        devices = _words(environ.get("OTEL_RL_GPU_DEVICES", "")) or None
    interval_s = options.get("interval_s")
    if interval_s is None:
        interval_s = _interval_s(environ.get("OTEL_RL_GPU_INTERVAL", ""))
    return GpuSettings(
        enabled,
        tuple(roles),
        None if devices is None else ",".join(str(device) for device in devices),
        float(interval_s),
    )


def _given(given: object) -> tuple[bool | None, GpuOptions]:
    if given is None or isinstance(given, bool):
        return given, {}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"gpu: must be True, False or a mapping (got {given!r}).",
            hint='Pass gpu=True, or gpu={"roles": ["trainer"]}.',
        )
    unknown = set(given) - set(GpuOptions.__annotations__)
    if unknown:
        raise ConfigError(
            f"gpu: unknown option {min(map(str, unknown))!r}.",
            hint="Options are roles, devices and interval_s.",
        )
    options: GpuOptions = {}
    if given.get("roles") is not None:
        options["roles"] = _list("gpu.roles", given["roles"], str)
    if given.get("devices") is not None:
        options["devices"] = _list("gpu.devices", given["devices"], (int, str))
    if given.get("interval_s") is not None:
        options["interval_s"] = _seconds("gpu.interval_s", given["interval_s"])
    return True, options


def _list(where: str, value: object, kind: type | tuple[type, ...]) -> Sequence[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{where}: must be a list (got {value!r}).", hint="Use [...].")
    for one in value:
        if isinstance(one, bool) or not isinstance(one, kind) or "," in str(one):
            raise ConfigError(
                f"{where}: cannot hold {one!r}.",
                hint="Use words for roles, and numbers or ids such as GPU-... for devices.",
            )
    return value


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ConfigError(
            f"OTEL_RL_GPU: must be 1 or 0 (got {text!r}).", hint="Correct or unset it."
        )
    return word in _TRUE


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _interval_s(text: str) -> float:
    if not text.strip():
        return DEFAULT_INTERVAL_S
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = 0.0
    return _seconds("OTEL_RL_GPU_INTERVAL", milliseconds / 1000, shown=f"{text!r} milliseconds")


def _seconds(where: str, value: object, shown: str = "") -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0.01 <= value < 1e6
    if not good:
        raise ConfigError(
            f"{where}: must be 10 milliseconds or more (got {shown or repr(value)}).",
            hint=f"Leave it out for {DEFAULT_INTERVAL_S:g} seconds.",
        )
    return float(value)  # type: ignore[arg-type]  # `good` implies a number
