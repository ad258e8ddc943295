"""Requests of one pass are stored together, and rows are made once their senders are answered."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from otel_rl.bridge.ingest.http.requests.stored_together import StoredTogether
from otel_rl.errors import JournalClosed, JournalFull
from otel_rl.records import Batch, ExperimentKey, Signal

Outcome = bool | BaseException
FULL = JournalFull("full")


class Site:
    """What is told, in order. The journal stores when it is told to."""

    def __init__(self) -> None:
        self.told = list[object]()
        self.stored = list[tuple[Sequence[Sequence[Batch]], Future[Sequence[JournalFull | None]]]]()
        self.together = StoredTogether(self._accept, lambda: self.told.append("answered"))

    def _accept(
        self, requests: Sequence[Sequence[Batch]]
    ) -> Future[Sequence[JournalFull | None]] | None:
        future: Future[Sequence[JournalFull | None]] = Future()
        self.stored.append((requests, future))
        return future

    def begin(self, name: str) -> None:
        batch = Batch(ExperimentKey(name), Signal.METRICS, b"x", received_ns=1)
        self.together.begin([batch], lambda outcome: self.told.append((name, outcome)))


async def _passes() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_rows_are_made_after_all_are_answered() -> None:
    async def scenario() -> None:
        site = Site()
        site.begin("a")
        site.begin("b")
        await _passes()
        ((requests, future),) = site.stored
        assert (len(requests), site.told) == (2, [])
        future.set_result([None, FULL])
        await _passes()
        assert site.told == [("a", True), ("b", FULL), "answered"]

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [JournalClosed("closed"), OSError("broken")])
def test_what_was_not_stored_makes_no_rows(error: Exception) -> None:
    async def scenario() -> None:
        site = Site()
        site.begin("a")
        await _passes()
        site.stored[0][1].set_exception(error)
        await _passes()
        assert site.told == [("a", error)]

    asyncio.run(scenario())


def test_an_answer_that_fails_keeps_no_other_from_its_sender() -> None:
    async def scenario() -> None:
        site, errors = Site(), list[object]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        error = OSError("broken")

        def fail(_: Outcome) -> None:
            raise error

        site.together.begin([], fail)
        site.begin("b")
        await _passes()
        site.stored[0][1].set_result([None, None])
        await _passes()
        assert (site.told, errors) == ([("b", True), "answered"], [error])

    asyncio.run(scenario())
