"""Stands for whatever of W&B the drop-in does not have: it takes any use and does nothing.

A library imports deep names of W&B, catches its errors, and calls private methods of its run. None
of that carries a metric, and none of it may end a training.
"""

from abc import ABCMeta
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar, Final

from otel_rl.compat.wandb._say import say_once

__all__ = ["CARRIED", "Error", "StandIn", "is_asked_by_python", "stand_in"]

_MAX_NAMES: Final = 1000
"""Bounds the memory against names that are computed."""

_ERRORS: Final = ("Error", "Exception")

CARRIED: Final[dict[str, object]] = {}
"""What the drop-in does have, by names that mean the same in every module of W&B: ``Table``."""


class Error(Exception):
    """W&B's base of errors. Never raised here; there for ``except wandb.Error``."""


class _Nothing:
    """Empty, false, and less than everything. For a stand-in and for its instances alike."""

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
    """Makes a name a class: it can be called, derived from, and asked for with ``isinstance``."""

    path: str
    is_said: bool

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        if "path" not in cls.__dict__:  # derived from one by the program
            return super().__call__(*arguments, **named)
        if cls.is_said:
            say_once(f"{cls.path} does nothing here: a worker carries numbers, not all of W&B.")
        if len(arguments) == 1 and not named and callable(arguments[0]):
            return arguments[0]  # as a decorator of what has to go on
        return super().__call__(*arguments, **named)

    def __getattr__(cls, name: str) -> Any:
        return _attribute(cls, name)

    def __repr__(cls) -> str:
        return f"<wandb.{cls.path}, not carried>"


class StandIn(_Nothing, metaclass=_Kind):
    """An instance of what is not there. Takes any arguments, any attribute, any method."""

    path: ClassVar[str] = ""
    """Its name below ``wandb``."""
    is_said: ClassVar[bool] = True
    """Whether a call of it is said."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        return

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and not named and callable(arguments[0]):
            return arguments[0]  # as a decorator with arguments
        return self

    def __getattr__(self, name: str) -> Any:
        return _attribute(type(self), name)

    def __repr__(self) -> str:
        return repr(type(self))


def is_asked_by_python(name: str) -> bool:
    """Whether Python, its copying or a notebook asks for an attribute that may well be missing."""
    return name.startswith(("__", "_repr_", "_ipython_"))


@lru_cache(_MAX_NAMES)
def stand_in(path: str, *, is_said: bool = True) -> type:
    """What stands for a name below ``wandb``: an error to catch, or a ``StandIn``.

    Args:
        path: The name, e.g. ``sdk.lib.RunDisabled``.
        is_said: Whether a call of it is said.
    """
    name = path.rpartition(".")[2]
    if name.endswith(_ERRORS) and name[0].isupper():
        return type(name, (Error,), {"__doc__": "Never raised here; there to be caught."})
    return _Kind(name, (StandIn,), {"path": path, "is_said": is_said})


def _attribute(cls: type[StandIn] | _Kind, name: str) -> Any:
    if is_asked_by_python(name):
        raise AttributeError(name)
    found = CARRIED.get(name)
    return stand_in(f"{cls.path}.{name}", is_said=cls.is_said) if found is None else found
