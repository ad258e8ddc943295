"""An engine of SGLang that serves requests: its spans over OTLP, its metrics for a scrape.

It needs the wheel of SGLang in ``PYTHONPATH``, of which only the modules that emit are used: those
below ``sglang.srt.observability`` with ``environ.py``, ``utils/gauge_histogram.py`` and
``utils/poll_timer.py``. What else they import stands in, as in ``tests/frameworks/stand_ins.py``.
"""

import os
import pickle
import sys
import time
from enum import Enum
from types import SimpleNamespace

REQUESTS = 6
PREFILL_S, DECODE_S = 0.02, 0.1
LABELS = {"model_name": "tiny", "engine_type": "unified"}
RANKS = {"tp_rank": 0, "pp_rank": 0, "moe_ep_rank": 0}


class Modes(Enum):
    """Of disaggregation."""

    NULL = 0
    PREFILL = 1
    DECODE = 2


def prepare() -> None:
    """Let the modules be imported without a model, and without a GPU."""
    from stand_ins import stand_in

    stand_in("sglang")
    import sglang.srt.disaggregation.utils as disaggregation
    import sglang.srt.model_executor.forward_batch_info as forward
    import sglang.srt.runtime_context as runtime
    import sglang.srt.utils as utils

    disaggregation.DisaggregationMode = Modes
    forward.ForwardMode = Modes
    resources = SimpleNamespace(trace_level=3)
    runtime.get_resources = lambda: resources
    schedule = SimpleNamespace(
        prefill_delayer_max_delay_passes=30,
        prefill_delayer_forward_passes_buckets=None,
        prefill_delayer_wait_seconds_buckets=None,
        enable_priority_scheduling=False,
    )
    buckets = SimpleNamespace(
        prompt_tokens_buckets=None, generation_tokens_buckets=None, stat_loggers=None
    )
    runtime.get_schedule, runtime.get_observability = lambda: schedule, lambda: buckets
    utils.get_bool_env_var = lambda *_: False
    utils.get_int_env_var = lambda _, default=0: default


def main(port: int) -> None:
    """Serve some requests, then answer a scrape or two."""
    prepare()
    from prometheus_client import start_http_server
    from sglang.srt.observability import req_time_stats, trace

    start_http_server(port, "127.0.0.1")
    endpoint = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
    os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
    trace.process_tracing_init(endpoint, None)
    trace.trace_set_thread_info("Tokenizer")
    metrics = collectors()
    for number in range(REQUESTS):
        serve(number, metrics, req_time_stats)
    from opentelemetry import trace as api

    api.get_tracer_provider().shutdown()  # type: ignore[attr-defined]  # the SDK's
    sys.stdout.write("served\n")
    sys.stdout.flush()
    sys.stdin.readline()


def collectors() -> SimpleNamespace:
    """Make the collectors of scheduler and tokenizer."""
    from sglang.srt.observability import metrics_collector as found

    options = SimpleNamespace(
        prompt_tokens_buckets=None,
        generation_tokens_buckets=None,
        disaggregation_mode="null",
        enable_priority_scheduling=False,
    )
    return SimpleNamespace(
        module=found,
        scheduler=found.SchedulerMetricsCollector(LABELS | RANKS, options),
        tokenizer=found.TokenizerMetricsCollector(options, LABELS),
    )


def serve(number: int, metrics: SimpleNamespace, stats: SimpleNamespace) -> None:
    """One request, through tokenizer and scheduler."""
    of_server = stats.APIServerReqTimeStats()
    of_server.init_trace_ctx(f"request{number}", None)
    of_server.set_created_time()
    of_server.set_tokenize_finish_time()
    of_server.set_api_server_dispatch_time()
    sent = pickle.loads(pickle.dumps(of_server))  # to the scheduler's process
    of_scheduler = stats.SchedulerReqTimeStats.new_from_obj(sent)
    of_server.set_api_server_dispatch_finish_time()
    of_scheduler.set_metrics_collector(metrics.scheduler)
    of_scheduler.set_scheduler_recv_time()
    of_scheduler.set_wait_queue_entry_time()
    time.sleep(0.01)
    of_scheduler.set_forward_entry_time()
    time.sleep(PREFILL_S)
    of_scheduler.last_decode_scheduled_time = time.perf_counter()
    of_scheduler.set_prefill_finished_time()
    of_server.set_first_token_time()
    time.sleep(DECODE_S)
    of_scheduler.set_last_decode_finish_time()
    of_scheduler.set_completion_time()
    of_server.set_finished_time()
    tell(metrics, number)


def tell(metrics: SimpleNamespace, number: int) -> None:
    """Log the state of the engine after a request."""
    count = metrics.module.QueueCount
    metrics.scheduler.log_stats(
        metrics.module.SchedulerStats(
            num_running_reqs=count(4),
            num_queue_reqs=count(REQUESTS - number),
            token_usage=0.5,
            num_used_tokens=512,
            gen_throughput=640.0,
            cache_hit_rate=0.25,
        )
    )
    metrics.tokenizer.observe_one_finished_request(LABELS, 32, 64, 8, PREFILL_S + DECODE_S, False)
    metrics.tokenizer.observe_time_to_first_token(LABELS, PREFILL_S, stream=True)
    metrics.tokenizer.observe_inter_token_latency(LABELS, DECODE_S, 64)


if __name__ == "__main__":
    main(int(sys.argv[1]))
