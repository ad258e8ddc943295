"""Decides who may see the page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request

from otel_rl.bridge.receive.audit import Audit
from otel_rl.bridge.receive.tls import is_loopback, listens_on_loopback
from otel_rl.bridge.receive.tokens import Grant
from otel_rl.errors import Unauthenticated

COOKIE: Final = "otel_rl_token"
"""Holds the token of a browser, which cannot add a header to what a person opens."""


class Forbidden(Exception):
    """The page is not shown to this reader. Its text names what is needed."""


@dataclass(frozen=True, slots=True)
class Access:
    """Rules of one server.

    Attributes:
        grant: Returns the grant of an ``Authorization`` header, None if no token is required.
        wants_token: Whether one is.
        host: Address that the server listens on.
        is_behind_proxy: Whether a proxy in front authenticates readers.
        audit: Told who reads which run.
    """

    grant: Callable[[str | None], Grant | None]
    wants_token: bool
    host: str
    is_behind_proxy: bool = False
    audit: Audit = field(default_factory=Audit)

    def experiments(self, request: Request) -> Sequence[str] | None:
        """Return the experiments that a reader may see; None for all. Raises as ``reader``."""
        grant = self.reader(request)
        return None if grant is None else grant.experiments

    def reader(self, request: Request) -> Grant | None:
        """Return the grant of a reader; None for one who may see all.

        Raises:
            Unauthenticated: A token is needed.
            Forbidden: No token would help.
        """
        if self.wants_token:
            given = request.headers.get("authorization")
            if given is None and COOKIE in request.cookies:
                given = f"Bearer {request.cookies[COOKIE]}"
            return self.grant(given)
        if self.is_behind_proxy:
            return None
        if not listens_on_loopback(self.host):
            raise Forbidden(
                "This bridge is reached from other machines and requires no token, so it does not "
                'show runs. Set team, or view.readers = "behind_proxy" if a proxy '
                "authenticates readers."
            )
        # Another site's script may have its own name resolve to this machine.
        if not is_loopback(request.url.hostname or ""):
            raise Forbidden("Open the page by the address 127.0.0.1 or localhost.")
        return None

    def knows(self, token: str) -> bool:
        """Return whether a token is valid."""
        try:
            self.grant(f"Bearer {token}")
        except Unauthenticated:
            return False
        return True
