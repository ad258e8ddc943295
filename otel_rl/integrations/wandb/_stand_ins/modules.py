"""Modules below ``wandb``, for a program that installs the drop-in under that name.

    sys.modules["wandb"] = otel_rl.integrations.wandb
    from wandb.sdk.lib.config_util import ConfigError       # does nothing
    from wandb.integration.sb3 import WandbCallback         # the drop-in's own

The real package is never read, even if installed: its parts use its own run. While the real package
is ``wandb``, nothing here is used.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from types import ModuleType
from typing import Any, Final

from otel_rl.integrations.wandb._stand_ins.stand_in import CARRIED, is_optional, stand_in

__all__ = ["install"]

_NAME: Final = "wandb"

_OWN: Final[Mapping[str, str]] = {
    "wandb.integration.sb3": "_sb3",
    "wandb.integration.tensorboard": "_tensorboard",
    "wandb.sb3": "_sb3",
    "wandb.tensorboard": "_tensorboard",
}
"""Modules of W&B with an implementation; all others do nothing."""


def install(drop_in: ModuleType) -> None:
    """Resolve every module below ``wandb``, while the drop-in has that name.

    Args:
        drop_in: The package.
    """
    sys.meta_path.insert(0, _Finder(drop_in))


class _Finder(MetaPathFinder):
    def __init__(self, drop_in: ModuleType) -> None:
        self._drop_in = drop_in

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the drop-in's module for every name below ``wandb`` while that is the drop-in."""
        del path, target
        if not fullname.startswith("wandb.") or not self._stands_in():
            return None
        return ModuleSpec(fullname, _Loader(self._drop_in), origin="otel_rl", is_package=True)

    def find_distributions(self, context: DistributionFinder.Context) -> Iterable[Distribution]:
        """Return the drop-in as an installed package: libraries read its version first."""
        if context.name != _NAME or not self._stands_in():
            return []
        return [_Package(self._drop_in.__version__)]

    def _stands_in(self) -> bool:
        return sys.modules.get(_NAME) is self._drop_in


class _Module(ModuleType):
    """Module in which every name exists.

    Args:
        name: Full name.
        object_: The drop-in's object of this name; its attributes are found first.
    """

    def __init__(self, name: str, object_: object = None) -> None:
        super().__init__(name, "Stands for a module of W&B's. See `otel-rl help wandb`.")
        self._object = object_

    def __getattr__(self, name: str) -> Any:
        if is_optional(name):
            raise AttributeError(name)
        found = getattr(self._object, name, None) if self._object is not None else None
        if found is None:
            found = CARRIED.get(name)
        path = self.__name__.removeprefix("wandb.")
        return stand_in(f"{path}.{name}") if found is None else found


class _Loader(Loader):
    def __init__(self, drop_in: ModuleType) -> None:
        self._drop_in = drop_in

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create a module with the names that the drop-in has for it."""
        own = _OWN.get(spec.name)
        if own is not None:
            return _Module(spec.name, import_module(f"{self._drop_in.__name__}.{own}"))
        return _Module(spec.name, vars(self._drop_in).get(spec.name.removeprefix("wandb.")))

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are resolved on access."""


class _Package(Distribution):
    """Distribution ``wandb``, with name and version only.

    Args:
        version: Of W&B's API.
    """

    def __init__(self, version: str) -> None:
        self._metadata = (
            f"Metadata-Version: 2.1\nName: wandb\nVersion: {version}\nSummary: otel_rl\n"
        )

    def read_text(self, filename: str) -> str | None:
        """Return its metadata; it has no other file."""
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: "str | PathLike[str]") -> Any:
        """Raise: it has no files."""
        raise FileNotFoundError(path)
