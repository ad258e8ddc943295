"""Who a connection comes from, as far as its address says so."""

import ipaddress
from urllib.parse import unquote

__all__ = ["address_of", "peer_of_call"]

_IPV6_PREFIX_BITS = 64  # whoever has one address of IPv6 has all of such a network


def address_of(host: str) -> str:
    """What a share is held by: an address of IPv4, or a network of IPv6."""
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
    """Address and connection of a gRPC call, from ``ipv4:HOST:PORT`` or ``ipv6:[HOST]:PORT``."""
    host = unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
    return address_of(host), peer
