"""Senders by their address: whose share a request takes, and whose requests were refused."""

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

__all__ = ["RefusedSenders", "address_of", "host_of_call", "peer_of_call"]

_IPV6_PREFIX_BITS = 64  # a host of IPv6 has all addresses of such a network


@lru_cache(maxsize=1 << 12)
def address_of(host: str) -> str:
    """Return the address that a share belongs to: an IPv4 address or an IPv6 network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX_BITS), strict=False))


def peer_of_call(peer: str) -> tuple[str, str]:
    """Split a gRPC peer, ``ipv4:HOST:PORT`` or ``ipv6:[HOST]:PORT``, in address and connection."""
    return address_of(host_of_call(peer)), peer


def host_of_call(peer: str) -> str:
    """Return the address in a gRPC peer."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


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
