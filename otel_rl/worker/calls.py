"""Trace context as one more argument of a call, for what has no headers: Ray, process pools.

trainer    sends_context(actor.generate.remote)(prompts)
-> actor.generate.remote(prompts, otel_context={"traceparent": ...})
generator  @takes_context over generate: what it does is a part of the caller's step
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
from otel_rl.worker.decorate import driven, driven_async

__all__ = ["ARGUMENT", "sends_context", "takes_context"]

ARGUMENT = "otel_context"
"""The keyword by which the context is passed."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
# Any: of every function that is decorated, whatever it takes.
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Block = Callable[[], AbstractContextManager[None]]


def sends_context(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """``call`` with the W3C context of whoever calls as one more argument.

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
    """Decorate a function, also an ``async`` one or a generator, that is called from afar.

    Its spans and phases are then parts of the caller's span. Without the argument, and called
    directly, it is as it was. Between two items of a generator its consumer has its own context.
    """
    # Of the same kind, because Ray asks an actor's methods whether they are async.
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
    """``runs`` under the name of ``function``, and with its signature and the argument."""
    functools.update_wrapper(runs, function)
    # Ray checks calls against the signature, of what is wrapped if it finds that.
    del runs.__wrapped__  # type: ignore[attr-defined]  # made by update_wrapper
    runs.__signature__ = _with_argument(function)  # type: ignore[attr-defined]  # as inspect reads
    return cast("_Function", runs)


class _Caller:
    """Makes what runs within it a part of the caller's span; does nothing where it says none.

    A generator is within it each time that it runs, and finds the context that it has left. In
    between, its consumer has its own.
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
    # What takes any keyword comes last.
    parameters.sort(key=lambda parameter: parameter.kind)
    return signature.replace(parameters=parameters)
