"""Unsupported objects and calls: they log a warning once and let training go on."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from otel_rl.integrations.wandb._log_once import warn_once
from otel_rl.integrations.wandb._stand_ins.stand_in import StandIn, is_optional, stand_in

__all__ = ["MEDIA", "READS", "Media", "ignored", "media", "refused"]


class Media:
    """Placeholder of an unsupported object. Accepts any arguments, any attribute, any method.

    Args:
        kind: The W&B name, e.g. ``Table``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __getattr__(self, name: str) -> Any:
        if is_optional(name):
            raise AttributeError(name)
        return stand_in(f"{self.kind}.{name}", is_logged=False)  # logged where the object is

    def __repr__(self) -> str:
        return f"<wandb.{self.kind}, not supported>"


def media(kind: str) -> Callable[..., Media]:
    """Return a class whose instances are placeholders of W&B's ``kind``."""

    class Kind(Media):
        def __init__(self, *_arguments: object, **_named: object) -> None:
            super().__init__(kind)

    Kind.__name__ = Kind.__qualname__ = kind
    Kind.__doc__ = f"W&B's {kind}, unsupported: logging it is skipped, counted and warned of."
    return Kind


def ignored(name: str, why: str) -> Callable[..., StandIn]:
    """Return a function that does nothing except log once that ``name`` does nothing."""
    nothing: StandIn = stand_in(name, is_logged=False)()

    def call(*_arguments: object, **_named: object) -> StandIn:
        warn_once(f"{name} does nothing here: {why}")
        return nothing  # accepts any use of W&B's return value

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Does nothing, and logs so once: {why}"
    return call


def refused(name: str, why: str) -> Callable[..., None]:
    """Return a function that raises, because the program cannot go on without its result."""

    def call(*_arguments: object, **_named: object) -> None:
        raise NotImplementedError(f"otel_rl.integrations.wandb has no {name}: {why}")

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Raises NotImplementedError: {why}"
    return call


MEDIA: Final[Mapping[str, Callable[..., Media]]] = {
    kind: media(kind)
    for kind in (
        "Artifact",
        "Audio",
        "Classes",
        "EvalTable",
        "Graph",
        "Html",
        "Image",
        "JoinedTable",
        "Molecule",
        "Object3D",
        "Plotly",
        "Video",
    )
}

_READS_BACK: Final = "it reads from W&B, and a worker only writes. Use the wandb package for it."
READS: Final[Mapping[str, Callable[..., None]]] = {
    name: refused(name, _READS_BACK)
    for name in (
        "Api",
        "agent",
        "attach",
        "controller",
        "restore",
        "sweep",
        "use_artifact",
        "use_model",
    )
}
