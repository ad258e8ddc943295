"""Tells whose requests were refused for want of a token, at most once a minute for each sender."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from otel_rl.bridge.receive.sender_address import address_of

__all__ = ["RefusedSenders"]

_INTERVAL_S: Final = 60.0
_MAX_SENDERS: Final = 256
_OTHERS: Final = "further addresses"


@dataclass(slots=True)
class _Sender:
    next_line_s: float
    untold: int = 0


class RefusedSenders:
    """Counts refusals by address. Any thread may call it.

    Args:
        clock_s: Seconds of a monotonic clock.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        # _lock guards _senders, with the oldest line first.
        self._lock = threading.Lock()
        self._senders: OrderedDict[str, _Sender] = OrderedDict()

    def line(self, host: str, target: str, reason: str) -> str:
        """Count a refusal, and return a line about it for the log; empty if there is none now.

        Args:
            host: Address of the peer.
            target: What it has called.
            reason: Why it was refused, without anything that it has sent.
        """
        now_s, key = self._clock_s(), address_of(host)
        with self._lock:
            self._forget(now_s)
            if key not in self._senders and len(self._senders) >= _MAX_SENDERS:
                host = key = _OTHERS
            sender = self._senders.setdefault(key, _Sender(now_s))
            sender.untold += 1
            if now_s < sender.next_line_s:
                return ""
            n, sender.untold = sender.untold, 0
            sender.next_line_s = now_s + _INTERVAL_S
            self._senders.move_to_end(key)
        requests = "A request" if n == 1 else f"{n} requests"
        return (
            f"{requests} from {host} refused, the last to {target}: {reason} "
            "Its sender loses the data; see `otel-rl help security`."
        )

    def _forget(self, now_s: float) -> None:
        """Forget senders that have been silent since their next line was due."""
        for key, sender in [*self._senders.items()]:
            if now_s < sender.next_line_s + _INTERVAL_S:
                break
            del self._senders[key]
