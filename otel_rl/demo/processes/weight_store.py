"""Process: keeps the newest policy between the trainer that makes it and the generators.

A separate process, so that a slow generator never delays the trainer.
"""

import threading

from otel_rl.demo.faults import FaultInjection, Kind
from otel_rl.demo.messages import NewerThan, Weights
from otel_rl.demo.rpc import ControlClient, listen, serve


class WeightStore:
    """Newest weights. Thread-safe."""

    def __init__(self, faults: FaultInjection) -> None:
        self._faults = faults
        # _lock guards _newest.
        self._lock = threading.Lock()
        self._newest: Weights | None = None

    def answer(self, message: object) -> object:
        """Store :class:`Weights`, or answer :class:`NewerThan`."""
        match message:
            case Weights():
                self._faults.delay(Kind.SLOW_SYNC)
                with self._lock:
                    self._newest = message
                return None
            case NewerThan(version):
                with self._lock:
                    newest = self._newest
                if newest is None or newest.version <= version:
                    return None
                self._faults.delay(Kind.SLOW_SYNC)
                return newest
        raise TypeError(f"not a message of the weight store: {message!r}")


def main() -> None:
    listener, address = listen()
    control = ControlClient("weight_store", address)
    serve(listener, WeightStore(control.faults).answer, name="weight-store", is_measured=False)
    control.wait_for_stop()


if __name__ == "__main__":
    main()
