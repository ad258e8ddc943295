"""Which weights this process makes samples with: where it got them, and their version."""

from typing import NamedTuple

from opentelemetry.trace import SpanContext

from otel_rl.worker import session

__all__ = ["Serving", "serve", "served"]


class Serving(NamedTuple):
    """The weights that are served.

    Attributes:
        pull: The span in which they were taken.
        version: The policy version, if it is known.
    """

    pull: SpanContext
    version: int | None


_served: tuple[Serving, session.Session | None] | None = None


def serve(serving: Serving) -> None:
    """From now on, in all threads, until the session ends."""
    global _served  # a process has one policy
    _served = serving, session.running()


def served() -> Serving | None:
    """None before any weights were taken."""
    found = _served
    return found[0] if found is not None and found[1] is session.running() else None
