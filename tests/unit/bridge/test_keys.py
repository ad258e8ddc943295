"""The key rule, as a table."""

import pytest

from otel_rl.bridge.keys import tracker_key, worker_key

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
    ("trainer", "über loss?", {}, "trainer/_ber_loss_"),
    ("a b", "../../etc/passwd", {}, "a_b/etc/passwd"),
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
