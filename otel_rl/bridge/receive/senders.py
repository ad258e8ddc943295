"""Addresses of senders, by which requests are attributed to shares."""

import ipaddress
from functools import lru_cache
from urllib.parse import unquote

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
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
