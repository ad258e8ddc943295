"""What the drop-in does not have of W&B: names that take any use, warn once and do nothing.

A library imports deep names of W&B, catches its errors, derives from its classes and calls private
methods of its run. None of these is a metric, and none may end a training.

    sys.modules["wandb"] = otel_rl.integrations.wandb
    from wandb.sdk.lib.config_util import ConfigError       # an error that is never raised
    from wandb.integration.sb3 import WandbCallback         # the drop-in's own

While the drop-in is ``wandb``, the real package is not read, even if it is installed: its parts use
a run of their own. While the real package is ``wandb``, nothing here is used.
"""

import logging
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from types import ModuleType
from typing import Any, Final

__all__ = ["INSTEAD", "Absent", "Error", "attribute", "install", "is_optional", "warn_once"]

INSTEAD: Final = "Use the wandb package itself for it, under `otel-rl run --attach`."

_MAX_NAMES: Final = 1000
"""Bounds the memory against names and messages that contain a step or an id."""

_READS: Final = frozenset({
    "agent", "attach", "controller", "restore", "sweep", "use_artifact", "use_model",
})  # fmt: skip
"""Functions without whose result a program cannot go on."""

_QUIET: Final = frozenset({"plot", "require", "sdk", "setup", "teardown"})
"""Charts are named when they are logged; the others change nothing in a run."""

_log = logging.getLogger("otel_rl")
_said: set[str] = set()

_known: Final[dict[str, Any]] = {}
_modules: Final[dict[str, Callable[[], Any]]] = {}


def warn_once(message: str) -> None:
    """Log ``message`` as a warning, once per process."""
    if message not in _said and len(_said) < _MAX_NAMES:
        _said.add(message)
        _log.warning("otel_rl.integrations.wandb: %s", message)


def is_optional(name: str) -> bool:
    """Report whether Python, its copying or a notebook reads an optional attribute."""
    return name.startswith(("__", "_repr_", "_ipython_"))


def attribute(path: str, name: str) -> Any:
    """Return what stands for an attribute that the drop-in lacks.

    Args:
        path: The object below ``wandb``, empty for ``wandb`` itself.
        name: The attribute. A class of the drop-in has the same name in every module of W&B.

    Raises:
        AttributeError: Python asks for it and does without.
    """
    if is_optional(name):
        raise AttributeError(name)
    if name in _known:
        return _known[name]
    if name == "Api" or (name in _READS and path in ("", "run")):
        return _refused(name)
    if name.endswith(("Error", "Exception")) and name[0].isupper():
        return _error(name)
    return _absent(f"{path}.{name}" if path else name)


class Error(Exception):
    """W&B's base of errors. Never raised here; for ``except wandb.Error``."""


@lru_cache(_MAX_NAMES)
def _error(name: str) -> type[Error]:
    return type(name, (Error,), {"__doc__": "Never raised here; there to be caught."})


@lru_cache(_MAX_NAMES)
def _refused(name: str) -> Callable[..., None]:
    def call(*_arguments: object, **_named: object) -> None:
        raise NotImplementedError(
            f"otel_rl.integrations.wandb has no {name}: it reads from W&B, and a worker only "
            f"writes. {INSTEAD}"
        )

    return call


class _Kind(ABCMeta):
    """Metaclass: every attribute of an absent class exists, too."""

    path: str

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        made = super().__call__(*arguments, **named)
        is_derived = "path" not in cls.__dict__  # by the program
        return made if is_derived else _decorated(made, arguments, named)

    def __getattr__(cls, name: str) -> Any:
        return attribute(cls.path, name)

    def __repr__(cls) -> str:
        return f"<wandb.{cls.path}, not supported>"


class Absent(metaclass=_Kind):
    """Object of an absent class, and what an absent function returns: empty and false.

    Its attributes, items and results are itself.
    """

    path: str = ""
    """Its name below ``wandb``."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        return

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _decorated(self, arguments, named)

    def __getattr__(self, name: str) -> Any:
        if is_optional(name):
            raise AttributeError(name)
        return self

    def __repr__(self) -> str:
        return f"<wandb.{self.path}, not supported>"

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __lt__(self, other: object) -> bool:
        return False

    __le__ = __gt__ = __ge__ = __lt__

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __class_getitem__(cls, key: object) -> Any:
        return cls

    def __getitem__(self, key: object) -> Any:
        return self

    def __setitem__(self, key: object, value: object) -> None:
        return

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def __fspath__(self) -> str:
        return "."  # as `run.dir`


class _Name(Absent):
    """Absent function, module or attribute, which a call turns into an ``Absent``."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        parts = self.path.split(".")
        # A class is named when its object is logged, and nobody asked for W&B's internals.
        if parts[0] not in _QUIET and not any(p[0] == "_" or p[0].isupper() for p in parts):
            warn_once(f"{self.path} does nothing here. {INSTEAD}")
        result = Absent()
        result.path = self.path
        return _decorated(result, arguments, named)

    def __getattr__(self, name: str) -> Any:
        return attribute(self.path, name)

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (Absent,)


@lru_cache(_MAX_NAMES)
def _absent(path: str) -> Any:
    name = path.rpartition(".")[2]
    return _Kind(name, (Absent,), {"path": path}) if name[0].isupper() else _Name(path)


def _decorated(made: Any, arguments: Sequence[Any], named: object) -> Any:
    """Return the argument of a call that looks like a decorator's, else what the call has made."""
    return arguments[0] if len(arguments) == 1 and not named and callable(arguments[0]) else made


def install(
    drop_in: ModuleType, known: dict[str, Any], modules: dict[str, Callable[[], Any]]
) -> None:
    """Resolve every module below ``wandb``, while the drop-in has that name.

    Args:
        drop_in: The package.
        known: Objects whose names mean the same in every module of W&B.
        modules: Object with the attributes of a module, by the last part of the module's name.
    """
    _known.update(known)
    _modules.update(modules)
    sys.meta_path.insert(0, _Finder(drop_in))


class _Finder(MetaPathFinder, Loader):
    def __init__(self, drop_in: ModuleType) -> None:
        self._drop_in = drop_in

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a module for every name below ``wandb`` while that is the drop-in."""
        del path, target
        is_below = fullname.startswith("wandb.") and self._stands_in()
        return ModuleSpec(fullname, self, origin="otel_rl", is_package=True) if is_below else None

    def find_distributions(self, context: DistributionFinder.Context) -> Iterable[Distribution]:
        """Return the drop-in as an installed package: libraries read its version first."""
        found = context.name == "wandb" and self._stands_in()
        return [_Package(self._drop_in.__version__)] if found else []

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create a module in which every name exists."""
        return _Module(spec.name, "Stands for a module of W&B's. See `otel-rl help wandb`.")

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are resolved on access."""

    def _stands_in(self) -> bool:
        return sys.modules.get("wandb") is self._drop_in


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        path = self.__name__.removeprefix("wandb.")
        own = _modules.get(path.rpartition(".")[2])
        if own is not None and not is_optional(name) and hasattr(found := own(), name):
            return getattr(found, name)
        return attribute(path, name)


class _Package(Distribution):
    def __init__(self, version: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: wandb\nVersion: {version}\nSummary: otel_rl\n"

    def read_text(self, filename: str) -> str | None:
        """Return its metadata; it has no other file."""
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: "str | PathLike[str]") -> Any:
        """Raise: it has no files."""
        raise FileNotFoundError(path)
