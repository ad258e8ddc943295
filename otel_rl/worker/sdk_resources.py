"""The SDK's resources, without ``psutil``, which the SDK's detector of processes alone uses.

Import them from here first: ``opentelemetry.sdk.resources`` loads ``psutil`` wherever it is
installed, which takes 1.4 MB and 7 ms of CPU of every worker.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["Resource", "ServiceInstanceIdResourceDetector"]


class _OnUse(ModuleType):
    """Module that is loaded when an attribute of it is read."""

    def __getattr__(self, name: str) -> object:
        _leave(self)  # another thread may import it at this moment
        return getattr(import_module(self.__name__), name)


def _leave(stand_in: ModuleType) -> None:
    if sys.modules.get(stand_in.__name__) is stand_in:
        del sys.modules[stand_in.__name__]


def _load() -> None:
    stand_in = _OnUse("psutil")
    sys.modules.setdefault("psutil", stand_in)
    try:
        import_module("otel_rl.worker.fork_barrier")  # before anything of the SDK has fork handlers
        import_module("opentelemetry.sdk.resources")
    finally:
        _leave(stand_in)


if not TYPE_CHECKING:
    _load()

from opentelemetry.sdk.resources import Resource, ServiceInstanceIdResourceDetector  # noqa: E402
