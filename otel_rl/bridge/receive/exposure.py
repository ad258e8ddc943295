"""Says so loudly when a server can be reached by others and does not ask who they are."""

import ipaddress

__all__ = ["exposure", "is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def exposure(host: str, *, wants_token: bool, has_tls: bool, is_mutual: bool) -> str:
    """What strangers can do to a server on ``host``, as a sentence; empty if they cannot.

    Args:
        host: Address that is listened on.
        wants_token: Whether requests need a bearer token.
        has_tls: Whether connections are encrypted.
        is_mutual: Whether senders need a certificate.
    """
    if is_loopback(host) or is_mutual or (wants_token and has_tls):
        return ""
    if wants_token:
        return (
            f"{host} is reached from other machines and has no TLS: whoever can listen on the "
            "network reads the tokens. Set tls.cert and tls.key."
        )
    return (
        f"{host} is reached from other machines and asks for no token: each of them can write "
        "runs. Set auth.tokens, or tls.client_ca, or put a collector with authentication in front."
    )
