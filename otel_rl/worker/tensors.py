"""Converts numbers of training code: those of Python, of numpy, and tensors on a device.

``hold`` runs on the training thread and never waits for a device. ``number`` waits; the exporter
thread asks ``is_ready`` first, so that a device that hangs does not silence the worker.

By default the capture of a CUDA graph fails if any other thread of the process asks whether an
event has happened. So the training thread asks for nothing, and the exporter's thread tells the
driver that its calls do not concern the capture. This module does not load torch.
"""

import operator
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Final, Protocol, SupportsIndex, runtime_checkable

PLAIN: Final = frozenset({float, int, bool})
"""Immutable types, which need no ``hold``."""

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class NotANumber:
    """Stands in the buffer for a value that is not a number, of which it keeps a description."""

    __slots__ = ("description",)

    def __init__(self, value: object) -> None:
        self.description = type(value).__name__
        with suppress(Exception):  # a broken object may raise for its shape
            self.description += f" of shape {tuple(value.shape)}"  # type: ignore[attr-defined]


class _Event(Protocol):
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


class _Tensor(Protocol):
    device: object

    def clone(self) -> object: ...
    def to(self, device: str, *, non_blocking: bool) -> object: ...


@runtime_checkable
class _JaxArray(Protocol):
    def is_ready(self) -> bool: ...


class Deferred(ABC):
    """A number that a device has yet to compute."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether ``read`` would not wait."""

    @abstractmethod
    def read(self) -> object:
        """Return the number, in any type. Waits for the device."""


class _OnDevice(Deferred):
    """Copy of a tensor on its way to the host, with the event that follows it on the device."""

    __slots__ = ("_event", "_tensor")

    def __init__(self, tensor: object, event: _Event) -> None:
        self._tensor = tensor
        self._event = event

    @property
    def is_ready(self) -> bool:
        return self._event.query()

    def read(self) -> object:
        self._event.synchronize()
        return self._tensor


class _Element(Deferred):
    __slots__ = ("_place", "_vector")

    def __init__(self, vector: Deferred, place: int) -> None:
        self._vector = vector
        self._place = place

    @property
    def is_ready(self) -> bool:
        return self._vector.is_ready

    def read(self) -> object:
        vector: Any = self._vector.read()
        return vector[self._place]


class _Dispatched(Deferred):
    """An array of JAX that its device computes in the background."""

    __slots__ = ("_array",)

    def __init__(self, array: _JaxArray) -> None:
        self._array = array

    @property
    def is_ready(self) -> bool:
        return self._array.is_ready()

    def read(self) -> object:
        return self._array


def hold(value: object) -> object:
    """Return an object that ``number`` reads as the present value, whatever changes later.

    Only single elements are copied. The copy from a device is enqueued without waiting: the result
    is then a ``Deferred``. Never raises.
    """
    if type(value) in PLAIN or value is None:
        return value
    if isinstance(value, str | bytes | Deferred | NotANumber):
        return value
    try:
        return _copy(value)
    except Exception:  # noqa: BLE001  # a broken value counts as not a number
        return NotANumber(value)


def hold_each(vector: Any, count: int) -> Sequence[object]:
    """Return ``hold`` of each of ``count`` elements of a torch vector, with a single copy."""
    held: Any = _copy_of_tensor(vector, vector.detach())
    if isinstance(held, NotANumber):
        return [held] * count
    if isinstance(held, Deferred):
        return [_Element(held, place) for place in range(count)]
    return [*held.unbind()]


def _copy(value: object) -> object:
    if _element_count(value) != 1:
        return NotANumber(value)
    detach = getattr(value, "detach", None)
    if callable(detach):
        return _copy_of_tensor(value, detach())
    copy = getattr(value, "copy", None)
    copied = copy() if callable(copy) else value
    return _Dispatched(copied) if isinstance(copied, _JaxArray) else copied


def _copy_of_tensor(tensor: object, detached: _Tensor) -> object:
    """Copy a tensor to the host within its own stream.

    If another thread read the tensor later, the copy would queue behind all work that the device
    has by then.
    """
    cuda = torch_cuda()
    if cuda is None or not getattr(tensor, "is_cuda", False):
        return detached.clone()
    if cuda.is_current_stream_capturing():
        return NotANumber(tensor)  # a CUDA graph computes it later, again and again
    with cuda.device(detached.device):
        # Into pinned memory, which torch makes and keeps for later copies.
        copied = detached.to("cpu", non_blocking=True)
        event = cuda.Event()
        event.record()
    return _OnDevice(copied, event)


def number(held: object) -> float | NotANumber:
    """Read the result of ``hold``, and wait for its device. 64-bit integers stay integers."""
    if isinstance(held, float) and type(held) is float:
        return held
    if isinstance(held, NotANumber):
        return held
    if isinstance(held, Deferred):
        held = held.read()
    item = getattr(held, "item", None)
    value: object = item() if callable(item) else held
    try:
        return _as_python(value)
    except (TypeError, ValueError, OverflowError):
        return NotANumber(held)


_kept: Final[list[object]] = []
_keepers: Final[list[Thread]] = []


def keep_for_ever(held: Sequence[object]) -> None:
    """Never free held values in a forked child, not even when its interpreter ends.

    To free pinned memory torch records an event on the device, which fails in a child, and ends the
    process.
    """
    _kept.extend(held)
    if _kept and not any(keeper.is_alive() for keeper in _keepers):
        # The end of an interpreter clears modules, but not what a daemon thread is using.
        keeper = Thread(target=_hold, args=(_kept,), name="otel-rl-device-copies", daemon=True)
        _keepers.append(keeper)
        keeper.start()


def _hold(_kept: list[object]) -> None:
    Event().wait()


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


_RELAXED: Final = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""


class _Thread(threading.local):
    leaves_captures_alone = False


_thread = _Thread()


def torch_cuda() -> Any | None:
    """Return ``torch.cuda``; None if the program has not loaded torch."""
    return getattr(sys.modules.get("torch"), "cuda", None)


def is_cuda_in_use() -> bool:
    """Return whether the process has queued work on a device."""
    # A thread may be importing torch.
    is_initialized = getattr(torch_cuda(), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def leave_captures_alone() -> None:
    """Make this thread's calls invisible to captures of others; for otel_rl's own threads only.

    Idempotent; does nothing until the process uses CUDA.
    """
    if _thread.leaves_captures_alone or not is_cuda_in_use():
        return
    _thread.leaves_captures_alone = True
    exchange = _exchange_mode()
    if exchange is not None:
        import ctypes  # torch has loaded it

        exchange(ctypes.byref(ctypes.c_int(_RELAXED)))


def _exchange_mode() -> Callable[[Any], int] | None:
    import ctypes

    try:
        found: Callable[[Any], int] = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        return None
    return found
