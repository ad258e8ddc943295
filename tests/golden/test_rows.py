"""Whole outputs: OTLP requests in, every row of the run out, compared with a file.

Rewrite the files after a wanted change with ``UPDATE_GOLDEN=1 python -m pytest tests/golden`` and
read the difference before it is committed.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.otlp_json import parse_json
from otel_rl.bridge.receive.validate import validate
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.signals import Signal
from tests.support.doors import decode

HERE = Path(__file__).parent
S = 1_000_000_000
T0 = 1_760_000_000 * S
"""When the runs of this file take place."""

Json = dict[str, object]


def attributes(pairs: dict[str, str | int]) -> list[Json]:
    return [
        {"key": key, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}}
        for key, v in pairs.items()
    ]


def worker(role: str, index: int, count: int, *metrics: Json, instance: str = "") -> Json:
    """One worker's part of a request."""
    resource = {
        "rl.experiment.name": "golden",
        "rl.worker.role": role,
        "rl.worker.index": index,
        "rl.worker.count": count,
        "service.instance.id": instance or f"{role}-{index}",
        "telemetry.distro.name": "otel_rl",
    }
    return {
        "resource": {"attributes": attributes(resource)},  # type: ignore[arg-type]  # text and int
        "scopeMetrics": [{"scope": {"name": "test"}, "metrics": [*metrics, heartbeat(metrics)]}],
    }


def heartbeat(metrics: tuple[Json, ...]) -> Json:
    """Says that everything up to the latest of the points has been sent."""
    latest = max(re.findall(r'"timeUnixNano": "(\d+)"', json.dumps(metrics)), key=int)
    point = {"timeUnixNano": latest, "flags": 1}
    return {"name": "otel_rl.worker.heartbeat", "gauge": {"dataPoints": [point]}}


