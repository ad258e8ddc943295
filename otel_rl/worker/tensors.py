"""Converts numbers of training code: Python's, numpy's, tensors on a device.

``hold`` runs on the training thread and never waits for a device. ``number`` runs on the exporter
thread and may.
"""

import operator
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, SupportsIndex, runtime_checkable

__all__ = ["PLAIN", "NotANumber", "as_step", "hold", "number"]

PLAIN: Final = frozenset({float, int, bool})
"""Immutable types, which need no ``hold``."""

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class NotANumber:
    """Placeholder in the buffer for a value that is not a number, with its description.

    Args:
        value: The offending value. Only its description is kept.
    """

    __slots__ = ("description",)

    def __init__(self, value: object) -> None:
        self.description = type(value).__name__
        with suppress(Exception):  # a broken object may raise for its shape
            self.description += f" of shape {tuple(value.shape)}"  # type: ignore[attr-defined]


@runtime_checkable
class _Event(Protocol):
    def synchronize(self) -> None: ...


class _OnDevice:
    """Private copy of a tensor and the event after which its value is available."""

    __slots__ = ("event", "tensor")

    def __init__(self, tensor: object, event: _Event | None) -> None:
        self.tensor = tensor
        self.event = event


def hold(value: object) -> object:
    """Return an object that ``number`` reads as the present value, whatever changes later.

    Copies single elements only, and enqueues a device copy without waiting for it. Never raises.
    """
    if type(value) in PLAIN or value is None or isinstance(value, str | bytes):
        return value
    try:
        return _copy(value)
    except Exception:  # noqa: BLE001  # a broken value counts as not a number
        return NotANumber(value)


def _copy(value: object) -> object:
    if _element_count(value) != 1:
        return NotANumber(value)
    detach = getattr(value, "detach", None)
    if callable(detach):
        return _OnDevice(detach().clone(), _recorded_event(value))
    copy = getattr(value, "copy", None)
    return copy() if callable(copy) else value


def number(held: object) -> float | NotANumber:
    """Read a held value. Integers that fit 64 bits stay integers; True is 1."""
    if isinstance(held, float) and type(held) is float:
        return held
    if isinstance(held, NotANumber):
        return held
    if isinstance(held, _OnDevice):
        if held.event is not None:
            held.event.synchronize()
        held = held.tensor
    item = getattr(held, "item", None)
    value: object = item() if callable(item) else held
    try:
        return _as_python(value)
    except (TypeError, ValueError, OverflowError):
        return NotANumber(held)


def as_step(step: object) -> int | None:
    """Return a 64-bit integer for integers of any library and integral floats; None otherwise."""
    if type(step) is int:  # fast path: the rest costs ten times as much
        return step if _INT64_MIN <= step <= _INT64_MAX else None
    if step is None:
        return None
    if isinstance(step, float) and step.is_integer():
        return as_step(int(step))
    if isinstance(step, SupportsIndex) and not isinstance(step, bool):
        with suppress(TypeError, ValueError):
            return as_step(operator.index(step))
    return None


def _as_python(value: object) -> float | NotANumber:
    if isinstance(value, int):  # and bool
        return int(value) if _INT64_MIN <= value <= _INT64_MAX else float(value)
    convert: Callable[[], float] | None = getattr(value, "__float__", None)
    if convert is None:
        return NotANumber(value)
    return float(convert())


def _element_count(value: object) -> int:
    """Return 1 for scalars; the count for arrays and tensors; 0 for other containers."""
    numel = getattr(value, "numel", None)
    if callable(numel):
        return int(numel())
    size = getattr(value, "size", None)
    if isinstance(size, int):
        return size
    return 0 if hasattr(value, "__len__") else 1


def _recorded_event(tensor: object) -> _Event | None:
    """Mark the point in the tensor's stream after which its copy is complete.

    The exporter thread reads from another stream, which does not wait for this one.
    """
    if not getattr(tensor, "is_cuda", False):
        return None
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None:
        return None
    event = cuda.Event()
    event.record()
    return event if isinstance(event, _Event) else None
