"""Times at which a device reaches the boundaries of steps and phases.

A program only queues work on a GPU, and waits for the work much later:

    program  |fwd|bwd|log                   |
    device   |fwd        |bwd           |log|

So each boundary is an event in the stream of its thread. The device reaches a boundary some time
after the previous boundary, and not before the program came to the boundary:

    reached = max(recorded, previous + elapsed on the device)

An idle device reaches a boundary at the program's own time. A stream that is ahead of the previous
boundary's stream gets the time of the previous boundary. Only torch with CUDA or ROCm is known;
other work counts as done when the program goes on.
"""

import threading
from collections import deque
from collections.abc import Callable
from time import sleep
from typing import Final, NamedTuple, Protocol

from otel_rl.worker.guard import Guard
from otel_rl.worker.phases import WHOLES
from otel_rl.worker.tensors import Deferred, torch_cuda

_MAX_WAITING: Final = 1 << 12
"""Marks that a device has yet to reach; further marks have the program's time."""

_DRIFT: Final = 1e-4
"""More than two clocks drift apart. So much less time is taken to have passed, because the next
boundary at which the device was waiting corrects a time that is too early."""

_POLL_S: Final = 0.002

_NS_PER_MS: Final = 1e6


class _Event(Protocol):
    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, later: "_Event") -> float: ...


class _Cuda(Protocol):
    def Event(self, *, enable_timing: bool) -> _Event: ...  # noqa: N802  # torch's name
    def current_device(self) -> int: ...
    def is_current_stream_capturing(self) -> bool: ...


def _present_device() -> int | None:
    cuda: _Cuda | None = torch_cuda()
    try:
        return None if cuda is None else cuda.current_device()
    except Exception:  # noqa: BLE001  # the next mark fails too, and is counted
        return None


class Mark:
    """A boundary in a stream.

    Attributes:
        phase: Phase that the device is in before the boundary.
        recorded_ns: Time at which the program came to the boundary, on the monotonic clock.
        reached_ns: Time at which the device reached this and all earlier boundaries; None until
            that is known.
        stream_ns: Time at which the boundary's stream reached it. Another stream may be behind.
        event: Event in the stream; None once nothing needs the event.
    """

    __slots__ = ("event", "phase", "reached_ns", "recorded_ns", "stream_ns")

    def __init__(self, phase: str, recorded_ns: int, event: _Event) -> None:
        self.phase = phase
        self.recorded_ns = recorded_ns
        self.reached_ns: int | None = None
        self.stream_ns = recorded_ns
        self.event: _Event | None = event


class DeviceClock:
    """Marks of one control flow on one device: the device that is present when the clock is made.

    The flow alone makes marks. Other threads ask when the marks are reached. A failure of the
    device is counted, and no further mark is made.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._has_failed = False
        self._device = _present_device()
        self._free: deque[_Event] = deque()
        self._waiting: deque[Mark] = deque()
        self._lock = threading.Lock()  # guards _waiting and _last against a second asking thread
        self._last: Mark | None = None  # the newest mark that was reached

    def mark(self, phase: str, now_ns: int) -> Mark | None:
        """Mark the end of ``phase`` in the present stream. Never raises, never waits.

        Returns:
            None without a device, on another device, and during the capture of a CUDA graph, which
            would contain the mark.
        """
        cuda: _Cuda | None = torch_cuda()
        if cuda is None or self._has_failed or len(self._waiting) >= _MAX_WAITING:
            return None
        try:
            if cuda.is_current_stream_capturing() or cuda.current_device() != self._device:
                return None
            event = self._free.pop() if self._free else cuda.Event(enable_timing=True)
            event.record()
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self._fail(error)
            return None
        mark = Mark(phase, now_ns, event)
        self._waiting.append(mark)
        return mark

    @property
    def is_of_present_device(self) -> bool:
        """Return whether the clock's device is the present device. True if that is unknown."""
        return _present_device() in (self._device, None)

    def has_reached(self, mark: Mark) -> bool:
        """Return whether the device has reached a mark, so that the mark's time is known."""
        if mark.reached_ns is None:
            self._catch_up()
        return mark.reached_ns is not None

    def busy_with(self) -> tuple[str, int] | None:
        """Return the phase that the device is in, and the phase's begin on the monotonic clock.

        Return None if the device has reached all marks, or works on what was queued before a step.
        """
        self._catch_up()
        last = self._last
        try:
            waiting = self._waiting[0]
        except IndexError:
            return None
        if not waiting.phase:
            return None
        return waiting.phase, waiting.recorded_ns if last is None else last.reached_ns or 0

    def _catch_up(self) -> None:
        with self._lock:
            while self._waiting and self._reach(self._waiting[0]):
                self._waiting.popleft()

    def _reach(self, mark: Mark) -> bool:
        """Set the time of the first waiting mark, if the device has reached it."""
        event, last = mark.event, self._last
        if event is None:
            return True
        try:
            if not (self._has_failed or event.query()):
                return False
            if last is not None and last.event is not None and not self._has_failed:
                elapsed_ns = last.event.elapsed_time(event) * _NS_PER_MS * (1 - _DRIFT)
                mark.stream_ns = max(mark.stream_ns, last.stream_ns + round(elapsed_ns))
        except Exception as error:  # noqa: BLE001  # the program has its own troubles
            self._fail(error)
        mark.reached_ns = max(mark.stream_ns, _reached_ns(last))
        self._last = mark
        if last is not None and last.event is not None:
            self._free.append(last.event)
            last.event = None
        return True

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        self._guard.caught(error)


