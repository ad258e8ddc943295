"""Metrics of a generator and of its process: plain OpenTelemetry, under the conventions' names.

The names are literals: a generator uses OpenTelemetry's API and not otel_rl.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psutil
from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from otel_rl.demo.decoding import KvCache
from otel_rl.demo.messages import Request


def observe_process() -> None:
    """Report CPU and threads of this process from now on."""
    meter = metrics.get_meter("otel_rl.demo.generator_metrics")
    process, cores = psutil.Process(), psutil.cpu_count() or 1
    process.cpu_percent()  # the first share is that since now

    def cpu_time(_: CallbackOptions) -> Iterable[Observation]:
        used = process.cpu_times()
        yield Observation(used.user, {"cpu.mode": "user"})
        yield Observation(used.system, {"cpu.mode": "system"})

    def cpu_utilization(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(process.cpu_percent() / 100 / cores)

    def threads(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(process.num_threads())

    meter.create_observable_counter("process.cpu.time", [cpu_time], "s")
    meter.create_observable_gauge("process.cpu.utilization", [cpu_utilization], "1")
    meter.create_observable_up_down_counter("process.thread.count", [threads], "{thread}")


class GeneratorMetrics:
    """Instruments of one generator process, and helpers for values recorded together."""

    def __init__(self) -> None:
        meter = metrics.get_meter("otel_rl.demo.processes.generator")
        counter, gauge = meter.create_counter, meter.create_gauge
        level, histogram = meter.create_up_down_counter, meter.create_histogram

        self.tokens = counter("rl.generator.tokens", "{token}")
        self.requests = counter("rl.generator.requests", "{request}")
        self.samples = counter("rl.sample.samples", "{sample}")
        self.preemptions = counter("rl.generator.preemptions", "{request}")
        self.running = level("rl.generator.requests.running", "{request}")
        self.queue_depth = level("rl.generator.queue.depth", "{request}")
        self.queue_duration = histogram("rl.generator.queue.duration", "s")
        self.prompt_tokens = histogram("rl.generator.prompt.tokens", "{token}")
        self.response_tokens = histogram("rl.generator.response.tokens", "{token}")
        self.tokenize_duration = histogram("rl.generator.tokenize.duration", "s")
        self.first_token = histogram("gen_ai.server.time_to_first_token", "s")
        self.per_token = histogram("gen_ai.server.time_per_output_token", "s")
        self.request_duration = histogram("gen_ai.server.request.duration", "s")
        self.sample_duration = histogram("rl.sample.duration", "s")
        self.policy_version = gauge("rl.policy.version", "{version}")
        self.policy_updates = counter("rl.policy.updates", "{update}")
        self.weights_checked = counter("rl.policy.weights.checked", "{check}")

        self._temperature = histogram("rl.generator.sampling.temperature", "1")
        self._top_p = histogram("rl.generator.sampling.top_p", "1")
        self._max_tokens = histogram("rl.generator.sampling.max_tokens", "{token}")
        self._cache_limit = level("rl.generator.kv_cache.limit", "{token}")
        self._cache_usage = level("rl.generator.kv_cache.usage", "{token}")
        self._cache_utilization = gauge("rl.generator.kv_cache.utilization", "1")
        self._cache_queries = counter("rl.generator.kv_cache.queries", "{token}")
        self._cache_hits = counter("rl.generator.kv_cache.hits", "{token}")
        self._phase = gauge("rl.phase.duration", "s")
        self._iteration = gauge("rl.iteration.duration", "s")
        self._idle = counter("rl.worker.idle.time", "s")
        self._seen = (0, 0, 0, 0)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def sampling(self, request: Request) -> None:
        self._temperature.record(request.temperature)
        self._top_p.record(request.top_p)
        self._max_tokens.record(request.max_tokens)

    def cache(self, cache: KvCache) -> None:
        """Record the state of the KV cache: the change since the last call, and the level."""
        seen = (cache.limit_tokens, cache.used_tokens, cache.queried_tokens, cache.hit_tokens)
        limit, usage, queries, hits = (
            now - before for now, before in zip(seen, self._seen, strict=True)
        )
        self._cache_limit.add(limit)
        self._cache_usage.add(usage)
        self._cache_queries.add(queries)
        self._cache_hits.add(hits)
        self._seen = seen
        self._cache_utilization.set(cache.used_tokens / cache.limit_tokens)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the ``with`` block to a phase of the round."""
        begun_s = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - begun_s

    def phases(self) -> None:
        """Record the time of each phase since the last call."""
        for name, seconds in self._seconds.items():
            self._phase.set(seconds, {"rl.phase": name})
        self._seconds.clear()

    def round(self, *, duration_s: float, idle_s: float) -> None:
        """Record one round, from waiting for requests to the delivery of their samples."""
        self.phases()
        self._iteration.set(duration_s)
        self._idle.add(idle_s)
