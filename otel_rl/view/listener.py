"""Socket of a server that shows runs, and who may look."""

import secrets
import socket
from hashlib import sha256
from typing import Final

from otel_rl.bridge.receive.tls import is_loopback
from otel_rl.bridge.receive.tokens import AuthSettings, Tokens, TokenSettings
from otel_rl.errors import ConfigError
from otel_rl.view.access import Access

__all__ = ["Listener"]

_ANY: Final = {"0.0.0.0", "::", ""}  # noqa: S104  # compared, not bound


class Listener:
    """Socket of one server. On another address than loopback a token is needed.

    Args:
        option: That names the address, for messages.
        host: Address to listen on.
        port: 0 picks a free one.
        is_behind_proxy: Whether a proxy in front authenticates readers.
        auth: Tokens to ask for; without any, one is made where it is needed.

    Attributes:
        access: Rules for readers.
        token: The one that was made here; empty if none was.
        socket: It listens.

    Raises:
        ConfigError: The address cannot be used.
    """

    def __init__(
        self,
        option: str,
        host: str,
        port: int,
        *,
        is_behind_proxy: bool = False,
        auth: AuthSettings | None = None,
    ) -> None:
        self.token = ""
        if auth is None or not auth.tokens:
            auth = AuthSettings()
            if not is_loopback(host) and not is_behind_proxy:
                self.token = secrets.token_urlsafe(24)
                auth = _auth(self.token)
        tokens = Tokens(auth)
        self.access = Access(
            tokens.grant,
            wants_token=tokens.are_needed,
            host=host,
            is_behind_proxy=is_behind_proxy,
        )
        self._host = host
        self.socket = _listen(option, host, port)

    @property
    def url(self) -> str:
        """Return the address of the server, with a slash at its end."""
        port = self.socket.getsockname()[1]
        host = socket.gethostname() if self._host in _ANY else self._host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{port}/"


def _auth(token: str) -> AuthSettings:
    digest = sha256(token.encode()).hexdigest()
    return AuthSettings(
        tokens=(
            TokenSettings(name="own", experiments=("*",), sha256=(digest,), file=None, share=None),
        )
    )


def _listen(option: str, host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as exc:
        raise ConfigError(
            f"{option}: cannot use {host}:{port}: {exc.strerror}.",
            hint="Choose another port, or 0 for a free one.",
        ) from exc
    return listener
