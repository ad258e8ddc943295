"""What exporters serve, as the Collector's Prometheus receiver hands it on, in our names.

``scraped.prom`` is written for this test in the formats that DCGM-exporter, node-exporter, vLLM,
SGLang and Ray document. Rewrite ``scraped.txt`` with ``UPDATE_GOLDEN=1`` and read the difference.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import (
    Batch,
    ExperimentKey,
    HistogramPoint,
    Measurements,
    Point,
    Signal,
    SumPoint,
)
from otel_rl.semconv.names import METRICS
from otel_rl.semconv.spec import Reduction
from tests.support.doors import decode
from tests.support.otlp_requests import key_values, metrics_request

HERE = Path(__file__).parent
TEXT, GOLDEN = HERE / "scraped.prom", HERE / "scraped.txt"
T0 = 1_760_000_000 * 1_000_000_000
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE

_SAMPLE = re.compile(r"([^ {]+)(?:\{(.*)\})? ([^ ]+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Labels = dict[str, str]


def metrics(text: str) -> Iterator[Metric]:
    """Exposition text as the receiver translates it."""
    for family in re.split(r"(?m)^# HELP .*\n", text)[1:]:
        head, *lines = family.splitlines()
        _, _, name, kind = head.split()
        samples = []
        for line in lines:
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            samples.append((match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])))
        metric = Metric(name=name)
        if kind == "histogram":
            metric.histogram.aggregation_temporality = CUMULATIVE
            metric.histogram.data_points.append(histogram(name, samples))
        else:
            points = [number(labels, value) for _, labels, value in samples]
            if kind == "counter":
                metric.sum.aggregation_temporality = CUMULATIVE
                metric.sum.is_monotonic = True
                metric.sum.data_points.extend(points)
            else:
                metric.gauge.data_points.extend(points)
        yield metric


def number(labels: Labels, value: float) -> NumberDataPoint:
    return NumberDataPoint(
        attributes=key_values({**labels}),
        start_time_unix_nano=T0,
        time_unix_nano=T0 + 1,
        as_double=value,
    )


def histogram(name: str, samples: Sequence[tuple[str, Labels, float]]) -> HistogramDataPoint:
    buckets = [(labels["le"], n) for part, labels, n in samples if part == f"{name}_bucket"]
    counts = [int(n) for _, n in buckets]
    total, count = (
        next(n for part, _, n in samples if part == f"{name}_{end}") for end in ("sum", "count")
    )
    labels = {key: value for key, value in samples[0][1].items() if key != "le"}
    return HistogramDataPoint(
        attributes=key_values({**labels}),
        start_time_unix_nano=T0,
        time_unix_nano=T0 + 1,
        explicit_bounds=[float(bound) for bound, _ in buckets if bound != "+Inf"],
        bucket_counts=[n - before for n, before in zip(counts, [0, *counts], strict=False)],
        sum=total,
        count=int(count),
    )


def batch(*found: Metric, role: str = "node", **resource: str) -> Batch:
    request = metrics_request(
        *found,
        resource={
            "rl.experiment.name": "e",
            "rl.worker.role": role,
            "service.instance.id": role,
            **resource,
        },
    )
    return Batch(ExperimentKey("e"), Signal.METRICS, request.SerializeToString(), T0 + 2)


@pytest.fixture(scope="module")
def points() -> Sequence[Point]:
    return decode(batch(*metrics(TEXT.read_text()))).points


def shown(point: Point) -> str:
    series = point.series
    attributes = ",".join(f"{key}={value}" for key, value in series.attributes)
    match point:
        case Measurements():
            value = f"{point.values[0]:g}"
        case SumPoint():
            value = f"{point.value:.10g}"
        case HistogramPoint():
            value = f"count {point.count} sum {point.total:g}"
        case _:
            value = "?"
    return f"{series.name}{{{attributes}}} [{series.unit}] {series.instrument} {value}"


def test_every_line_comes_out_as_it_is_known_to(points: Sequence[Point]) -> None:
    found = "".join(f"{shown(point)}\n" for point in points)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_what_the_registry_knows_has_its_unit_and_kind(points: Sequence[Point]) -> None:
    known = [point.series for point in points if point.series.name in METRICS]
    assert len({series.name for series in known}) > 25
    for series in known:
        spec = METRICS[series.name]
        assert (series.name, series.unit, series.instrument) == (
            series.name,
            spec.unit,
            spec.instrument,
        )


def test_no_ratio_is_added_up(points: Sequence[Point]) -> None:
    for point in points:
        spec = METRICS.get(point.series.name)
        if spec is not None and spec.unit == "1":
            assert spec.reduction is not Reduction.SUM, spec.name


def test_no_two_series_become_one(points: Sequence[Point]) -> None:
    found = [point.series for point in points]
    assert len(set(found)) == len(found)


def test_a_device_that_dcgm_and_a_worker_report_is_one() -> None:
    (used,) = [m for m in metrics(TEXT.read_text()) if m.name == "DCGM_FI_DEV_FB_USED"]
    own = Metric(name="hw.gpu.memory.usage", unit="By")
    own.sum.aggregation_temporality = CUMULATIVE
    own.sum.data_points.append(number({"hw.id": "GPU-00000000-aaaa", "hw.name": "gpu0"}, 7e10))
    aligner = Run(AlignSettings())
    sender = {"host.name": "node1", "telemetry.distro.name": "otel_rl"}
    for one in (batch(used), batch(own, role="trainer", **sender)):
        aligner.add(decode(one), received_ns=T0 + 2)
    (row,) = aligner.close(T0 + 10**12, everything=True)
    assert row.values["gpu/count"] == 2
    assert row.values["gpu/node/count"] == 2
    assert row.values["gpu/trainer/count"] == 1
    assert "gpu/node1/gpu0/memory/usage" in row.values
