"""Process: keeps the newest policy between the trainer that makes it and the generators.

A separate process, so that a slow generator never holds the trainer up.
"""

import threading

from otel_rl.demo.faults import Kind
from otel_rl.demo.messages import Done, NewerThan, Weights
from otel_rl.demo.seat import Seat
from otel_rl.demo.troubles import Troubles
from otel_rl.demo.wire import listen, serve

__all__ = ["WeightStore", "main"]


class WeightStore:
    """The newest weights. Any thread."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        # _lock guards _newest.
        self._lock = threading.Lock()
        self._newest: Weights | None = None

    def answer(self, message: object) -> object:
        """Take :class:`Weights`, or answer :class:`NewerThan`."""
        match message:
            case Weights():
                self._troubles.delay(Kind.SLOW_SYNC)
                with self._lock:
                    self._newest = message
                return Done()
            case NewerThan(version):
                with self._lock:
                    newest = self._newest
                if newest is None or newest.version <= version:
                    return None
                self._troubles.delay(Kind.SLOW_SYNC)
                return newest
        raise TypeError(f"not a message of the weight store: {message!r}")


def main() -> None:
    """Serve until told to stop."""
    listener, address = listen()
    seat = Seat("weight_store", address)
    serve(listener, WeightStore(seat.troubles).answer, name="weight-store", is_measured=False)
    seat.wait_for_stop()


if __name__ == "__main__":
    main()
