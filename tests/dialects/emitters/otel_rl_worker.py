"""A worker of otel_rl: steps with a counter, two histograms, an up-down counter and gauges."""

import os
import time

os.environ |= {
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_RL_GPU": "off",
    "OTEL_RL_HOST": "off",
    "OTEL_RL_GC": "0",
    "OTEL_RESOURCE_ATTRIBUTES": "host.name=worker-0",
}

from opentelemetry import metrics

import otel_rl

STEPS, STEP_S, TOKENS, AGES, MANY = 6, 0.5, 12_000, 5, 5_000


def train() -> None:
    """Count in steps, and between them. A counter stands still in one of them."""
    meter = metrics.get_meter("my.trainer", "1.0")
    tokens = meter.create_counter("tokens", "{token}")
    ages = meter.create_histogram("age", "s")
    lengths = meter.create_histogram("length")
    depth = meter.create_up_down_counter("depth")
    for number in range(STEPS):
        with otel_rl.step(number):
            depth.add(1)
            for age in range(AGES):
                ages.record(age)
                time.sleep(STEP_S / AGES)
            for length in range(1, MANY + 1 if number == STEPS - 1 else 3):
                lengths.record(length)
            if number != STEPS // 2:
                tokens.add(TOKENS, {"kind": "prompt"})
            otel_rl.log({"loss": 1 / (number + 1)})
        tokens.add(1, {"kind": "prompt"})


if __name__ == "__main__":
    otel_rl.init(
        experiment="recorded", trial="a", role="trainer", index=0, count=1, export_interval_s=0.2
    )
    train()
    otel_rl.finish()
