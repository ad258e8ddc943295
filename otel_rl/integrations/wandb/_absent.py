"""What W&B has and the drop-in has not: each gets one sentence, once, with what to do instead.

A call without a result that a training needs does nothing. One that reads from W&B raises, because
a program cannot go on without its result. A name that is in no table here is an ``AttributeError``
or ``ModuleNotFoundError`` with the same advice.

    sys.modules["wandb"] = otel_rl.integrations.wandb
    from wandb.sdk.lib import RunDisabled                   # a class without objects
    from wandb.integration.sb3 import WandbCallback         # the drop-in's own
"""

import logging
import sys
from collections.abc import Iterable, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from types import ModuleType
from typing import Any, Final, NoReturn

__all__ = ["INSTEAD", "Error", "Skipped", "attribute", "install", "warn_once"]

INSTEAD: Final = "Use the wandb package itself for it, under `otel-rl run --attach`."

_MAX_SENTENCES: Final = 1000
"""Bounds the memory against messages that contain a step or an id."""

_log = logging.getLogger("otel_rl")
_said: set[str] = set()


def warn_once(message: str) -> None:
    """Log ``message`` as a warning, once per process."""
    if message not in _said and len(_said) < _MAX_SENTENCES:
        _said.add(message)
        _log.warning("otel_rl.integrations.wandb: %s", message)


class Error(Exception):
    """W&B's base of errors. Never raised here; for ``except wandb.Error``."""


class Skipped:
    """An object of W&B's that is not written: every method of it does nothing and returns it."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_repr_", "_ipython_")):  # Python and notebooks do without
            raise AttributeError(name)
        return self

    def __call__(self, *_arguments: Any, **_named: Any) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<wandb.{type(self).__name__}, not written>"


def _kind(name: str, base: type = Skipped) -> Any:
    return type(name, (base,), {"__doc__": f"Stands for W&B's {name}. See `otel-rl help wandb`."})


def _refuse(name: str, *_arguments: object, **_named: object) -> NoReturn:
    raise NotImplementedError(
        f"otel_rl.integrations.wandb has no {name}: it reads from W&B, and a worker only writes. "
        f"{INSTEAD}"
    )


def _do_nothing(name: str, *_arguments: object, **_named: object) -> Any:
    warn_once(f"{name} does nothing here. {INSTEAD}")
    return Skipped()


_ERRORS: Final = "AuthenticationError CommError ConfigError UnsupportedError UsageError"
_CLASSES: Final = (
    "Artifact ArtifactTTL Audio Classes EvalTable Graph Html Image JoinedTable Molecule Object3D "
    "Plotly RunDisabled Video"
)
_OBJECTS: Final = "AlertLevel box3d config_static plot plot_table settings"
_READS: Final = "Api agent attach controller restore sweep use_artifact use_model"
_WITHOUT_EFFECT: Final = (
    "alert display finish_artifact get_project_url get_sweep_url get_url link_artifact link_model "
    "log_artifact log_code log_model mark_preempting pin_config_keys project_name save status "
    "sync_dir to_html unwatch upsert_artifact watch write_logs"
)
_NOT_NEEDED: Final = "_label require setup teardown termerror termlog termwarn"
"""They change nothing in a run, so nobody is warned."""

_ABSENT: Final[dict[str, Any]] = {
    **{name: _kind(name, Error) for name in _ERRORS.split()},
    **{name: _kind(name) for name in _CLASSES.split()},
    **{name: _kind(name)() for name in (*_OBJECTS.split(), *_NOT_NEEDED.split())},
    **{name: partial(_refuse, name) for name in _READS.split()},
    **{name: partial(_do_nothing, name) for name in _WITHOUT_EFFECT.split()},
}

_MODULES: Final = frozenset({
    "wandb.data_types", "wandb.errors", "wandb.integration", "wandb.integration.sb3", "wandb.plot",
    "wandb.sb3", "wandb.sdk", "wandb.sdk.data_types", "wandb.sdk.lib", "wandb.sdk.lib.config_util",
    "wandb.sdk.lib.runid", "wandb.sdk.wandb_run", "wandb.util", "wandb.wandb_run",
})  # fmt: skip
"""Modules of W&B's that libraries import. A name means the same in each of them."""


@cache
def _module(name: str) -> "_Module":
    """Return the module that stands for one of W&B's."""
    return _Module(name, "Stands for a module of W&B's. See `otel-rl help wandb`.")


def attribute(owner: str, name: str) -> Any:
    """Return what there is of W&B's for a name that ``owner`` has not.

    Raises:
        AttributeError: W&B has none of this name, or nobody was known to use it.
    """
    if name in _ABSENT:
        return _ABSENT[name]
    if f"{owner}.{name}" in _MODULES:
        return _module(f"{owner}.{name}")
    raise AttributeError(f"otel_rl.integrations.wandb has no {owner}.{name}. {INSTEAD}")


def install(drop_in: ModuleType) -> None:
    """Answer imports below ``wandb``, and for its version, while the drop-in has that name."""
    sys.meta_path.insert(0, _Finder(drop_in))


class _Finder(MetaPathFinder, Loader):
    def __init__(self, drop_in: ModuleType) -> None:
        self._drop_in = drop_in

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a known module below ``wandb``.

        Raises:
            ModuleNotFoundError: It is another one; files of the drop-in are none of W&B's.
        """
        if not fullname.startswith("wandb.") or sys.modules.get("wandb") is not self._drop_in:
            return None
        if fullname not in _MODULES:
            message = f"otel_rl.integrations.wandb has no module {fullname}. {INSTEAD}"
            raise ModuleNotFoundError(message, name=fullname)
        return ModuleSpec(fullname, self, origin="otel_rl", is_package=True)

    def find_distributions(self, context: DistributionFinder.Context) -> Iterable[Distribution]:
        """Return the drop-in as an installed package: libraries read its version first."""
        found = context.name == "wandb" and sys.modules.get("wandb") is self._drop_in
        return [_Package(self._drop_in.__version__)] if found else []

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create a module with the names of the drop-in."""
        return _module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are resolved on access."""


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "WandbCallback" and self.__name__.endswith(".sb3"):
            return import_module("otel_rl.integrations.wandb._sb3").WandbCallback
        if f"{self.__name__}.{name}" in _MODULES:
            return _module(f"{self.__name__}.{name}")
        return getattr(import_module("otel_rl.integrations.wandb"), name)


class _Package(Distribution):
    def __init__(self, version: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: wandb\nVersion: {version}\nSummary: otel_rl\n"

    def read_text(self, filename: str) -> str | None:
        """Return its metadata; it has no other file."""
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: "str | PathLike[str]") -> Any:
        """Raise: it has no files."""
        raise FileNotFoundError(path)
