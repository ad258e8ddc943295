"""A device's stream without a device: what ``torch.cuda`` is to us.

cuda = Cuda(monkeypatch)
cuda.launch(50)  # work of 50 ms, which the program does not wait for
loss = cuda.tensor(0.5)
cuda.run()  # the device does all its work
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import ModuleType

import pytest


class Event:
    """An event of a stream."""

    def __init__(self, cuda: "Cuda", *, enable_timing: bool = False) -> None:
        self._cuda = cuda
        self._has_time = enable_timing
        self.at_ms: float | None = None
        self._number: int | None = None

    def record(self) -> None:
        if self._number not in (None, self._cuda.number):
            raise RuntimeError("Event device does not match recording stream's device")
        self._number = self._cuda.number
        self.at_ms = None
        self._cuda.queue(self._happen)

    def query(self) -> bool:
        self._cuda.queried_by.add(get_ident())
        if self._cuda.failure is not None:
            raise self._cuda.failure
        return self.at_ms is not None

    def synchronize(self) -> None:
        if not self.query():
            self._cuda.waits += 1
            self._cuda.run()

    def elapsed_time(self, later: "Event") -> float:
        assert self._has_time
        assert later._has_time
        assert self._number == later._number
        assert self.at_ms is not None
        assert later.at_ms is not None
        return later.at_ms - self.at_ms

    def _happen(self) -> None:
        self.at_ms = self._cuda.now_ms


class Tensor:
    """A tensor of one element, on the device or on the host."""

    device = "cuda:0"

    def __init__(self, cuda: "Cuda", cell: list[float], *, is_cuda: bool = True) -> None:
        self._cuda = cuda
        self.cell = cell
        self.is_cuda = is_cuda

    def numel(self) -> int:
        return 1

    def detach(self) -> "Tensor":
        return self

    def to(self, device: str, *, non_blocking: bool) -> "Tensor":
        assert (device, non_blocking) == ("cpu", True)
        copied = Tensor(self._cuda, [float("nan")], is_cuda=False)
        self._cuda.queue(lambda: copied.cell.__setitem__(0, self.cell[0]))
        return copied

    def item(self) -> float:
        if self.is_cuda:
            self._cuda.waits += 1
            self._cuda.run()
        return self.cell[0]


class Cuda:
    """``torch.cuda`` of this process until the test is over.

    Args:
        monkeypatch: Installs the module ``torch``.

    Attributes:
        now_ms: The device's clock.
        waits: How often someone has waited for the device.
        failure: What each query raises; None while the device works.
        queried_by: Threads that have asked whether an event has happened.
        number: Of the present device.
        is_capturing: Whether a CUDA graph is being captured.
        is_beside: Whether the present stream is another one, in which there is no work.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        self.waits = 0
        self.failure: Exception | None = None
        self.queried_by: set[int] = set()
        self.number = 0
        self.is_capturing = False
        self.is_beside = False
        self._work: deque[Callable[[], object]] = deque()
        torch = ModuleType("torch")
        torch.cuda = self  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torch", torch)

    def tensor(self, value: float) -> Tensor:
        return Tensor(self, [value])

    def launch(self, takes_ms: float) -> None:
        """Queue a kernel, which begins when the test says so."""
        self._work.append(lambda: self._pass(takes_ms))

    def queue(self, work: Callable[[], object]) -> None:
        """Queue what takes no time: an idle device does it at once."""
        if self._work and not self.is_beside:
            self._work.append(work)
        else:
            work()

    def run(self) -> None:
        """Do all queued work."""
        while self._work:
            self._work.popleft()()

    def idle(self, until_ms: float) -> None:
        """Do all queued work, and nothing until then."""
        self.run()
        self.now_ms = max(self.now_ms, until_ms)

    # What torch.cuda has.

    def Event(self, *, enable_timing: bool = False) -> Event:  # noqa: N802  # torch's name
        return Event(self, enable_timing=enable_timing)

    @contextmanager
    def device(self, name: str) -> Iterator[None]:
        assert name == Tensor.device
        yield

    def current_device(self) -> int:
        return self.number

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.is_capturing

    def _pass(self, takes_ms: float) -> None:
        self.now_ms += takes_ms
