"""Trace context as an argument of calls that have no headers."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from opentelemetry import trace

import otel_rl
from otel_rl import lineage
from tests.otlp_sink import Sink


def here() -> int:
    """The id of the current span."""
    return trace.get_current_span().get_span_context().span_id


@lineage.takes_context
def plain(number: int) -> tuple[int, int]:
    return number, here()


@lineage.takes_context
async def awaited(number: int) -> tuple[int, int]:
    await asyncio.sleep(0)
    return number, here()


@lineage.takes_context
def stream(number: int) -> Iterator[tuple[int, int]]:
    yield number, here()


@lineage.takes_context
async def async_stream(number: int) -> AsyncIterator[tuple[int, int]]:
    yield number, here()


def first_of(number: int, **options: object) -> tuple[int, int]:
    (found,) = stream(number, **options)
    return found


def first_async_of(number: int, **options: object) -> tuple[int, int]:
    async def run() -> tuple[int, int]:
        (found,) = [item async for item in async_stream(number, **options)]
        return found

    return asyncio.run(run())


def run_awaited(number: int, **options: object) -> tuple[int, int]:
    return asyncio.run(awaited(number, **options))


CALLS = {
    "function": plain,
    "async": run_awaited,
    "generator": first_of,
    "async generator": first_async_of,
}


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("kind", CALLS)
def test_what_is_called_from_afar_is_a_part_of_the_callers_span(kind: str) -> None:
    # Another thread has no context of its own.
    with ThreadPoolExecutor(1) as pool, otel_rl.step(1):

        def remote(number: int, **options: object) -> Future[tuple[int, int]]:
            return pool.submit(CALLS[kind], number, **options)

        assert lineage.sends_context(remote)(7).result() == (7, here())


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("kind", CALLS)
def test_what_is_called_directly_is_as_it_was(kind: str) -> None:
    assert CALLS[kind](7) == (7, 0)
    assert here() == 0


def test_the_context_of_the_caller_is_left_again(started: Sink) -> None:
    with otel_rl.step(1):
        lineage.sends_context(plain)(7)
        inside = here()
    assert inside != here() == 0


@pytest.mark.parametrize("headers", [None, {}, {"traceparent": "nonsense"}, "text"])
def test_a_context_that_says_nothing_changes_nothing(headers: object) -> None:
    assert plain(7, otel_context=headers) == (7, 0)  # type: ignore[call-arg]  # added


@pytest.mark.parametrize("function", [plain, awaited, stream, async_stream])
def test_ray_may_check_a_call_by_the_signature(function: Callable[[int], object]) -> None:
    # Ray unwraps the methods of actors.
    signature = inspect.signature(inspect.unwrap(function))
    signature.bind(7, otel_context={})
    with pytest.raises(TypeError):
        signature.bind(7, unknown=1)


def test_a_function_that_takes_any_keyword_still_does() -> None:
    @lineage.takes_context
    def free(**options: int) -> dict[str, int]:
        return options

    assert lineage.sends_context(free)(one=1) == {"one": 1}
    inspect.signature(free).bind(one=1, otel_context={})


def test_an_error_is_the_callers() -> None:
    @lineage.takes_context
    def fails() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        lineage.sends_context(fails)()


# Between two items


def headers_of_a_step() -> dict[str, str]:
    headers: dict[str, str] = {}
    with otel_rl.step(1):
        lineage.sends_context(lambda **options: headers.update(options["otel_context"]))()
    return headers


@lineage.takes_context
def spans_of_each_item(n: int) -> Iterator[int]:
    for _ in range(n):
        yield here()


@lineage.takes_context
async def async_spans_of_each_item(n: int) -> AsyncIterator[int]:
    for _ in range(n):
        await asyncio.sleep(0)
        yield here()


def span_id(headers: dict[str, str]) -> int:
    return int(headers["traceparent"].split("-")[2], 16)


def test_what_a_consumer_does_between_two_items_is_no_part_of_the_callers_span(
    started: Sink,
) -> None:
    headers = headers_of_a_step()
    outside: list[int] = []
    inside: list[int] = []
    for item in spans_of_each_item(3, otel_context=headers):  # type: ignore[call-arg]  # added
        inside.append(item)
        outside.append(here())
    assert inside == [span_id(headers)] * 3
    assert outside == [0] * 3


def test_what_an_async_consumer_does_between_two_items_is_no_part_of_the_callers_span(
    started: Sink,
) -> None:
    headers = headers_of_a_step()

    async def run() -> list[tuple[int, int]]:
        stream = async_spans_of_each_item(3, otel_context=headers)  # type: ignore[call-arg]
        return [(item, here()) async for item in stream]

    assert asyncio.run(run()) == [(span_id(headers), 0)] * 3


def test_an_async_generator_may_be_closed_by_another_task(
    started: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    headers = headers_of_a_step()
    ended: list[int] = []

    @lineage.takes_context
    async def numbers() -> AsyncGenerator[int]:
        try:
            yield 1
            yield 2
        finally:
            ended.append(here())

    async def run() -> None:
        stream = numbers(otel_context=headers)  # type: ignore[call-arg]  # added

        async def first() -> int:
            return await anext(stream)

        assert await asyncio.create_task(first()) == 1
        await asyncio.create_task(stream.aclose())

    asyncio.run(run())
    assert ended == [span_id(headers)]
    assert caplog.records == []
    assert here() == 0


def test_a_generator_from_afar_is_sent_to_thrown_into_and_returned_from(started: Sink) -> None:
    headers = headers_of_a_step()

    @lineage.takes_context
    def echo() -> Generator[object, object, str]:
        got: object = None
        while got != "end":
            try:
                got = yield got
            except KeyError as error:
                got = type(error).__name__
        return "done"

    stream = echo(otel_context=headers)  # type: ignore[call-arg]  # added
    assert next(stream) is None
    assert stream.send("a") == "a"
    assert stream.throw(KeyError()) == "KeyError"
    with pytest.raises(StopIteration) as stopped:
        stream.send("end")
    assert stopped.value.value == "done"
