"""Threads on which questions are answered, so that a long answer holds up none about another run.

```
runs                        [ ]
diagnose   of grpo          [########## 20 s ]
history    of grpo          [##]
diagnose   of sft           [###]
```
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

__all__ = ["Lanes"]

_LANES: Final = 4  # a client asks about few runs at a time; each lane keeps histories of its own

A = TypeVar("A")
T = TypeVar("T")


class _Lane(Generic[A]):
    """One thread, with the source of its answers.

    Attributes:
        about: Subject of its last question.
    """

    def __init__(self, number: int, make: Callable[[], A]) -> None:
        self.about: Hashable = None
        self._make = make
        self._source: A | None = None
        self._asked: list[Future[Any]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"otel-rl-mcp-{number}")

    @property
    def waiting(self) -> int:
        """Return the number of questions without an answer."""
        self._asked = [one for one in self._asked if not one.done()]
        return len(self._asked)

    def ask(self, question: Callable[[A], T]) -> "Future[T]":
        """Answer a question after those before."""

        def answer() -> T:
            if self._source is None:
                self._source = self._make()
            return question(self._source)

        asked = self._thread.submit(answer)
        self._asked.append(asked)
        return asked


class Lanes(Generic[A]):
    """Answers questions, those about one subject in their order. Used on one event loop.

    Args:
        make: Makes the source of a lane's answers, on its thread.
    """

    def __init__(self, make: Callable[[], A]) -> None:
        # The one that was asked last is the last.
        self._lanes = [_Lane(number, make) for number in range(_LANES)]

    async def answer(self, about: Hashable, question: Callable[[A], T]) -> T:
        """Return the answer to a question.

        Args:
            about: Its subject: what is known of it stays where it was asked about before.
            question: Called on the thread of a lane.
        """
        lane = self._chosen(about)
        lane.about = about
        self._lanes.remove(lane)
        self._lanes.append(lane)
        return await asyncio.wrap_future(lane.ask(question))

    def _chosen(self, about: Hashable) -> _Lane[A]:
        own = [lane for lane in self._lanes if lane.about == about]
        return own[0] if own else min(self._lanes, key=lambda lane: lane.waiting)
