"""Which weights this process makes samples with: where it got them, and their version."""

from typing import NamedTuple

from opentelemetry.trace import SpanContext

__all__ = ["Serving", "forget", "serve", "served"]


class Serving(NamedTuple):
    """The weights that are served.

    Attributes:
        pull: The span in which they were taken.
        version: The policy version, if it is known.
    """

    pull: SpanContext
    version: int | None


_served: Serving | None = None


def serve(serving: Serving) -> None:
    """From now on, in all threads."""
    global _served  # a process has one policy
    _served = serving


def served() -> Serving | None:
    """None before any weights were taken."""
    return _served


def forget() -> None:
    """The process is a new worker, which has not taken any weights."""
    global _served  # as above
    _served = None
