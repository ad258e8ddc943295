"""Hook with which Ray carries the caller's span into every ``.remote()`` call.

    ray.init(_tracing_startup_hook="otel_rl.integrations.ray_tracing:carry_context")

Or ``ray start --tracing-startup-hook=...`` for a cluster.
"""

__all__ = ["carry_context"]


def carry_context() -> None:
    """Leave the worker's providers as they are: Ray only needs some hook to begin tracing."""
