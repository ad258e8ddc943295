"""Placeholder for W&B names that the drop-in lacks: it accepts any use and does nothing.

A library imports deep names of W&B, catches its errors, and calls private methods of its run. None
of these affects a metric, and none may end a training.
"""

from abc import ABCMeta
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar, Final

from otel_rl.integrations.wandb._log_once import warn_once

__all__ = ["CARRIED", "Error", "StandIn", "is_optional", "stand_in"]

_MAX_NAMES: Final = 1000
"""Bounds the memory against names that are computed."""

_ERRORS: Final = ("Error", "Exception")

CARRIED: Final[dict[str, object]] = {}
"""Implemented objects whose names mean the same in every module of W&B: ``Table``."""


class Error(Exception):
    """W&B's base of errors. Never raised here; for ``except wandb.Error``."""


class _Nothing:
    """Behaviour of placeholders and their instances: empty, false, and less than everything."""

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __contains__(self, item: object) -> bool:
        return False

    def __getitem__(self, key: object) -> Any:
        return self

    def __setitem__(self, key: object, value: object) -> None:
        return

    def __lt__(self, other: object) -> bool:
        return False

    __le__ = __gt__ = __ge__ = __lt__

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def __fspath__(self) -> str:
        return "."  # as `run.dir`


class _Kind(_Nothing, ABCMeta):
    """Metaclass of placeholders: callable, subclassable, and usable with ``isinstance``."""

    path: str
    is_logged: bool

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        if "path" not in cls.__dict__:  # derived from one by the program
            return super().__call__(*arguments, **named)
        if cls.is_logged:
            warn_once(f"{cls.path} does nothing here: a worker sends numbers only.")
        if len(arguments) == 1 and not named and callable(arguments[0]):
            return arguments[0]  # used as a decorator: returns the function
        return super().__call__(*arguments, **named)

    def __getattr__(cls, name: str) -> Any:
        return _attribute(cls, name)

    def __repr__(cls) -> str:
        return f"<wandb.{cls.path}, not supported>"


class StandIn(_Nothing, metaclass=_Kind):
    """Placeholder instance. Accepts any arguments, any attribute, any method."""

    path: ClassVar[str] = ""
    """Its name below ``wandb``."""
    is_logged: ClassVar[bool] = True
    """True logs a warning at a call."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        return

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and not named and callable(arguments[0]):
            return arguments[0]  # used as a decorator with arguments
        return self

    def __getattr__(self, name: str) -> Any:
        return _attribute(type(self), name)

    def __repr__(self) -> str:
        return repr(type(self))


def is_optional(name: str) -> bool:
    """Report whether Python, its copying or a notebook reads an optional attribute."""
    return name.startswith(("__", "_repr_", "_ipython_"))


@lru_cache(_MAX_NAMES)
def stand_in(path: str, *, is_logged: bool = True) -> type:
    """Return a placeholder for a name below ``wandb``: an error to catch, or a ``StandIn``.

    Args:
        path: The name, e.g. ``sdk.lib.RunDisabled``.
        is_logged: True logs a warning at a call.
    """
    name = path.rpartition(".")[2]
    if name.endswith(_ERRORS) and name[0].isupper():
        return type(name, (Error,), {"__doc__": "Never raised here; there to be caught."})
    return _Kind(name, (StandIn,), {"path": path, "is_logged": is_logged})


def _attribute(cls: type[StandIn] | _Kind, name: str) -> Any:
    if is_optional(name):
        raise AttributeError(name)
    found = CARRIED.get(name)
    return stand_in(f"{cls.path}.{name}", is_logged=cls.is_logged) if found is None else found
