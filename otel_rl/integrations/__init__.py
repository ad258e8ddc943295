"""Adapters from RL frameworks to a worker, one file each. docs/integrations.md has the table."""

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_FORMER: Final = {
    f"{__name__}.recorder": f"{__name__}.adapter.recorder",
    f"{__name__}.vllm_plugin": f"{__name__}.automatic.vllm_plugin",
    f"{__name__}.wandb_log": f"{__name__}.wandb_run.log",
    f"{__name__}.wandb_system": f"{__name__}.wandb_run.system",
}


class _Former:
    """Finder and loader of modules by their former names: both names are one module."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in _FORMER:
            return None
        message = f"{name} is now {_FORMER[name]}."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, self)  # type: ignore[arg-type]  # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_FORMER[spec.name])
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has replaced it


sys.meta_path.append(_Former())
