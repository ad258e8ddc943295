"""Policy weights that this process generates samples with: their source and version."""

from typing import NamedTuple

from opentelemetry.trace import SpanContext

__all__ = ["ServedPolicy", "forget", "serve", "served"]


class ServedPolicy(NamedTuple):
    """Served weights.

    Attributes:
        pull: The span that fetched them.
        version: The policy version, if known.
    """

    pull: SpanContext
    version: int | None


_served: ServedPolicy | None = None


def serve(serving: ServedPolicy) -> None:
    """Set the served policy for all threads."""
    global _served  # a process has one policy
    _served = serving


def served() -> ServedPolicy | None:
    """Return the served policy, or None before the first weights."""
    return _served


def forget() -> None:
    """Clear the policy, for a process that became a new worker."""
    global _served  # as above
    _served = None
