"""Names that W&B has and the drop-in lacks: each logs once what to do instead.

Media, and calls that only write, do nothing. Any other name is an ``AttributeError`` with the
advice: a program cannot go on without what it reads from W&B.
"""

from types import SimpleNamespace
from typing import Any, Final

from otel_rl.worker.guard import GUARD

__all__ = ["INSTEAD", "Error", "Skipped", "attribute", "errors", "warn_once"]

INSTEAD: Final = "Use the wandb package itself for it, under `otel-rl run --attach`."


def warn_once(message: str) -> None:
    GUARD.once(f"otel_rl.integrations.wandb: {message}")


class Error(Exception):
    """Base class of W&B's errors, and each of them. Never raised; for ``except wandb.Error``."""


_ERRORS: Final = "AuthenticationError CommError ConfigError Error UnsupportedError UsageError"

errors: Final = SimpleNamespace(**dict.fromkeys(_ERRORS.split(), Error))
"""``wandb.errors``."""


class Skipped:
    """An object of W&B's that is not written: each of its methods does nothing and returns it."""

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


class _Call(Skipped):
    """A function without an effect, which logs that it has none."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_arguments: Any, **_named: Any) -> Any:
        warn_once(f"{self._name} does nothing here. {INSTEAD}")
        return Skipped()


_CLASSES: Final = (
    "Artifact ArtifactTTL Audio Classes EvalTable Graph Histogram Html Image JoinedTable Molecule "
    "Object3D Plotly Video"
)
_OBJECTS: Final = (
    "AlertLevel box3d config_static plot plot_table settings "
    "_label require setup teardown termerror termlog termwarn"  # they change nothing in a run
)
_CALLS: Final = (
    "alert display finish_artifact get_project_url get_sweep_url get_url link_artifact link_model "
    "log_artifact log_code log_model mark_preempting pin_config_keys project_name save status "
    "sync_dir tensorboard to_html unwatch upsert_artifact watch write_logs"
)

_ABSENT: Final[dict[str, Any]] = {
    **{name: type(name, (Skipped,), {}) for name in _CLASSES.split()},
    **{name: type(name, (Skipped,), {})() for name in _OBJECTS.split()},
    **{name: _Call(name) for name in _CALLS.split()},
}


def attribute(owner: str, name: str) -> Any:
    """Return the stand-in for a name of W&B's that ``owner`` lacks.

    Raises:
        AttributeError: The name is none of those that do nothing.
    """
    if name in _ABSENT:
        return _ABSENT[name]
    raise AttributeError(f"otel_rl.integrations.wandb has no {owner}.{name}. {INSTEAD}")
