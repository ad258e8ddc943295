"""Inference engines and clients of models, recorded, have the registry's keys and phases.

vLLM 0.33.0 and SGLang 0.5.23: the modules of their wheels that emit, scraped by the Collector
0.159.0. Text Generation Inference 3.3.7: its names, kinds and labels, scraped by 0.160.0. OpenAI's
client 3.57.0 under openinference-instrumentation-openai 0.1.66, OpenLLMetry's
opentelemetry-instrumentation-openai 0.62.4, and opentelemetry-instrumentation-openai-v2 2.4b0 with
opentelemetry-util-genai 0.4b0, and its successor, opentelemetry-instrumentation-genai-openai
1.3b0. All of 2026-11-25 and 26, by the programs in ``emitters``.
"""

import pytest

from otel_rl.semconv.names import METRICS
from tests.dialects.decoded import decoded, keys, spans, totals
from tests.dialects.emitters.tgi_router import ADDED, SCRAPES

ENGINES, ITERATIONS, TOKENS = 2, 5, 64  # as in emitters/vllm_engine.py
REQUESTS = 6  # as in emitters/sglang_engine.py
TGI_REQUESTS = ADDED * SCRAPES

SERVED = (
    "kv_cache/utilization", "kv_cache/queries", "kv_cache/hits", "kv_cache/miss/ratio",
    "requests/running", "queue/depth", "queue/duration", "prompt/tokens", "response/tokens",
    "tokens", "gen_ai/server/time_to_first_token", "gen_ai/server/time_per_output_token",
    "gen_ai/server/request/duration",
)  # fmt: skip


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_scraped_engine_has_the_keys_of_a_generator(engine: str) -> None:
    assert {f"generator/{name}" for name in SERVED} <= set(keys(engine))


def test_engines_of_one_server_are_one_key() -> None:
    found = keys("vllm")
    assert found["generator/tokens"] == ENGINES * ITERATIONS * TOKENS
    assert found["generator/queue/depth"] == ENGINES * (ITERATIONS - 1)
    assert found["generator/kv_cache/utilization"] == 0.5
    assert found["generator/requests/stop"] == ENGINES * ITERATIONS


def test_every_engine_keeps_a_series_of_its_own() -> None:
    series = {
        point.series
        for one in decoded("vllm")
        for point in one.points
        if point.series.name == "rl.generator.tokens"
    }
    assert len(series) == ENGINES


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_no_rank_or_model_is_in_a_key(engine: str) -> None:
    assert not [key for key in keys(engine) if "tiny" in key or "/0/0" in key]


def test_the_cache_of_sglang_hits_what_its_requests_found() -> None:
    found = keys("sglang")
    assert found["generator/requests"] == REQUESTS
    assert found["generator/kv_cache/miss/ratio"] == pytest.approx(1 - 8 / 32)


def test_buckets_of_a_gauge_of_sglang_are_one_key() -> None:
    found = [key for key in keys("sglang") if "/routing_key_" in key]
    assert sorted(found) == [
        "generator/sglang/routing_key_all_req_count",
        "generator/sglang/routing_key_running_req_count",
    ]


def test_metrics_of_text_generation_inference_are_those_of_a_generator() -> None:
    last, total = keys("tgi"), totals("tgi")
    of_requests = {
        "gen_ai/server/request/duration": 2.0,
        "gen_ai/server/time_per_output_token": 0.03,
        "prompt/tokens": 7,
        "queue/duration": 0.25,
        "response/tokens": 64,
        "sampling/max_tokens": 96,
    }
    assert {name: last[f"generator/{name}"] for name in of_requests} == of_requests
    assert {total[f"generator/{name}/count"] for name in of_requests} == {TGI_REQUESTS}
    assert last["generator/requests"] == TGI_REQUESTS
    assert last["generator/requests/running"] == 4
    assert last["generator/queue/depth"] == 3


def test_a_request_of_an_engine_is_generation() -> None:
    assert {span.phase for span in spans("vllm")} == {"generate"}
    phases = [span.phase for span in spans("sglang") if span.phase]
    assert phases == ["generate"] * REQUESTS  # not the stages within, too


@pytest.mark.parametrize("client", ["openinference", "openllmetry", "gen_ai", "genai"])
def test_a_call_of_a_model_is_generation(client: str) -> None:
    found = spans(client)
    assert [span.phase for span in found] == ["generate"] * 4


@pytest.mark.parametrize("client", ["openllmetry", "gen_ai", "genai"])
def test_a_client_has_keys_by_operation_and_model_not_by_peer(client: str) -> None:
    found = keys(client)
    assert found["environment/gen_ai/client/token/usage/chat/tiny/input"] == 7
    assert found["environment/gen_ai/client/operation/duration/chat/tiny/count"] == 4
    assert not [key for key in found if "127.0.0.1" in key or "openai" in key]


def test_names_of_rules_are_of_the_registry() -> None:
    names = {p.series.name for one in decoded("sglang") for p in one.points}
    assert len(names & set(METRICS)) >= 13