class StepMarks:
    """Boundaries of one step and its phases."""

    __slots__ = ("_durations_ns", "_marks", "clock")

    def __init__(self, clock: DeviceClock, begun_ns: int) -> None:
        self.clock = clock
        self._marks = [clock.mark("", begun_ns)]
        self._durations_ns: dict[str, int] = {}

    @property
    def last(self) -> Mark | None:
        return self._marks[-1]

    def passed(self, phase: str, now_ns: int) -> None:
        """Mark the end of a part of ``phase`` in which no inner phase was open."""
        self._marks.append(self.clock.mark(phase, now_ns))

    @property
    def is_known(self) -> bool:
        """Return whether every boundary of the step has a mark."""
        return None not in self._marks

    @property
    def is_ready(self) -> bool:
        """Return whether the device has reached the last boundary. The step must have ended."""
        last = self.last
        return last is None or self.clock.has_reached(last)

    def duration_ns(self, phase: str | None) -> int:
        """Return the exclusive time of a phase, or the step's time. The step must be ready."""
        if phase is None:
            return _reached_ns(self._marks[-1]) - _reached_ns(self._marks[0])
        if not self._durations_ns:
            self._durations_ns = self._sums()
        return self._durations_ns.get(phase, 0)

    def _sums(self) -> dict[str, int]:
        sums_ns: dict[str, int] = {}
        before_ns = _reached_ns(self._marks[0])
        for mark in self._marks[1:]:
            reached_ns = _reached_ns(mark)
            phase = "" if mark is None else mark.phase
            for name in (phase, WHOLES.get(phase)):
                if name is not None:
                    sums_ns[name] = sums_ns.get(name, 0) + reached_ns - before_ns
            before_ns = reached_ns
        return sums_ns


def _reached_ns(mark: Mark | None) -> int:
    return 0 if mark is None else mark.reached_ns or 0


class DeviceSeconds(Deferred):
    """Converted seconds that a step, or one of its phases, took on the device."""

    __slots__ = ("_convert", "_marks", "_phase")

    def __init__(
        self, marks: StepMarks, phase: str | None, convert: Callable[[float], float | None]
    ) -> None:
        self._marks = marks
        self._phase = phase
        self._convert = convert

    @property
    def is_ready(self) -> bool:
        return self._marks.is_ready

    def read(self) -> float | None:
        while not self.is_ready:
            sleep(_POLL_S)
        return self._convert(self._marks.duration_ns(self._phase) / 1e9)


class SpanTimes(NamedTuple):
    """Boundaries of a span on a device.

    Attributes:
        begun: First boundary.
        ended: Last boundary.
        wall_ns: Offset from the monotonic to the wall clock.
    """

    clock: DeviceClock
    begun: Mark
    ended: Mark
    wall_ns: int

    @property
    def is_ready(self) -> bool:
        return self.clock.has_reached(self.ended)

    def in_wall_ns(self) -> tuple[int, int]:
        """Return both times in ns since the Unix epoch. They must be ready."""
        return _reached_ns(self.begun) + self.wall_ns, _reached_ns(self.ended) + self.wall_ns
