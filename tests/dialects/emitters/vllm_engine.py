"""Engines of vLLM: their metrics for a scrape, and the span of each request over OTLP.

It needs the wheel of vLLM in ``PYTHONPATH`` without its compiled modules, and what its modules
import. The classes that emit are the real ones; statistics and requests are made here.
"""

import os
import sys
import time

ENGINES, ITERATIONS = 2, 5


def main(port: int) -> None:
    """Make statistics, then answer a scrape or two."""
    from prometheus_client import start_http_server
    from vllm.tracing import SpanAttributes, init_tracer, instrument_manual
    from vllm.v1.engine import FinishReason
    from vllm.v1.metrics.loggers import (  # type: ignore[import-not-found]  # no dependency
        PrometheusStatLogger,
    )
    from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

    start_http_server(port, "127.0.0.1")
    os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
    endpoint = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
    init_tracer("vllm.llm_engine", endpoint)
    logger = PrometheusStatLogger(configuration(), list(range(ENGINES)))
    for iteration in range(ITERATIONS):
        for engine in range(ENGINES):
            begun_ns = time.time_ns()
            time.sleep(0.02)
            scheduled = SchedulerStats(
                num_running_reqs=4, num_waiting_reqs=iteration, kv_cache_usage=0.5
            )
            scheduled.prefix_cache_stats.record(10, 4, preempted=False)
            iterated = IterationStats()
            iterated.num_generation_tokens = 64
            iterated.time_to_first_tokens_iter = [0.02]
            iterated.inter_token_latencies_iter = [0.004] * 4
            iterated.finished_requests = [
                FinishedRequestStats(
                    FinishReason.STOP, e2e_latency=2.0, num_prompt_tokens=7,
                    num_generation_tokens=64, max_tokens_param=64, queued_time=0.25,
                    prefill_time=0.1, inference_time=1.75, decode_time=1.65,
                    mean_time_per_output_token=0.004,
                )
            ]  # fmt: skip
            logger.record(scheduled, iterated, engine_idx=engine)
            instrument_manual(
                "llm_request", begun_ns, time.time_ns(),
                {SpanAttributes.GEN_AI_USAGE_COMPLETION_TOKENS: 64},
            )  # fmt: skip
    from opentelemetry import trace

    trace.get_tracer_provider().shutdown()  # type: ignore[attr-defined]  # the SDK's
    sys.stdout.write("measured\n")
    sys.stdout.flush()
    sys.stdin.readline()


class Off:
    """Part of an engine's configuration of which nothing is on."""

    def __init__(self, **given: object) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> object:
        return Off() if name.endswith("_config") else None

    def __bool__(self) -> bool:
        return False

    def metrics_info(self) -> dict[str, str]:
        """As ``CacheConfig`` tells it."""
        return {"block_size": "16"}


def configuration() -> Off:
    """What the logger reads of an engine's configuration."""
    model = Off(served_model_name="tiny", max_model_len=128, is_diffusion=False)
    return Off(model_config=model, speculative_config=None, lora_config=None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
