"""Interface of the pages for people that a bridge serves beside OTLP."""

from collections.abc import Callable, Sequence
from typing import Protocol

from starlette.routing import BaseRoute

from otel_rl.bridge.receive.tokens import Grant

__all__ = ["Page"]


class Page(Protocol):
    """Pages for people at the HTTP address, made elsewhere."""

    def routes(
        self,
        grant: Callable[[str | None], Grant | None],
        *,
        wants_token: bool,
        host: str,
        count_failure: Callable[[], None],
    ) -> Sequence[BaseRoute]:
        """Return the routes; none has a path of OTLP, and none blocks the event loop.

        Args:
            grant: Returns the grant of an ``Authorization`` header; None if no token is required.
            wants_token: Whether one is.
            host: Address that the server listens on.
            count_failure: Called for each failure of the page that its reader gets as an answer.
        """
        ...

    def stop(self) -> None:
        """End requests that would delay the server's end. Any thread may call it; idempotent."""
        ...
