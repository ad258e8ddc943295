"""vLLM's real engine on CPUs, with a tiny model of random weights, under ``otel-rl run``."""

import json
from pathlib import Path

import pytest

from tests.frameworks.conftest import Runner, demand
from tests.lab.frameworks.environment import VLLM
from tests.process.commands import Row, jsonl_rows, otel_rl_here
from tests.support.ports import free_ports

REQUESTS, PROMPT, TOKENS = 10, 64, 16

MODEL = """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    ).save_pretrained("tiny")
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
        bos_token_id=len(words) - 2, eos_token_id=len(words) - 1,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained("tiny")
"""

SERVER = f"""
    import json, os, signal, subprocess, sys, time, urllib.request

    def ask(path, **body):
        headers = {{"content-type": "application/json"}}
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(f"http://{{at}}{{path}}", data, headers)
        return urllib.request.urlopen(request, timeout=60).read()

    at = "127.0.0.1:" + os.environ["PORT"]
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "tiny",
        "--host", "127.0.0.1", "--port", os.environ["PORT"], "--max-model-len", "256",
        "--enforce-eager",
        "--otlp-traces-endpoint", os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces",
    ]
    server = subprocess.Popen(command)
    while True:
        try:
            ask("/health")
            break
        except OSError:
            assert server.poll() is None
            time.sleep(0.5)
    for _ in range({REQUESTS}):
        ask("/v1/completions", model="tiny", prompt="a" * {PROMPT}, max_tokens={TOKENS},
            ignore_eos=True)
    server.send_signal(signal.SIGINT)
    server.wait()
"""

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@pytest.fixture
def vllm(metadata_of_this_checkout: Path, tmp_path: Path) -> Runner:
    demand(VLLM, "vLLM")
    runner = Runner(VLLM.python, tmp_path, metadata_of_this_checkout)
    made = runner.start(VLLM.python, runner.script(MODEL, "model.py"))
    assert made.status == 0, made.err
    return runner


def last(rows: list[Row], key: str) -> float:
    return [row.values[key] for row in rows if key in row.values][-1]


@pytest.mark.tried(
    "vLLM", "vLLM", "vllm-cpu", lock="vllm", seen="all statistics, source; an engine, its spans"
)
def test_a_served_engine_has_all_its_requests_in_the_run(vllm: Runner) -> None:
    (port,) = free_ports(1)
    environment = ENVIRONMENT | {"PORT": str(port)}
    done = vllm.run(SERVER, "--role", "generator", "--detail", "everything", env=environment)
    assert done.status == 0, done.err
    rows = list(jsonl_rows(vllm.directory, "real"))
    exact = {
        "tokens": REQUESTS * TOKENS,
        "kv_cache/queries": REQUESTS * PROMPT,
        "requests/success": REQUESTS,
        "prompt/tokens": PROMPT,
        "response/tokens": TOKENS,
        "sampling/max_tokens": TOKENS,
    }
    assert {name: last(rows, f"generator/{name}") for name in exact} == exact
    assert last(rows, "generator/kv_cache/limit") > 0
    assert any(row.values.get("generator/worker/idle/time/rate", 0) > 0 for row in rows)
    counted = ("gen_ai/server/request/duration", "queue/duration")
    for name in counted:
        counts = [row.values.get(f"generator/{name}/count", 0) for row in rows]
        assert sum(counts) == REQUESTS, name
    names = [span["name"] for span in exported(vllm.directory)]
    assert names.count("llm_request") == REQUESTS
    assert "API server setup" in names  # the engine's own may be lost: its server kills it


def exported(directory: Path) -> list[dict[str, str]]:
    """Spans of the run, as its trace for Perfetto has them."""
    done = otel_rl_here("export", "-o", "trace.json", cwd=directory)
    assert done.status == 0, done.err
    events = json.loads((directory / "trace.json").read_text())["traceEvents"]
    return [event for event in events if event["ph"] in {"X", "b"}]
