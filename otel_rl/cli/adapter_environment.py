"""Environment variables that enable framework adapters in a command and all its children."""

import os
from collections.abc import Mapping
from typing import Final

from otel_rl.integrations.automatic import DIRECTORY

__all__ = ["adapter_environment"]

_SWITCH: Final = "OTEL_RL_ADAPTERS"
_PATH: Final = "PYTHONPATH"


def adapter_environment(base: Mapping[str, str], *, is_wanted: bool) -> dict[str, str]:
    """Return the variables to add to ``base`` so that Python loads adapters at its start.

    Args:
        base: The environment so far. ``OTEL_RL_ADAPTERS=off`` in it disables them.
        is_wanted: Whether adapters are enabled on the command line.
    """
    if not is_wanted or base.get(_SWITCH, "auto").strip().lower() != "auto":
        return {_SWITCH: "off"}
    # An empty entry would be the working directory.
    paths = [str(DIRECTORY), *filter(None, [base.get(_PATH)])]
    return {_SWITCH: "auto", _PATH: os.pathsep.join(paths)}
