"""Policy weights with which this process generates samples: their source and version."""

from typing import NamedTuple

from opentelemetry.trace import SpanContext


class ServedPolicy(NamedTuple):
    """The weights that this process serves.

    Attributes:
        pull: Span that fetched the weights.
        version: The policy version, if known.
    """

    pull: SpanContext
    version: int | None


_served: ServedPolicy | None = None


def serve(serving: ServedPolicy) -> None:
    global _served  # a process has one policy
    _served = serving


def served() -> ServedPolicy | None:
    """Return the served policy, or None before the first weights."""
    return _served


def forget() -> None:
    """Clear the policy, for a process that became a new worker."""
    global _served  # as above
    _served = None
