"""torchforge 6e77f0b3."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum


class BackendRole:
    LOCAL = "local"
    GLOBAL = "global"


class LoggingMode(Enum):
    GLOBAL_REDUCE = "global_reduce"
    PER_RANK_REDUCE = "per_rank_reduce"
    PER_RANK_NO_REDUCE = "per_rank_no_reduce"


class Reduce(Enum):
    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    STD = "std"
    SAMPLE = "sample"


@dataclass
class Metric:
    key: str
    value: object
    reduction: Reduce
    timestamp: float | None = None


class LoggerBackend(ABC):
    def __init__(
        self, *, logging_mode: LoggingMode, per_rank_share_run: bool = False, **kwargs: object
    ) -> None:
        self.logging_mode = logging_mode
        self.per_rank_share_run = per_rank_share_run
        self.backend_kwargs = kwargs

    @abstractmethod
    async def init(
        self,
        role: BackendRole,
        controller_logger_metadata: dict[str, object] | None = None,
        process_name: str | None = None,
    ) -> None: ...

    @abstractmethod
    async def log_batch(
        self, metrics: list[Metric], global_step: int, *args: object, **kwargs: object
    ) -> None: ...

    def log_stream(  # noqa: B027  # as it is there
        self, metric: Metric, global_step: int, *args: object, **kwargs: object
    ) -> None: ...

    @abstractmethod
    async def finish(self) -> None: ...

    def get_metadata_for_secondary_ranks(self) -> dict[str, object] | None: ...  # noqa: B027  # as it is there


class WandbBackend(LoggerBackend, ABC): ...


def get_logger_backend_class(cls_name: str) -> type[LoggerBackend]:
    if cls_name == "wandb":
        return WandbBackend
    raise ValueError(cls_name)


class MetricCollector:
    def __init__(self) -> None:
        self.backends: list[LoggerBackend] = []

    async def init_backends(
        self,
        metadata_per_controller_backend: dict[str, dict[str, object]] | None,
        config: dict[str, dict[str, object]],
        global_step: int = 0,
        process_name: str | None = None,
    ) -> None:
        for name, backend_config in config.items():
            if backend_config["logging_mode"] == LoggingMode.GLOBAL_REDUCE:
                continue
            metadata = (metadata_per_controller_backend or {}).get(name, {})
            kind: type = get_logger_backend_class(name)
            backend: LoggerBackend = kind(**backend_config)
            await backend.init(BackendRole(), metadata, process_name)
            self.backends.append(backend)
