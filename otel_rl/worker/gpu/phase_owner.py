"""Tracks the phase that holds the process's GPUs, and the time each phase held them.

Where processes share a device in turns, each knows its own turn, and samples the device then. So
the shares need only the process's clock, and the bridge only adds them up.
"""

import threading
from collections.abc import Callable, Mapping

__all__ = ["PhaseOwnership"]

_NS_PER_S = 1_000_000_000


class PhaseOwnership:
    """Phases that hold the GPUs; of nested phases the innermost. Thread-safe.

    Args:
        clock_ns: Monotonic.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self.changed = threading.Event()
        """Set at each change of the holding phase."""
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._open: list[tuple[object, str]] = []
        self._since_ns = 0
        self._held_ns: dict[str, int] = {}

    def begin(self, turn: object, phase: str) -> None:
        """Assign the GPUs to ``phase``."""
        with self._lock:
            self._settle()
            self._open.append((turn, phase))
            self._held_ns.setdefault(phase, 0)
        self.changed.set()

    def end(self, turn: object) -> None:
        """End the turn; the surrounding one holds the GPUs again."""
        with self._lock:
            self._settle()
            self._open = [(other, phase) for other, phase in self._open if other is not turn]
        self.changed.set()

    def held_s(self) -> Mapping[str, float]:
        """Return the time that each phase has held the GPUs, in seconds."""
        with self._lock:
            self._settle()
            return {phase: held_ns / _NS_PER_S for phase, held_ns in self._held_ns.items()}

    def forget(self) -> None:
        """Reset in a forked child, whose parent owns the open turns."""
        self._lock = threading.Lock()
        self._open, self._held_ns = [], {}
        self.changed = threading.Event()

    def _settle(self) -> None:
        now_ns = self._clock_ns()
        if self._open:
            phase = self._open[-1][1]
            self._held_ns[phase] = self._held_ns.get(phase, 0) + now_ns - self._since_ns
        self._since_ns = now_ns
