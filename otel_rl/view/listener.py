"""Socket of a server that shows runs, and who may look."""

import secrets
import socket
from collections.abc import Sequence
from typing import Final

from otel_rl.bridge.receive.audit import Audit
from otel_rl.bridge.receive.tls import is_loopback
from otel_rl.bridge.receive.tokens import TeamSettings, Tokens, own_team
from otel_rl.errors import ConfigError
from otel_rl.view.access import Access

_ANY: Final = {"0.0.0.0", "::", ""}  # noqa: S104  # compared, not bound


class Listener:
    """Socket of one server. On another address than loopback a token is needed.

    Args:
        option: That names the address, for messages.
        host: Address to listen on.
        port: 0 picks a free one.
        is_behind_proxy: Whether a proxy in front authenticates readers.
        teams: Those whose tokens are asked for; without any, one is made where it is needed.
        audit: Told who reads which run.

    Attributes:
        access: Rules for readers.
        token: The one that was made here; empty if none was.
        tokens: All that are known.
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
        teams: Sequence[TeamSettings] = (),
        audit: Audit | None = None,
    ) -> None:
        self.token = ""
        if not teams and not is_loopback(host) and not is_behind_proxy:
            self.token = secrets.token_urlsafe(24)
            teams = [own_team(self.token)]
        self.tokens = Tokens(teams)
        self.access = Access(
            self.tokens.grant,
            wants_token=self.tokens.are_needed,
            host=host,
            is_behind_proxy=is_behind_proxy,
            audit=audit or Audit(),
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
