"""Calls back when a module is imported, without importing it, and wraps its functions.

A callback runs right after the module's own code, in the importing thread; its exceptions are
counted and logged, never raised.
"""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, cast

__all__ = ["when_imported", "wrap"]

Callback = Callable[[ModuleType], None]

_WRAPPED: Final = "__otel_rl_wrapped__"


def when_imported(name: str, call: Callback) -> None:
    """Call ``call`` once with a module, as soon as the module is imported; at once if it is."""
    module = sys.modules.get(name)
    if module is not None:
        _run(call, module)
        return
    _waiting.setdefault(name, []).append(call)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def wrap(
    owner: Any,
    name: str,
    by: Callable[[Callable[..., Any]], Callable[..., Any]],
    purpose: str = "",
) -> None:
    """Replace a function of a module, class or object by ``by(function)``, once per purpose.

    Raises:
        AttributeError: The owner has no function of this name.
    """
    original = getattr(owner, name)
    mark = _WRAPPED + purpose
    if not hasattr(original, mark):
        replaced = wraps(original)(by(original))  # it has the marks of the original
        setattr(replaced, mark, True)
        setattr(owner, name, replaced)


def _run(call: Callback, module: ModuleType) -> None:
    try:
        call(module)
    except Exception as error:  # noqa: BLE001  # the program's import has succeeded
        # Imported here: a process that waits for a framework may never load a worker.
        from otel_rl.worker.session import GUARD

        GUARD.caught(error)


class _Finder(MetaPathFinder):
    """Finds a module through the other finders, and wraps its loader to run the callbacks."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = cast("Loader", _CallingLoader(spec.loader))
                return spec
        return None


class _CallingLoader:
    """Loader that runs the callbacks, and delegates everything else to the module's own loader."""

    def __init__(self, original: Any) -> None:  # any loader
        self._original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._original.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        module.__loader__ = self._original
        if spec is not None:
            spec.loader = self._original
        self._original.exec_module(module)
        name = spec.name if spec is not None else module.__name__
        for call in _waiting.pop(name, ()):
            _run(call, sys.modules.get(name, module))  # a module may replace itself

    def __getattr__(self, name: str) -> Any:
        if name == "_original":
            raise AttributeError(name)
        return getattr(self._original, name)


# Read by importing threads, each for its own name, under Python's lock of that module.
_waiting: Final[dict[str, list[Callback]]] = {}
_finder: Final = _Finder()
