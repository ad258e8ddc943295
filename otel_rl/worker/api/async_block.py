"""``async with`` for blocks that wait for nothing."""

from types import TracebackType
from typing import Self

__all__ = ["AsyncBlock"]


class AsyncBlock:
    """Block that works the same in ``with`` and ``async with``. Subclasses implement ``with``."""

    __slots__ = ("__weakref__",)

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)
