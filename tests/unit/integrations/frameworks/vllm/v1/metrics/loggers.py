"""vLLM 0.13."""

from abc import ABC, abstractmethod


class StatLoggerBase(ABC):
    @abstractmethod
    def __init__(self, vllm_config: object, engine_index: int = 0) -> None: ...

    @abstractmethod
    def record(
        self,
        scheduler_stats: object,
        iteration_stats: object,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None: ...

    @abstractmethod
    def log_engine_initialized(self) -> None: ...

    def log(self) -> None: ...  # noqa: B027  # as it is there

    def record_sleep_state(self, is_awake: int, level: int) -> None: ...  # noqa: B027  # as it is there
