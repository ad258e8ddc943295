"""NeMo-RL 7ea279abf."""

from abc import ABC, abstractmethod
from collections.abc import Mapping


class LoggerInterface(ABC):
    @abstractmethod
    def log_metrics(
        self,
        metrics: dict[str, object],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None: ...

    @abstractmethod
    def log_hyperparams(self, params: Mapping[str, object]) -> None: ...

    @abstractmethod
    def log_histogram(self, histogram: list[object], step: int, name: str) -> None: ...

    @abstractmethod
    def log_plot(self, figure: object, step: int, name: str) -> None: ...


class Logger(LoggerInterface):
    def __init__(self, cfg: Mapping[str, object]) -> None:
        self.loggers: list[LoggerInterface] = []

    def log_metrics(
        self,
        metrics: dict[str, object],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        for logger in self.loggers:
            logger.log_metrics(metrics, step, prefix, step_metric, step_finished)

    def log_hyperparams(self, params: Mapping[str, object]) -> None:
        for logger in self.loggers:
            logger.log_hyperparams(params)

    def log_histogram(self, histogram: list[object], step: int, name: str) -> None: ...

    def log_plot(self, figure: object, step: int, name: str) -> None: ...
