"""Warns if a server is reached by more than its operator means, or by fewer."""

import ipaddress
import socket

__all__ = ["exposure", "is_loopback", "listens_on_loopback"]


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is written as an address of this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listens_on_loopback(host: str) -> bool:
    """Return whether a server on ``host``, which may be a name, is reached from here only."""
    return is_loopback(host) or bool(_loopback_of(host))


def exposure(host: str, *, wants_token: bool, has_tls: bool, is_mutual: bool) -> str:
    """Describe what is wrong with a server on ``host``, as a sentence; empty if nothing is.

    Args:
        host: Address that the server listens on.
        wants_token: Whether requests need a bearer token.
        has_tls: Whether connections are encrypted.
        is_mutual: Whether senders need a certificate.
    """
    if is_loopback(host):
        return ""
    # As /etc/hosts has it on many machines for their own name.
    if address := _loopback_of(host):
        return (
            f"{host} is {address} on this machine, which no other machine reaches: senders there "
            f"would report to themselves. Give {_address_for_others()} instead of {host}, or "
            "localhost if all senders are here."
        )
    if is_mutual or (wants_token and has_tls):
        return ""
    if wants_token:
        return (
            f"{host} is reached from other machines and has no TLS: others on the network can read "
            "the tokens. Set tls.cert and tls.key."
        )
    return (
        f"{host} is reached from other machines and requires no token: each of them can write "
        "runs. Set auth.tokens, or tls.client_ca, or put a collector with authentication in front."
    )


def _loopback_of(name: str) -> str:
    """Return the address that a server of this name listens on, if it is of loopback; else ""."""
    if not name:  # all networks
        return ""
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    address = str(found[0][4][0])
    return address if is_loopback(address) else ""


def _address_for_others() -> str:
    """Return the address by which other machines reach this one, or that of all its networks."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only chooses a route
        except OSError:
            return "0.0.0.0"  # noqa: S104  # it is the operator who chooses
        return str(probe.getsockname()[0])
