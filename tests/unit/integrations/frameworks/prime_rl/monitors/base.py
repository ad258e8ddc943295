"""prime-rl 559b44772."""

from abc import ABC, abstractmethod


class Monitor(ABC):
    def __init__(self, config: object) -> None:
        self.config = config

    async def init(self, **kwargs: object) -> None: ...  # noqa: B027  # as it is there

    async def log(
        self, data: object, step: int, kind: str = "train", subset: str = "effective"
    ) -> None:
        if isinstance(data, dict):
            await self.log_metrics(data, step=step)
        else:
            episodes = data if isinstance(data, list) else [data]
            await self.log_episodes(episodes, step=step, kind=kind, subset=subset)

    @abstractmethod
    async def log_metrics(self, metrics: dict[str, object], step: int) -> None: ...

    @abstractmethod
    async def log_episodes(
        self, episodes: list[object], step: int, kind: str, subset: str
    ) -> None: ...

    async def finalize(self) -> None: ...  # noqa: B027  # as it is there
