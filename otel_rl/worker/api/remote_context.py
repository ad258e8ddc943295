"""Trace context as an argument of calls that have no headers: Ray, process pools.

trainer    sends_context(actor.generate.remote)(prompts)
-> actor.generate.remote(prompts, otel_context={"traceparent": ...})
generator  @takes_context over generate: its work is a part of the caller's step
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager
from contextvars import Token
from typing import Any, ParamSpec, TypeVar, cast

from opentelemetry import propagate
from opentelemetry.context import Context, attach, detach, get_current

from otel_rl.worker import session
from otel_rl.worker.api.decorator import driven, driven_async

__all__ = ["ARGUMENT", "sends_context", "takes_context"]

ARGUMENT = "otel_context"
"""Keyword of the context."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
# Any: a decorated function may have any signature.
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Block = Callable[[], AbstractContextManager[None]]


def sends_context(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return ``call`` with the caller's W3C context as an additional argument.

    Args:
        call: Of a remote function that ``takes_context``: ``actor.generate.remote`` of Ray, or a
            ``functools.partial(pool.submit, function)``.
    """

    def calls(*args: _P.args, **options: _P.kwargs) -> _R:
        headers: dict[str, str] = {}
        with session.GUARD:
            propagate.inject(headers)
        return call(*args, **options, **{ARGUMENT: headers})  # type: ignore[arg-type]  # by design

    return calls


def takes_context(function: _Function) -> _Function:
    """Decorate a remotely called function, also an ``async`` one or a generator.

    Its spans and phases become parts of the caller's span. Without the argument, and called
    directly, it is unchanged. Between two items of a generator its consumer has its own context.
    """
    # Of the same kind, because Ray checks if an actor's methods are async.
    if inspect.isasyncgenfunction(function):

        def begin(*args: object, **options: object) -> tuple[AsyncGenerator[Any, Any], _Block]:
            caller = _Caller(options.pop(ARGUMENT, None))
            return function(*args, **options), lambda: caller

        return _dressed(driven_async(begin), function)

    if inspect.iscoroutinefunction(function):

        async def run_async(*args: object, **options: object) -> object:
            with _Caller(options.pop(ARGUMENT, None)):
                return await cast("Awaitable[object]", function(*args, **options))

        return _dressed(run_async, function)

    if inspect.isgeneratorfunction(function):

        def stream(*args: object, **options: object) -> Generator[Any, Any, Any]:
            caller = _Caller(options.pop(ARGUMENT, None))
            return (yield from driven(function(*args, **options), lambda: caller))

        return _dressed(stream, function)

    def run(*args: object, **options: object) -> object:
        with _Caller(options.pop(ARGUMENT, None)):
            return function(*args, **options)

    return _dressed(run, function)


def _dressed(runs: Callable[..., object], function: _Function) -> _Function:
    """Return ``runs`` with the name of ``function``, and its signature plus the argument."""
    functools.update_wrapper(runs, function)
    # Ray checks calls against the signature of the wrapped function, if there is one.
    del runs.__wrapped__  # type: ignore[attr-defined]  # made by update_wrapper
    runs.__signature__ = _with_argument(function)  # type: ignore[attr-defined]  # as inspect reads
    return cast("_Function", runs)


class _Caller:
    """Makes the enclosed code a part of the caller's span; without a context it does nothing.

    A generator enters it for each run and resumes its own context. In between, its consumer has its
    own.
    """

    __slots__ = ("_context", "_token")

    def __init__(self, headers: object) -> None:
        self._context: Context | None = None
        self._token: Token[Context] | None = None
        if isinstance(headers, Mapping) and headers:
            with session.GUARD:
                self._context = propagate.extract(headers, Context())

    def __enter__(self) -> None:
        if self._context is not None:
            with session.GUARD:
                self._token = attach(self._context)

    def __exit__(self, *_error: object) -> None:
        token, self._token = self._token, None
        if token is not None:
            with session.GUARD:
                self._context = get_current()
                detach(token)


def _with_argument(function: Callable[..., object]) -> inspect.Signature:
    signature = inspect.signature(function)
    added = inspect.Parameter(ARGUMENT, inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = [*signature.parameters.values(), added]
    # A ``**kwargs`` parameter must come last.
    parameters.sort(key=lambda parameter: parameter.kind)
    return signature.replace(parameters=parameters)
