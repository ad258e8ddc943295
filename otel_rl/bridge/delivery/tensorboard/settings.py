"""Settings of the TensorBoard tracker: there are none."""

import importlib.util
from collections.abc import Mapping

from otel_rl.errors import ConfigError, MissingExtra

__all__ = ["validate"]


def validate(attributes: Mapping[str, str]) -> None:
    """Raise ConfigError if there are attributes, MissingExtra without the library."""
    for name in attributes:
        raise ConfigError(f"tensorboard.{name}: unknown setting.", hint="There are none.")
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtra("tracker: tensorboard", "the package tensorboard", "tensorboard")
