"""Runs every call of a function in a context manager's block: plain, async and generator functions.

A generator is inside the block while it runs, and outside while it is suspended: its consumer's
time is not the generator's.
"""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, cast

__all__ = ["timed"]

P = ParamSpec("P")
R = TypeVar("R")

# Any: the types of the decorated function do not matter here.
_Block = Callable[[], AbstractContextManager[object]]
_Generator = Generator[Any, Any, Any]
_AsyncGenerator = AsyncGenerator[Any, Any]


def timed(function: Callable[P, R], block: _Block) -> Callable[P, R]:
    """Return ``function`` with each call in a block of its own.

    Args:
        function: Of any kind. A callable that is not a function is treated as a plain one.
        block: Makes the context manager for one call, or for one run of a generator.
    """
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call_async(*args: P.args, **kwargs: P.kwargs) -> object:
            with block():
                return await function(*args, **kwargs)

        return cast("Callable[P, R]", call_async)

    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def generate(*args: P.args, **kwargs: P.kwargs) -> _Generator:
            return (yield from _driven(function(*args, **kwargs), block))

        return cast("Callable[P, R]", generate)

    if inspect.isasyncgenfunction(function):

        @wraps(function)
        def generate_async(*args: P.args, **kwargs: P.kwargs) -> _AsyncGenerator:
            # Not in the generator, so that wrong arguments raise at the call.
            return _driven_async(function(*args, **kwargs), block)

        return cast("Callable[P, R]", generate_async)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with block():
            return function(*args, **kwargs)

    return call


def _driven(generator: _Generator, block: _Block) -> _Generator:
    """Run ``generator`` within blocks only."""
    resume: Callable[[], Any] = partial(next, generator)
    while True:
        with block():
            try:
                item = resume()
            except StopIteration as stop:
                return stop.value
        try:
            sent = yield item
        except GeneratorExit:
            with block():
                generator.close()
            raise
        except BaseException as error:  # noqa: BLE001  # the generator handles it
            resume = partial(generator.throw, error)
        else:
            resume = partial(generator.send, sent)


async def _driven_async(generator: _AsyncGenerator, block: _Block) -> _AsyncGenerator:
    """Do the same for an async generator."""
    resume: Callable[[], Awaitable[Any]] = partial(generator.asend, None)
    while True:
        with block():
            try:
                item = await resume()
            except StopAsyncIteration:
                return
        try:
            sent = yield item
        except GeneratorExit:
            with block():
                await generator.aclose()
            raise
        except BaseException as error:  # noqa: BLE001  # the generator handles it
            resume = partial(generator.athrow, error)
        else:
            resume = partial(generator.asend, sent)
