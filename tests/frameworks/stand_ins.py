"""Modules that a framework's file imports and no test uses: any name in them is a class.

from stand_ins import stand_in

stand_in("areal", "swanlab")     # their modules that are not installed, and all below
"""

import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _AnyType(type):
    """Class of which every attribute is a class."""

    def __getattr__(cls, name: str) -> Any:
        return _of(name)

    def __getitem__(cls, item: object) -> Any:
        return cls


class _Any(metaclass=_AnyType):
    """Object that can be called, subscripted and asked for anything."""

    def __init__(self, *arguments: object, **named: object) -> None:
        """Take anything."""

    def __getattr__(self, name: str) -> Any:
        return _of(name)

    def __call__(self, *arguments: object, **named: object) -> Any:
        return arguments[0] if arguments and callable(arguments[0]) else self  # a decorator


def _of(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _AnyType(name, (_Any,), {})


class _Module(ModuleType):
    __path__: Sequence[str] = []  # type: ignore[assignment]  # a package, so that it has modules

    def __getattr__(self, name: str) -> Any:
        return _of(name)


class _Finder:
    """Finds what no other finder has found. Loads it, too."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        del path, target
        return ModuleSpec(name, self, is_package=True) if self._stands_for(name) else None  # type: ignore[arg-type]  # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it empty."""

    def _stands_for(self, name: str) -> bool:
        return any(part in self._roots for part in _parents(name))


def _parents(name: str) -> Iterator[str]:
    words = name.split(".")
    return (".".join(words[:count]) for count in range(1, len(words) + 1))


def stand_in(*roots: str) -> None:
    """Let modules below ``roots`` that do not exist be imported."""
    sys.meta_path.append(_Finder(roots))
