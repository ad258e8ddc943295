"""Shares what otel_rl's providers make with those that the program sets as global later.

The API accepts one provider of a kind for the life of a process and refuses later ones. Below
``otel-rl run`` that one is otel_rl's as soon as any library requests a meter or a tracer, and the
program's exporters would get nothing.
"""

from collections.abc import Callable
from functools import wraps
from threading import Lock
from types import ModuleType
from typing import Any, Final

__all__ = ["take_later"]

_MARK: Final = "_shares_with_later"


def take_later(api: ModuleType, kind: str, own: object, share: Callable[[object], bool]) -> None:
    """Make ``api.set_<kind>_provider`` share while ``own`` is the global provider. Idempotent.

    Only the first later provider gets something; the API refuses others.

    Args:
        api: ``opentelemetry.metrics`` or ``opentelemetry.trace``.
        kind: ``meter`` or ``tracer``.
        own: Keeps making everything.
        share: Shares with a provider; returns False for one that it cannot share with.
    """
    name = f"set_{kind}_provider"
    refuse = getattr(api, name)
    if not hasattr(refuse, _MARK):
        setattr(api, name, _sharing(refuse, getattr(api, f"get_{kind}_provider"), own, share))


def _sharing(
    refuse: Callable[..., None],
    present: Callable[[], object],
    own: object,
    share: Callable[[object], bool],
) -> Callable[..., None]:
    lock = Lock()  # guards has_shared
    has_shared = False

    @wraps(refuse)
    def set_provider(*arguments: Any, **named: Any) -> None:
        nonlocal has_shared
        later = next(iter((*arguments, *named.values())), None)
        if later is not own and present() is own:
            with lock:
                if not has_shared and share(later):
                    has_shared = True
                    return
        refuse(*arguments, **named)

    setattr(set_provider, _MARK, True)
    return set_provider
