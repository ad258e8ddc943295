"""torchforge 6e77f0b3: it has the function under a name of its own."""

from forge.observability.metrics import (  # type: ignore[import-not-found]  # beside this file
    get_logger_backend_class,
)

__all__ = ["get_logger_backend_class"]
