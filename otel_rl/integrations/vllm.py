"""vLLM adapter: a stat logger of its asynchronous engine.

vLLM finds the logger by the entry point group ``vllm.stat_logger_plugins``, in every process that
serves. Where neither the environment nor ``otel_rl.init`` names an experiment, it records nothing.
"""

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final

from opentelemetry.metrics import Meter
from vllm.v1.metrics.loggers import (  # type: ignore[import-not-found]  # no dependency
    StatLoggerBase,
)

from otel_rl.errors import ConfigError
from otel_rl.integrations.adapter import WorkerNames, guard, is_named, meter_of, start
from otel_rl.semconv import names
from otel_rl.semconv.spec import described

__all__ = ["OtelStatLogger"]

_OUTCOMES: Final = {"stop": "success", "length": "success", "abort": "cancelled", "error": "error"}

_COUNTED: Final = {
    "num_generation_tokens": names.RL_GENERATOR_TOKENS,
    "num_preempted_reqs": names.RL_GENERATOR_PREEMPTIONS,
}
"""By the attribute of an ``IterationStats``."""

_MEASURED: Final = {
    "e2e_latency": names.GEN_AI_SERVER_REQUEST_DURATION,
    "max_tokens_param": names.RL_GENERATOR_SAMPLING_MAX_TOKENS,
    "mean_time_per_output_token": names.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN,
    "num_generation_tokens": names.RL_GENERATOR_RESPONSE_TOKENS,
    "num_prompt_tokens": names.RL_GENERATOR_PROMPT_TOKENS,
    "queued_time": names.RL_GENERATOR_QUEUE_DURATION,
}
"""By the attribute of a finished request, or of its ``timing``."""


class OtelStatLogger(StatLoggerBase):  # type: ignore[misc]  # Any where vLLM is not installed
    """Records an engine's statistics by time. ``record`` runs in vLLM's output loop: no I/O.

    Statistics of all engines of the process are added up.
    """

    def __init__(self, vllm_config: object, engine_index: int = 0) -> None:
        self._config, self._engine = vllm_config, engine_index
        self._statistics: _Statistics | None = None
        if not is_named():
            return
        try:
            start(WorkerNames(role="generator"))
            meter = meter_of("vllm")
            self._statistics = None if meter is None else _Statistics(meter)
            if meter is not None:
                _idle.report(meter)
        except ConfigError as error:  # vLLM serves on
            guard.warn("bad_environment", f"vLLM's statistics are not recorded: {error}")

    def record(
        self,
        scheduler_stats: object = None,
        iteration_stats: object = None,
        *_arguments: object,
        **_named: object,
    ) -> None:
        """Record one iteration of the engine. Never raises."""
        if self._statistics is not None:
            with guard:
                self._statistics.scheduled(scheduler_stats)
                _idle.told(self._engine, self._statistics.is_idle)
                self._statistics.iterated(iteration_stats)

    def log_engine_initialized(self) -> None:
        """Record the capacity of the KV cache, which vLLM has measured by now. Never raises."""
        if self._statistics is not None:
            with guard:
                cache = getattr(self._config, "cache_config", None)
                blocks, size = _number(cache, "num_gpu_blocks"), _number(cache, "block_size")
                if blocks and size:
                    self._statistics.limit(blocks * size)


class _Idle:
    """Time in which no engine of the process has a request, recorded once one has one again."""

    def __init__(self) -> None:
        self._has_work: dict[int, bool] = {}
        self._add: Callable[[float], None] = _nothing
        self._since_s: float | None = None

    def report(self, meter: Meter) -> None:
        """Report idle time to a worker from now on."""
        self._add = meter.create_counter(*described(names.RL_WORKER_IDLE_TIME)).add

    def told(self, engine: int, is_idle: bool | None) -> None:
        """Note whether an engine has requests; None if its statistics do not say."""
        if is_idle is None:
            return
        self._has_work[engine] = not is_idle
        now_s = monotonic()
        if self._since_s is not None:
            self._add(now_s - self._since_s)
        self._since_s = None if any(self._has_work.values()) else now_s


def _nothing(_seconds: float) -> None:
    """Stand in for a counter while there is no worker."""


_idle: Final = _Idle()


class _Statistics:
    """Instruments for vLLM's statistics, an unstable interface: each field is read if present."""

    def __init__(self, meter: Meter) -> None:
        self._utilization = meter.create_gauge(*described(names.RL_GENERATOR_KV_CACHE_UTILIZATION))
        self._running = _level(
            meter.create_up_down_counter(*described(names.RL_GENERATOR_REQUESTS_RUNNING)).add
        )
        self._waiting = _level(
            meter.create_up_down_counter(*described(names.RL_GENERATOR_QUEUE_DEPTH)).add
        )
        self.limit = _level(
            meter.create_up_down_counter(*described(names.RL_GENERATOR_KV_CACHE_LIMIT)).add
        )
        self.is_idle: bool | None = None  # whether the engine has no request
        self._queries = meter.create_counter(*described(names.RL_GENERATOR_KV_CACHE_QUERIES))
        self._hits = meter.create_counter(*described(names.RL_GENERATOR_KV_CACHE_HITS))
        self._requests = meter.create_counter(*described(names.RL_GENERATOR_REQUESTS))
        self._first_token = meter.create_histogram(
            *described(names.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN)
        )
        self._counted = {
            own: meter.create_counter(*described(name)) for own, name in _COUNTED.items()
        }
        self._measured = {
            own: meter.create_histogram(*described(name)) for own, name in _MEASURED.items()
        }

    def scheduled(self, stats: object) -> None:
        usage = _number(stats, "kv_cache_usage")
        if usage is not None:
            self._utilization.set(usage)
        running = _number(stats, "num_running_reqs")
        self._running(running)
        waiting = _number(stats, "num_waiting_reqs")
        if waiting is not None:  # since vLLM 0.33 skipped ones are counted separately
            self._waiting(waiting + (_number(stats, "num_skipped_waiting_reqs") or 0))
        self.is_idle = None if running is None or waiting is None else not running + waiting
        cache = getattr(stats, "prefix_cache_stats", None)
        queries = _number(cache, "queries")
        if queries:
            self._queries.add(queries)
            self._hits.add(_number(cache, "hits") or 0)

    def iterated(self, stats: object) -> None:
        for name, counter in self._counted.items():
            grown = _number(stats, name)
            if grown:
                counter.add(grown)
        for seconds in _items(stats, "time_to_first_tokens_iter"):
            if isinstance(seconds, int | float):
                self._first_token.record(seconds)
        for request in _items(stats, "finished_requests"):
            reason = str(getattr(request, "finish_reason", "stop"))
            self._requests.add(1, {names.RL_OUTCOME: _OUTCOMES.get(reason, "success")})
            timing = getattr(request, "timing", None)
            for name, histogram in self._measured.items():
                measured = _number(request, name)
                if measured is None:
                    measured = _number(timing, name)
                if measured is not None:
                    histogram.record(measured)


def _level(add: Callable[[float], None]) -> Callable[[float | None], None]:
    """Return the setter of one engine's part of a level that is summed over engines."""
    now = 0.0

    def set_level(value: float | None) -> None:
        nonlocal now
        if value is not None and value != now:
            add(value - now)
            now = value

    return set_level


def _number(stats: object, name: str) -> float | None:
    value = getattr(stats, name, None)
    return value if isinstance(value, int | float) else None


def _items(stats: object, name: str) -> Iterable[object]:
    found = getattr(stats, name, None)
    return found if isinstance(found, list | tuple) else ()
