"""What the shim has no place for: objects and calls that say so once and let training go on."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from otel_rl.compat.wandb._say import say_once
from otel_rl.compat.wandb._stand_in import StandIn, is_asked_by_python, stand_in

__all__ = ["MEDIA", "READS", "Media", "ignored", "media", "refused"]


class Media:
    """Stands for an object that is not carried. Takes any arguments, any attribute, any method.

    Args:
        kind: The W&B name, e.g. ``Table``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __getattr__(self, name: str) -> Any:
        if is_asked_by_python(name):
            raise AttributeError(name)
        return stand_in(f"{self.kind}.{name}", is_said=False)  # said where it is logged

    def __repr__(self) -> str:
        return f"<wandb.{self.kind}, not carried>"


def media(kind: str) -> Callable[..., Media]:
    """A class whose instances stand for W&B's ``kind``."""

    class Kind(Media):
        def __init__(self, *_arguments: object, **_named: object) -> None:
            super().__init__(kind)

    Kind.__name__ = Kind.__qualname__ = kind
    Kind.__doc__ = f"W&B's {kind}, which is not carried: logging it is skipped, said and counted."
    return Kind


def ignored(name: str, why: str) -> Callable[..., StandIn]:
    """A function that does nothing but say once that ``name`` does nothing."""
    nothing: StandIn = stand_in(name, is_said=False)()

    def call(*_arguments: object, **_named: object) -> StandIn:
        say_once(f"{name} does nothing here: {why}")
        return nothing  # of which a program may call what W&B's answer has

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Does nothing, and says so once: {why}"
    return call


def refused(name: str, why: str) -> Callable[..., None]:
    """A function that raises, because the program could not go on without its answer."""

    def call(*_arguments: object, **_named: object) -> None:
        raise NotImplementedError(f"otel_rl.compat.wandb has no {name}: {why}")

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
