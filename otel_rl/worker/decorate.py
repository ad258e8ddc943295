"""Functions whose every call is a context manager's block: plain, async, and both as generators.

A generator is in the block while it runs, and out of it while it is suspended: what its consumer
does between two items is no time of the generator's.
"""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, cast

__all__ = ["driven", "driven_async", "timed"]

P = ParamSpec("P")
R = TypeVar("R")

# What a decorated function takes, gives and is sent is nobody's business here.
_Block = Callable[[], AbstractContextManager[object]]
_Generator = Generator[Any, Any, Any]
_AsyncGenerator = AsyncGenerator[Any, Any]


def timed(function: Callable[P, R], block: _Block) -> Callable[P, R]:
    """``function``, each of whose calls runs in a block of its own.

    Args:
        function: Of any kind. What is no function but can be called is taken for a plain one.
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
            return (yield from driven(function(*args, **kwargs), block))

        return cast("Callable[P, R]", generate)

    if inspect.isasyncgenfunction(function):
        _within_async = driven_async(lambda generator: (generator, block))

        @wraps(function)
        def generate_async(*args: P.args, **kwargs: P.kwargs) -> _AsyncGenerator:
            generator = function(*args, **kwargs)  # here, where it says what is wrong with them
            return _within_async(generator)

        return cast("Callable[P, R]", generate_async)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with block():
            return function(*args, **kwargs)

    return call


def driven(generator: _Generator, block: _Block) -> _Generator:
    """``generator``, resumed within blocks only."""
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
        except BaseException as error:  # noqa: BLE001  # it is the generator's to handle
            resume = partial(generator.throw, error)
        else:
            resume = partial(generator.send, sent)


def driven_async(
    begin: Callable[P, tuple[_AsyncGenerator, _Block]],
) -> Callable[P, _AsyncGenerator]:
    """As ``driven``, as a function that Python and Ray know for an async generator's.

    Args:
        begin: Makes the generator and what makes its blocks, for each call.
    """

    async def generate(*args: P.args, **kwargs: P.kwargs) -> _AsyncGenerator:
        generator, block = begin(*args, **kwargs)
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
            except BaseException as error:  # noqa: BLE001  # it is the generator's to handle
                resume = partial(generator.athrow, error)
            else:
                resume = partial(generator.asend, sent)

    return generate
