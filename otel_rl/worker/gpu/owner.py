"""Which phase of this process holds its GPUs, and for how long each has held them.

Where processes take turns on a device, each knows when it is its own turn, and samples the device
then. So what a phase had of a device needs no clock but the process's, and the bridge only adds.
"""

import threading
from collections.abc import Callable, Mapping

__all__ = ["Ownership"]

_NS_PER_S = 1_000_000_000


class Ownership:
    """The phases that hold the GPUs. Of phases within each other, the innermost does.

    Any thread may call anything.

    Args:
        clock_ns: Monotonic.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self.changed = threading.Event()
        """Set whenever another phase holds the GPUs, or none."""
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._open: list[tuple[object, str]] = []
        self._since_ns = 0
        self._held_ns: dict[str, int] = {}

    def begin(self, turn: object, phase: str) -> None:
        """The GPUs are held by ``phase`` from now on."""
        with self._lock:
            self._settle()
            self._open.append((turn, phase))
            self._held_ns.setdefault(phase, 0)
        self.changed.set()

    def end(self, turn: object) -> None:
        """The turn is over; whoever began around it holds the GPUs again."""
        with self._lock:
            self._settle()
            self._open = [(other, phase) for other, phase in self._open if other is not turn]
        self.changed.set()

    def held_s(self) -> Mapping[str, float]:
        """How long each phase has held the GPUs, in seconds."""
        with self._lock:
            self._settle()
            return {phase: held_ns / _NS_PER_S for phase, held_ns in self._held_ns.items()}

    def forget(self) -> None:
        """Begin anew: in a forked child, whose parent holds what is held."""
        self._lock = threading.Lock()
        self._open, self._held_ns = [], {}
        self.changed = threading.Event()

    def _settle(self) -> None:
        now_ns = self._clock_ns()
        if self._open:
            phase = self._open[-1][1]
            self._held_ns[phase] = self._held_ns.get(phase, 0) + now_ns - self._since_ns
        self._since_ns = now_ns
