"""vLLM 0.13, as far as its stat loggers go."""

from vllm.v1.metrics.loggers import (  # type: ignore[import-not-found]  # the one beside this file
    StatLoggerBase,
    load_stat_logger_plugin_factories,
)


class AsyncLLM:
    def __init__(self, *, log_stats: bool) -> None:
        factories = load_stat_logger_plugin_factories()
        self.log_stats = log_stats or bool(factories)
        self.stat_loggers: list[StatLoggerBase] = [factory(object(), 0) for factory in factories]
