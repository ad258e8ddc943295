"""The key rule, as a table."""

import pytest

from otel_rl.bridge.keys import (
    MAX_KEY_BYTES,
    MAX_TABLE_KEY_BYTES,
    read_key,
    tracker_key,
    variant_key,
    worker_key,
)

TABLE = [
    # role, name, attributes, key
    ("trainer", "loss", {}, "trainer/loss"),
    ("trainer", "rl.train.loss", {}, "trainer/loss"),
    ("trainer", "rl.train.loss", {"rl.loss.type": "policy"}, "trainer/loss/policy"),
    ("trainer", "rl.policy.kl.reference", {}, "trainer/policy/kl/reference"),
    ("trainer", "time/step", {}, "trainer/time/step"),
    ("trainer", "trainer/loss", {}, "trainer/loss"),
    ("trainer", "train", {}, "trainer/train"),
    ("generator", "rl.generator.queue.depth", {}, "generator/queue/depth"),
    ("generator", "rl.generator.kv_cache.utilization", {}, "generator/kv_cache/utilization"),
    ("orchestrator", "rl.generator.queue.depth", {}, "orchestrator/generator/queue/depth"),
    ("replay_buffer", "rl.replay_buffer.size", {}, "replay_buffer/size"),
    (
        "trainer",
        "rl.phase.duration",
        {"rl.phase": "collector_wait"},
        "phase/trainer/collector_wait",
    ),
    (
        "trainer",
        "rl.phase.duration",
        {"rl.phase": "train", "rl.phase_class": "compute"},
        "phase/trainer/train",
    ),
    ("trainer", "hw.gpu.utilization", {}, "gpu/trainer/utilization"),
    ("orchestrator", "rl.replica.failures", {"rl.replica": "1"}, "service/orchestrator/failures/1"),
    (
        "trainer",
        "otel_rl.worker.measurements.dropped",
        {"reason": "buffer_full"},
        "otel_rl/trainer/measurements/dropped/buffer_full",
    ),
    ("trainer", "x", {"b": "2", "a": "1"}, "trainer/x/1/2"),
    ("trainer", "x", {"rl.loop.iteration": "7"}, "trainer/x"),
    ("trainer", "Train Loss", {}, "trainer/Train Loss"),
    ("trainer", "reward (mean)", {}, "trainer/reward (mean)"),
    ("trainer", "损失", {}, "trainer/损失"),
    ("trainer", "हिन्दी", {}, "trainer/हिन्दी"),
    ("训练", "über loss?", {}, "训练/über loss?"),
    ("trainer", "50%", {"of": "lr=1e-3, [a+b]"}, "trainer/50%/lr=1e-3, [a+b]"),
    ("trainer", "pass@1", {}, "trainer/pass@1"),
    ("trainer", " loss \n", {}, "trainer/_x20_loss _xa_"),
    ("trainer", "loss ", {}, "trainer/loss_x20_"),
    ("trainer", "a_x5 ", {}, "trainer/a_x5f_x5_x20_"),
    ("trainer", "loss*", {"path": "C:\\data"}, "trainer/loss_x2a_/C/_x5c_data"),
    ("trainer", "right\u202eleft", {}, "trainer/right_x202e_left"),
    ("trainer", "pass_x40_1", {}, "trainer/pass_x5f_x40_1"),
    ("trainer", "pass_x40@1", {}, "trainer/pass_x40@1"),
    ("trainer", "pass_x40*", {}, "trainer/pass_x5f_x40_x2a_"),
    ("generator", "sglang:gen_throughput", {}, "generator/sglang/gen_throughput"),
    ("trainer", "x", {"device": "cuda:0"}, "trainer/x/cuda/0"),
    ("trainer", "top-5", {"model": "llama-3.1"}, "trainer/top-5/llama-3.1"),
    ("trainer", "a_x5_b", {}, "trainer/a_x5f_x5_b"),
    ("a b", "../../etc/passwd", {}, "a b/etc/passwd"),
    ("trainer", "...", {"dots": ".."}, "trainer/_x2e__x2e__x2e_/_x2e__x2e_"),
    ("_private", "loss", {}, "x__private/loss"),
    ("0", "loss", {}, "x_0/loss"),
    ("trainer", "x", {"half": "\ud83d"}, "trainer/x/_xd83d_"),
    ("trainer", "x", {"path": "/a//b/"}, "trainer/x/a/b"),
]


@pytest.mark.parametrize(("role", "name", "attributes", "key"), TABLE)
def test_the_key_of(role: str, name: str, attributes: dict[str, str], key: str) -> None:
    assert tracker_key(role, name, attributes.items()) == key


@pytest.mark.parametrize(
    ("role", "label", "key", "expected"),
    [
        ("trainer", "1", "trainer/loss", "workers/trainer/1/loss"),
        ("trainer", "0", "phase/trainer/train", "workers/trainer/0/phase/train"),
        ("generator", "2", "generator/queue/depth", "workers/generator/2/queue/depth"),
    ],
)
def test_one_workers_own_key_of(role: str, label: str, key: str, expected: str) -> None:
    assert worker_key(role, label, key) == expected


def test_a_key_that_is_too_long_is_cut_and_still_its_own() -> None:
    one, other = (
        tracker_key("trainer", "x" * 255, {"a": "y" * 4096 + end}.items()) for end in "12"
    )
    assert max(len(one), len(other)) <= MAX_KEY_BYTES
    assert one != other
    assert read_key(one)[:2] == ("trainer", "x" * 255)
    assert len(tracker_key("trainer", "损" * 400).encode()) <= MAX_KEY_BYTES


def test_the_key_of_a_table_fits_into_the_name_of_an_artifact() -> None:
    one, other = (
        tracker_key("../" * 40, "表" * 120 + end, [("rl.sample.table", "表" * 120 + end)])
        for end in "12"
    )
    assert max(len(one.encode()), len(other.encode())) <= MAX_TABLE_KEY_BYTES
    assert one != other
    assert tracker_key("trainer", "eval", [("rl.sample.table", "eval")]) == "trainer/eval"


def test_a_variant_is_read_as_what_it_is_a_variant_of() -> None:
    variant = variant_key("trainer/a/b", "the metric a.b")
    assert variant != "trainer/a/b"
    assert read_key(variant) == read_key("trainer/a/b")


def test_a_metric_that_is_called_like_a_variant_is_none() -> None:
    key = tracker_key("trainer", "a/_xh12ab_")
    assert read_key(key) == ("trainer", "a", "_xh12ab_")
