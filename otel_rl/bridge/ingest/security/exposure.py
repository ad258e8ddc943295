"""Warns if a server is reachable from other hosts without authentication or encryption."""

import ipaddress

__all__ = ["exposure", "is_loopback"]


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def exposure(host: str, *, wants_token: bool, has_tls: bool, is_mutual: bool) -> str:
    """Describe the exposure of a server on ``host``, as a sentence; empty if there is none.

    Args:
        host: Address that the server listens on.
        wants_token: Whether requests need a bearer token.
        has_tls: Whether connections are encrypted.
        is_mutual: Whether senders need a certificate.
    """
    if is_loopback(host) or is_mutual or (wants_token and has_tls):
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
