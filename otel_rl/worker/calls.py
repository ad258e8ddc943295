"""Trace context as one more argument of a call, for what has no headers: Ray, process pools.

trainer    sends_context(actor.generate.remote)(prompts)
-> actor.generate.remote(prompts, otel_context={"traceparent": ...})
generator  @takes_context over generate: what it does is a part of the caller's step
"""

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

from opentelemetry import propagate
from opentelemetry.context import Context, attach, detach

from otel_rl.worker import session

__all__ = ["ARGUMENT", "sends_context", "takes_context"]

ARGUMENT = "otel_context"
"""The keyword by which the context is passed."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
# Any: of every function that is decorated, whatever it takes.
_Function = TypeVar("_Function", bound=Callable[..., Any])


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
    directly, it is as it was.
    """
    # Of the same kind, because Ray asks an actor's methods whether they are async.
    if inspect.isasyncgenfunction(function):

        async def stream_async(*args: object, **options: object) -> AsyncIterator[object]:
            with _within(options.pop(ARGUMENT, None)):
                async for item in function(*args, **options):
                    yield item

        return _dressed(stream_async, function)

    if inspect.iscoroutinefunction(function):

        async def run_async(*args: object, **options: object) -> object:
            with _within(options.pop(ARGUMENT, None)):
                return await cast("Awaitable[object]", function(*args, **options))

        return _dressed(run_async, function)

    if inspect.isgeneratorfunction(function):

        def stream(*args: object, **options: object) -> Iterator[object]:
            with _within(options.pop(ARGUMENT, None)):
                yield from function(*args, **options)

        return _dressed(stream, function)

    def run(*args: object, **options: object) -> object:
        with _within(options.pop(ARGUMENT, None)):
            return function(*args, **options)

    return _dressed(run, function)


def _dressed(runs: Callable[..., object], function: _Function) -> _Function:
    """``runs`` under the name of ``function``, and with its signature and the argument."""
    functools.update_wrapper(runs, function)
    # Ray checks calls against the signature, of what is wrapped if it finds that.
    del runs.__wrapped__  # type: ignore[attr-defined]  # made by update_wrapper
    runs.__signature__ = _with_argument(function)  # type: ignore[attr-defined]  # as inspect reads
    return cast("_Function", runs)


@contextmanager
def _within(headers: object) -> Iterator[None]:
    """The block is a part of what the headers say; of what is around it where they say nothing."""
    token = None
    if isinstance(headers, Mapping) and headers:
        with session.GUARD:
            token = attach(propagate.extract(headers, Context()))
    try:
        yield
    finally:
        if token is not None:
            with session.GUARD:
                detach(token)


def _with_argument(function: Callable[..., object]) -> inspect.Signature:
    signature = inspect.signature(function)
    added = inspect.Parameter(ARGUMENT, inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = [*signature.parameters.values(), added]
    # What takes any keyword comes last.
    parameters.sort(key=lambda parameter: parameter.kind)
    return signature.replace(parameters=parameters)
