"""Lets a program replace the TracerProvider that the environment has installed.

The API installs the provider of ``OTEL_PYTHON_TRACER_PROVIDER`` when anything first requests a
tracer, often a library at its import, and would refuse the program's own provider later. Without
otel_rl that provider gets the spans of all tracers, also of earlier ones; with it, too.
"""

from collections.abc import Callable
from contextvars import ContextVar
from threading import Lock
from typing import Any, Protocol, cast

from opentelemetry import trace
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.trace import Span, Tracer, TracerProvider
from opentelemetry.util.types import Attributes

__all__ = ["GivesWay", "GivingWayTracer", "give_way"]

_GUARD = "_TRACER_PROVIDER_SET_ONCE"
"""Name in the API, which has no public one. Without it, the API refuses as ever."""

_gives_way: ContextVar[bool] = ContextVar("otel_rl_gives_way", default=False)


class GivesWay(Protocol):
    """A provider that the program may replace by its own."""

    replaced_by: TracerProvider | None
    """Provider of the program, which makes all spans from then on."""


def give_way(own: GivesWay) -> None:
    """Let the API accept another provider as long as ``own`` is the global one. Idempotent."""
    guard = getattr(trace, _GUARD, None)
    if guard is not None and not isinstance(guard, _Replaceable):
        setattr(trace, _GUARD, _Replaceable(own, guard))


class _Once(Protocol):
    def do_once(self, func: Callable[[], None], /) -> bool: ...


class _Replaceable:
    """Stands in for the API's ``Once``: the first provider of the program is accepted, too."""

    def __init__(self, own: GivesWay, first: _Once) -> None:
        self._own = own
        self._first = first  # also decides for who has asked it before it was replaced
        self._lock = Lock()  # guards replaced_by and the global provider

    def do_once(self, set_provider: Callable[[], None]) -> bool:
        """Call ``set_provider`` unless the program has set a provider. Returns if it did."""
        with self._lock:
            if not self._first.do_once(set_provider):
                if cast("object", trace.get_tracer_provider()) is not self._own:
                    return False
                set_provider()
            present = trace.get_tracer_provider()
            if cast("object", present) is not self._own:
                self._own.replaced_by = present
            return True


class GivingWayTracer(SdkTracer):
    """SDK tracer whose spans are of the program's provider once there is one."""

    made_by: GivesWay
    """Its provider."""

    arguments: tuple[str, str | None, str | None, Attributes]
    """Arguments of ``get_tracer``."""

    _theirs: Tracer | None = None
    """Of the program's provider. Each request would clear what the process has warned of once."""

    @classmethod
    def of(
        cls,
        tracer: SdkTracer,
        made_by: GivesWay,
        arguments: tuple[str, str | None, str | None, Attributes],
    ) -> "GivingWayTracer":
        """Return ``tracer`` itself as one of this kind.

        Only the SDK can make a tracer, by arguments that differ between its versions.
        """
        tracer.__class__ = cls
        assert isinstance(tracer, cls)
        tracer.made_by, tracer.arguments = made_by, arguments
        return tracer

    def start_span(self, *arguments: Any, **named: Any) -> Span:
        """See ``opentelemetry.trace.Tracer.start_span``."""
        provider = self.made_by.replaced_by
        if provider is None or _gives_way.get():  # the program's provider wraps this one
            return super().start_span(*arguments, **named)
        token = _gives_way.set(True)
        try:
            if self._theirs is None:
                self._theirs = provider.get_tracer(*self.arguments)
            return self._theirs.start_span(*arguments, **named)
        finally:
            _gives_way.reset(token)