def exact(
    name: str,
    measured: list[tuple[float, int, float | str]],
    *,
    exported_s: float | None = None,
    **of: str,
) -> Json:
    """A gauge with every measurement: (seconds, step, value)."""
    exemplars = [
        {
            "timeUnixNano": str(T0 + int(at_s * S)),
            "asDouble": value,
            "filteredAttributes": attributes({"rl.loop.iteration": step}),
        }
        for at_s, step, value in measured
    ]
    # What is late was measured before and is covered by a later point of its own.
    covered_ns = T0 + int((measured[-1][0] if exported_s is None else exported_s) * S)
    point = {
        "startTimeUnixNano": str(covered_ns - S // 2),
        "timeUnixNano": str(covered_ns),
        "asDouble": exemplars[-1]["asDouble"],
        "exemplars": exemplars,
        "attributes": attributes({k.replace("__", "."): v for k, v in of.items()}),
    }
    return {"name": name, "gauge": {"dataPoints": [point]}}


def observed(name: str, at_s: float, value: float) -> Json:
    point = {"timeUnixNano": str(T0 + int(at_s * S)), "asDouble": value}
    return {"name": name, "gauge": {"dataPoints": [point]}}


def counted(name: str, start_s: float, at_s: float, value: int, **of: str) -> Json:
    point = {
        "startTimeUnixNano": str(T0 + int(start_s * S)),
        "timeUnixNano": str(T0 + int(at_s * S)),
        "asInt": str(value),
        "attributes": attributes({k.replace("__", "."): v for k, v in of.items()}),
    }
    data = {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": [point]}
    return {"name": name, "sum": data}


def distributed(name: str, at_s: float, **point: object) -> Json:
    """A delta exponential histogram."""
    full = {"startTimeUnixNano": str(T0), "timeUnixNano": str(T0 + int(at_s * S)), **point}
    data = {"aggregationTemporality": 1, "dataPoints": [full]}
    return {"name": name, "exponentialHistogram": data}


def asynchronous_run() -> Iterator[tuple[float, list[Json]]]:
    """Two trainer ranks, a generator that is restarted, NaN at a step, a rank that is late."""
    for rank in (0, 1):
        yield (
            2.0 + rank / 10,
            [
                worker(
                    "trainer",
                    rank,
                    2,
                    exact("rl.train.loss", [(0.5, 1, 1.0 + rank), (1.5, 2, 3.0 - rank)]),
                    exact("rl.train.grad.abs_max", [(0.5, 1, 0.1 + rank), (1.5, 2, 0.2)]),
                    exact("rl.policy.version", [(0.5, 1, 1), (1.5, 2, 2)]),
                    exact(
                        "rl.phase.duration",
                        [(0.5, 1, 0.25), (1.5, 2, 0.5)],
                        rl__phase="train",
                        rl__phase_class="compute",
                    ),
                    exact("rl.phase.duration", [(0.5, 1, 0.125)], rl__phase="weight_sync"),
                    exact("my own/metric", [(0.5, 1, 7.0)]),
                )
            ],
        )
    yield (
        2.2,
        [
            worker(
                "generator",
                0,
                1,
                counted("rl.generator.tokens", 0, 2, 1000),
                counted("rl.generator.kv_cache.queries", 0, 2, 100),
                counted("rl.generator.kv_cache.hits", 0, 2, 75),
                observed("rl.generator.kv_cache.utilization", 1, 0.5),
                observed("rl.generator.queue.depth", 2, 4),
                distributed(
                    "rl.generator.response.tokens",
                    2,
                    count="4",
                    sum=40.0,
                    min=6.0,
                    max=14.0,
                    scale=0,
                    positive={"offset": 2, "bucketCounts": ["1", "3"]},
                ),
            )
        ],
    )
    yield (
        3.5,
        [
            worker("trainer", 0, 2, exact("rl.train.loss", [(2.5, 3, "NaN"), (3.4, 4, 1.0)])),
            worker("trainer", 1, 2, exact("rl.train.loss", [(2.5, 3, 1.0), (3.4, 4, 1.0)])),
        ],
    )
    yield (
        4.5,
        [worker("trainer", rank, 2, exact("rl.train.loss", [(4.4, 5, 1.0)])) for rank in (0, 1)],
    )
    restarted = worker(
        "generator",
        0,
        1,
        counted("rl.generator.tokens", 6, 8, 500),
        observed("rl.generator.queue.depth", 8, 2),
        instance="generator-0-again",
    )
    yield 8.2, [restarted]
    yield 8.4, [worker("trainer", 1, 2, exact("rl.train.loss", [(1.5, 2, 100.0)], exported_s=8.4))]


def everything_a_stock_sdk_sends() -> Iterator[tuple[float, list[Json]]]:
    """A plain service: no exact gauges, no index, explicit buckets, a Prometheus summary."""
    resource = {"rl.experiment.name": "golden", "service.name": "vllm", "service.instance.id": "v"}
    time_ns, start_ns = str(T0 + 2 * S), str(T0)
    span = {"startTimeUnixNano": start_ns, "timeUnixNano": time_ns}
    metrics: list[Json] = [
        {"name": "vllm:kv_cache_usage_perc", "gauge": {"dataPoints": [{**span, "asDouble": 0.5}]}},
        {
            "name": "latency",
            "histogram": {
                "aggregationTemporality": 2,
                "dataPoints": [
                    {
                        **span,
                        "count": "10",
                        "sum": 12.5,
                        "explicitBounds": [1, 2, 4],
                        "bucketCounts": ["4", "4", "2", "0"],
                    }
                ],
            },
        },
        {
            "name": "rpc_seconds",
            "summary": {
                "dataPoints": [
                    {
                        **span,
                        "count": "3",
                        "sum": 1.5,
                        "quantileValues": [
                            {"quantile": 0.5, "value": 0.25},
                            {"quantile": 0.99, "value": 1.0},
                        ],
                    }
                ]
            },
        },
        {
            "name": "requests.running",
            "sum": {
                "aggregationTemporality": 2,
                "isMonotonic": False,
                "dataPoints": [{**span, "asInt": "3", "attributes": attributes({"lora": "a"})}],
            },
        },
    ]
    part: Json = {
        "resource": {"attributes": attributes(resource)},  # type: ignore[arg-type]  # all text
        "scopeMetrics": [{"metrics": metrics}],
    }
    yield 2.1, [part]


CASES: dict[str, Callable[[], Iterator[tuple[float, list[Json]]]]] = {
    "asynchronous_run": asynchronous_run,
    "stock_sdk": everything_a_stock_sdk_sends,
}


def rows_of(requests: Iterator[tuple[float, list[Json]]]) -> list[Json]:
    """The bridge without its edges: admit, decode, align, with the clock of the case."""
    aligner = Run(AlignSettings(window_s=5))
    limits = ReceiveLimits()
    rows = []
    now_ns = T0
    for at_s, parts in requests:
        now_ns = T0 + int(at_s * S)
        body = json.dumps({"resourceMetrics": parts}).encode()
        request = parse_json(Signal.METRICS, body, max_objects=limits.max_messages_per_request)
        admitted = validate(Signal.METRICS, request, limits, now_ns)
        (batch,) = admitted.batches
        aligner.add(decode(batch), received_ns=now_ns)
        rows += aligner.close(now_ns)
    rows += aligner.close(now_ns, everything=True)
    return [
        {
            "number": row.number,
            "step": row.step,
            "policy_version": row.policy_version,
            "at_s": (row.time_ns - T0) / S,
            "values": {key: repr(value) for key, value in sorted(row.values.items())},
        }
        for row in rows
    ]


@pytest.mark.parametrize("name", list(CASES))
def test_the_rows_of(name: str) -> None:
    path = HERE / f"{name}.json"
    found = json.dumps(rows_of(CASES[name]()), indent=1) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()
