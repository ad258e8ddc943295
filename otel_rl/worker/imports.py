"""Calls back when a module is imported, without importing it.

What a program never imports is never loaded. A callback runs right after the module's own code, in
the thread that imports it; what it raises is counted and logged, never raised.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, cast

__all__ = ["when_imported"]

Callback = Callable[[ModuleType], None]


def when_imported(name: str, call: Callback) -> None:
    """Call ``call`` with a module once it is imported; at once if it has been.

    Args:
        name: Of the module, in full.
        call: Runs once.
    """
    module = sys.modules.get(name)
    if module is not None:
        _run(call, module)
        return
    _waiting.setdefault(name, []).append(call)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _run(call: Callback, module: ModuleType) -> None:
    try:
        call(module)
    except Exception as error:  # noqa: BLE001  # the program's import has succeeded
        # Here, because a process that waits for a framework may never load a worker.
        from otel_rl.worker.session import GUARD

        GUARD.caught(error)


class _Finder(MetaPathFinder):
    """Finds a module as the others do, and has its loader say when the module is there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that is waited for; None, so that others look, for any other."""
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = cast("Loader", _Telling(spec.loader))
                return spec
        return None


class _Telling:
    """A module's loader that runs the callbacks. Everything else is the original's.

    Args:
        original: The module's own; once the module runs, the module knows only that one.
    """

    def __init__(self, original: Any) -> None:  # any loader
        self._original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the original does."""
        module: ModuleType | None = self._original.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """As the original does, then the callbacks."""
        spec = module.__spec__
        module.__loader__ = self._original
        if spec is not None:
            spec.loader = self._original
        self._original.exec_module(module)
        name = spec.name if spec is not None else module.__name__
        for call in _waiting.pop(name, ()):
            _run(call, sys.modules.get(name, module))  # it may have put another in its place

    def __getattr__(self, name: str) -> Any:
        if name == "_original":
            raise AttributeError(name)
        return getattr(self._original, name)


# Read by the threads that import, each for its own name, under Python's lock of that module.
_waiting: Final[dict[str, list[Callback]]] = {}
_finder: Final = _Finder()
